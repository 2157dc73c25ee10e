package plugin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/computedomain/hostimex"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/observed"
)

// NVML has no event for a GPU's place in the fabric, so it is read: every second while GPUs are joining, and every ten after that,
// which is how late a change of clique (a partition that is made again by the fabric manager) may be seen. A read takes microseconds once
// the library is open, and does not send a request to the API server.
const (
	joiningInterval = time.Second
	steadyInterval  = 10 * time.Second
)

// fabric is this node's place in the NVLink fabric.
type fabric struct {
	// known is false until the first read.
	known  bool
	state  nvml.FabricState
	clique string
	// problem is the reason why the node's fabric cannot be used; its kind is one of the taint's values.
	problem     string
	problemKind string
	// channels is how many IMEX channels the node's driver made; 0: unknown.
	channels int
}

// channelCount is how many channels the node has, as far as is known.
func (f fabric) channelCount() int {
	if f.channels == 0 {
		return imex.Channels
	}
	return f.channels
}

// The taint's values.
const (
	problemDisagree = "CliquesDisagree"
	problemGPU      = "GPUTrouble"
	problemJoining  = "Joining"
	// problemNoDriver: the node has GPUs, and no driver that is loaded.
	problemNoDriver = "DriverNotLoaded"
	// problemOldDriver: the driver is older than minimumDriver.
	problemOldDriver = "DriverTooOld"
	// problemHostDaemon: the node runs an nvidia-imex of its own.
	problemHostDaemon = "HostIMEXRunning"
	// problemNoChannels: the driver was configured without IMEX channels.
	problemNoChannels = "NoIMEXChannels"
	// problemDaemon: the IMEX daemon of the node's clique, which serves all domains here, is not ready.
	problemDaemon = "IMEXDaemonNotReady"
	// problemDrained: the node's GPUs are drained, and its fabric is not read.
	problemDrained = "GPUsDrained"
)

// hostDaemonConflict is the reason why no daemon of ours can run beside the node's own: it would not become READY (#524 of NVIDIA's DRA
// driver).
const hostDaemonConflict = "the node runs an nvidia-imex of its own, and the driver gives a node one IMEX session: stop it with " +
	"systemctl disable --now " + hostimex.Unit

// minimumDriver is the first driver whose nvidia-imex takes names for its peers and looks them up again (NVIDIA's release notes; without
// that each change of peers would be a restart).
const minimumDriver = "570.158.01"

// passing reports whether the state is one that nodes go through when they start. A claim waits for its end.
func (f fabric) passing() bool {
	return !f.known || f.state == nvml.Joining || f.problemKind == problemNoDriver
}

// taint is the value of the taint that the node's channel carries, empty for none.
func (f fabric) taint() string {
	switch {
	case f.problem != "":
		return f.problemKind
	case f.state == nvml.Joining:
		return problemJoining
	default:
		return ""
	}
}

// fabricReader reads the fabric through one library, which it keeps open.
type fabricReader struct {
	library nvmllib.Interface
	driver  *nvml.Driver // nil while the library is not open
	version string       // of the driver that is open
	board   func(context.Context) (board, error)
	last    lastFabric
	// hostDaemon reports whether the node runs an nvidia-imex of its own. If hostServes, that one is to serve: the node needs no other
	// daemon, and none that takes names for its peers.
	hostDaemon func() bool
	hostServes bool
	// channels is how many IMEX channels the driver made.
	channels func() (int, error)
}

// read never fails: an unreadable fabric is none, or one with a problem.
func (r *fabricReader) read(ctx context.Context) fabric {
	if r.driver == nil {
		driver, err := nvml.Open(r.library)
		if errors.Is(err, nvmllib.ERROR_LIBRARY_NOT_FOUND) || errors.Is(err, nvmllib.ERROR_DRIVER_NOT_LOADED) {
			return r.withoutDriver(ctx, err)
		}
		if err != nil {
			return troubled(err)
		}
		r.driver = driver
		if r.version, err = driver.Version(); err != nil {
			r.version = "" // then no version is refused
		}
	}
	gpus, err := r.driver.Fabric()
	if err != nil {
		// Opened again next time: a driver that was reloaded leaves the library useless.
		r.close(ctx)
		return troubled(err)
	}
	if missing := r.missing(ctx, len(gpus.GPUs)); missing > 0 {
		// NVML lists GPUs when it starts. Where it was started between two device nodes of a driver that is being installed, it lacks some for
		// good.
		r.close(ctx)
		if len(gpus.GPUs) == 0 {
			return fabric{known: true, state: nvml.NoFabric, problemKind: problemNoDriver, problem: fmt.Sprintf(
				"the NVIDIA driver has taken %d GPUs of the node, and its library shows none of them: are their device nodes (/dev/nvidia0 and "+
					"so on) there?",
				missing)}
		}
	}
	clique, state, err := gpus.Clique()
	if err != nil {
		return troubled(err)
	}
	if state == nvml.Joining {
		return r.joining(ctx)
	}
	if err := r.last.remember(clique); err != nil {
		klog.FromContext(ctx).Error(err, "Could not store the node's NVLink clique for the next boot")
	}
	return r.usable(r.withChannels(ctx, fabric{known: true, state: state, clique: clique}))
}

// missing is how many GPUs the kernel's driver has taken and its library does not show.
func (r *fabricReader) missing(ctx context.Context, shown int) int {
	found, err := r.board(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Could not determine whether the driver's library lists every GPU", "reason", err.Error())
		return 0
	}
	return max(0, found.bound-shown)
}

// withoutDriver distinguishes a node without GPUs from one without a driver, or with one that is not loaded yet.
func (r *fabricReader) withoutDriver(ctx context.Context, reason error) fabric {
	logger := klog.FromContext(ctx)
	last := r.lastClique(ctx)
	found, err := r.board(ctx)
	if err != nil {
		logger.Error(err, "Could not determine whether the node has GPUs")
	}
	if err == nil && found.gpus == 0 && last == "" {
		logger.V(2).Info("No NVIDIA GPU and no driver on this node", "reason", reason.Error())
		return fabric{known: true, state: nvml.NoFabric}
	}
	problem := fmt.Sprintf("the node has %d NVIDIA GPUs on its PCI bus, but its driver is not there or not loaded (%v)", found.gpus, reason)
	if last != "" {
		problem += "; it was last in NVLink clique " + last
	}
	return fabric{known: true, state: nvml.NoFabric, problem: problem, problemKind: problemNoDriver}
}

// joining distinguishes a node that is joining its fabric from a board whose GPUs report that for ever.
func (r *fabricReader) joining(ctx context.Context) fabric {
	found, err := r.board(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not determine whether the node's NVLink leaves the node")
	}
	if err != nil || found.multiNode || r.lastClique(ctx) != "" {
		return fabric{known: true, state: nvml.Joining}
	}
	rack, err := r.driver.InRack()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not determine whether the node's GPUs are in a rack")
	}
	if err != nil || rack {
		return fabric{known: true, state: nvml.Joining}
	}
	return fabric{known: true, state: nvml.NoFabric}
}

// withChannels adds how many channels a node in its fabric has.
func (r *fabricReader) withChannels(ctx context.Context, f fabric) fabric {
	if f.state != nvml.Joined || r.channels == nil {
		return f
	}
	count, err := r.channels()
	switch {
	case err != nil:
		klog.FromContext(ctx).V(2).Info("Could not count the node's IMEX channels", "reason", err.Error())
	case count == 0:
		f.problemKind = problemNoChannels
		f.problem = "its NVIDIA driver is set to make no IMEX channels (NVreg_ImexChannelCount=0): load it with another value, or without"
	default:
		f.channels = count
	}
	return f
}

// usable adds why no daemon can run on a node that is in its fabric.
func (r *fabricReader) usable(f fabric) fabric {
	switch {
	case f.state != nvml.Joined, f.problem != "", r.hostServes:
	case r.version != "" && older(r.version, minimumDriver):
		f.problemKind = problemOldDriver
		f.problem = fmt.Sprintf("its NVIDIA driver is %s, and IMEX needs %s or later (its peers are named, and change while it runs): update "+
			"the driver", r.version, minimumDriver)
	case r.hostDaemon():
		f.problemKind, f.problem = problemHostDaemon, hostDaemonConflict
	}
	return f
}

func (r *fabricReader) lastClique(ctx context.Context) string {
	clique, err := r.last.clique()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not determine whether the node was in a fabric")
	}
	return clique
}

// older compares versions of the driver, number by number. A version that is not a number is not older.
func older(version, than string) bool {
	numbers := strings.Split(version, ".")
	for i, want := range strings.Split(than, ".") {
		if i >= len(numbers) {
			return true
		}
		has, err := strconv.Atoi(numbers[i])
		wanted, _ := strconv.Atoi(want) // ours
		if err != nil || has != wanted {
			return err == nil && has < wanted
		}
	}
	return false
}

func troubled(err error) fabric {
	kind := problemGPU
	if errors.Is(err, nvml.ErrDisagree) {
		kind = problemDisagree
	}
	return fabric{known: true, state: nvml.NoFabric, problem: err.Error(), problemKind: kind}
}

func (r *fabricReader) close(ctx context.Context) {
	if r.driver == nil {
		return
	}
	if err := r.driver.Close(); err != nil {
		klog.FromContext(ctx).V(2).Info("Closing NVML failed", "reason", err.Error())
	}
	r.driver = nil
}

// follow keeps into current until ctx ends, and calls changed whenever it is another than before.
func (r *fabricReader) follow(ctx context.Context, into *observed.Value[fabric], changed func(fabric)) {
	defer r.close(ctx)
	for {
		current := r.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if current != into.Now() {
			into.Set(current)
			changed(current)
		}
		interval := steadyInterval
		if current.passing() {
			interval = joiningInterval
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
	}
}
