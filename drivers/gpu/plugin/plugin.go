// Package plugin is the role gpu-plugin: the one owner of a node's GPUs. It publishes every form of them in one pool of the driver
// gpu.nvidia.com, prepares claims, and taints what is not healthy.
//
// # What a pod of this role needs
//
// Run it on every node with GPUs, as root (uid 0, so that it may reach the driver's device nodes and switch MIG modes), with
// privileged: true where MIG, time slicing or MPS is used (the driver wants CAP_SYS_ADMIN for each), no hostNetwork, no hostPID.
//
// Environment: NODE_NAME from spec.nodeName. Every flag that takes text can be given by an environment variable too (--driver-root:
// DRIVER_ROOT).
//
// Volumes, all hostPath at the same path inside as outside: --cdi-root (/var/run/cdi, DirectoryOrCreate), --kubelet-root's plugins and
// plugins_registry directories (and device-plugins with --device-plugin), --handover-dir (/var/lib/gpufabric/handover), --mps-dir
// (/run/gpufabric/mps), --state-dir (/var/lib/gpufabric/gpu-plugin, DirectoryOrCreate), --drain-dir (/var/lib/gpufabric/drain), --dev-root
// (/dev), --driver-root (read only). Where the driver's root cannot be mounted at its own path, mount it elsewhere and give both paths:
// --driver-root=/host=/.
//
// RBAC (cluster-wide rules; a ValidatingAdmissionPolicy keeps each plugin to its own node's slices):
//   - resource.k8s.io resourceslices: get, list, watch, create, update, patch, delete
//   - resource.k8s.io resourceclaims: get
//   - resource.k8s.io resourceclaims/status: get, patch, update, and resourceclaims/driver: associated-node:patch, associated-node:update
//   - core nodes: get, list, watch, and nodes/status: patch (its own, and of its status the conditions GPUForms and GPUDriver alone)
//   - gpufabric.io miglayouts and vgpuprofiles: get, list, watch; miglayouts/status: patch
//   - core and events.k8s.io events: create, patch, update
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/selection"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/hardware/driver"
	nvidia "gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/store"
)

// role is the subcommand's name.
const role = "gpu-plugin"

// Command is the subcommand gpu-plugin.
func Command(h host.Host) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   role,
		Short: "Hand out a node's GPUs: whole, in MIG partitions and in shares",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil { // before an API server is looked for
				return err
			}
			config, err := h.Kubernetes()
			if err != nil {
				return err
			}
			client, err := host.Client(config, role)
			if err != nil {
				return err
			}
			objects, err := dynamic.NewForConfig(host.Tune(config, role))
			if err != nil {
				return fmt.Errorf("make a client for MIGLayouts: %w", err)
			}
			o.Files = h.Watcher()
			return Run(cmd.Context(), o, h.Library(o.Driver()), client, objects)
		},
	}
	o.Bind(cmd.Flags(), h.Env, role)
	cmd.AddCommand(&cobra.Command{
		Use: driverProgram + " ENCLOSURE PROGRAM [ARG]...", Short: "Run a program of the driver in a root directory of its own", Hidden: true,
		Args: cobra.MinimumNArgs(2), DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return programs.Enter(args[0], args[1], args[2:]...) },
	})
	return cmd
}

// driverProgram is the subcommand that the role runs itself as to run a program of the driver.
const driverProgram = "driver-program"

// plugin is the running role.
type plugin struct {
	options Options
	// at is where the driver was found when the plugin was started.
	at       driver.Location
	nvml     nvml.Interface
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	recorder record.EventRecorder
	metrics  *metrics.Plugin
	writer   atomicfile.Writer
	kind     *claims.Kind
	dra      *draplugin.Plugin
	// served is dra once it serves; whoever asks whether the role lives may ask earlier.
	served atomic.Pointer[draplugin.Plugin]
	// resources are those of the device plugin, once they are served.
	resources atomic.Pointer[deviceplugin.Host]
	monitor   *health.Monitor
	health    *healthServer
	given     given
	// wish says which forms the GPUs are to be offered in, self is the node as the API has it.
	wish wish
	// forms keeps those that were offered last; nil: nothing does.
	forms *store.File[devices.Forms]
	self  cache.SharedIndexInformer
	// awaited are the GPUs that a MIGLayout waits for, waiters what waits.
	awaited nameSet
	waiters sync.WaitGroup
	// told is closed when the claims that the last fault hit were told of it; only the monitor's goroutine uses it. telling counts those that
	// wait.
	told    chan struct{}
	telling atomic.Int32
	// relay holds a token when GPUs may have lost the layout that they had.
	relay chan struct{}
	// recheck is how often what has no event is looked at, settle how long a fatal fault stands at least; 0: as package health thinks right.
	recheck, settle time.Duration
	mps             sharing.Daemons
	programs        programs.Runner
	// driver is what is known of the node's driver.
	driver *driverState
	// bus knows which GPUs came to the machine, restart ends the run for them.
	bus     *bus
	restart context.CancelCauseFunc
	// draining keeps new claims off the GPUs.
	draining atomic.Bool
	// lacking is what was last told of what containers go without.
	lacking atomic.Pointer[string]
	// dirty holds a token while what is published is not what there is.
	dirty chan struct{}
}

// Run runs the role until ctx ends. Without objects it follows no MIGLayouts.
func Run(ctx context.Context, o Options, lib nvml.Interface, client kubernetes.Interface, objects dynamic.Interface) error {
	return (&starter{options: o, lib: lib, client: client, objects: objects, enter: programs.Reexec(role, driverProgram),
		change: func(*plugin) {}}).run(ctx)
}

// starter runs the role, and starts it again within the process when a GPU was plugged in: NVML knows the GPUs that were there when it was
// started, so it has to be started again, for which nothing may use it. The kubelet, whose plugin is away for a moment, takes that for a
// restart; MPS control daemons live on.
type starter struct {
	options Options
	lib     nvml.Interface
	client  kubernetes.Interface
	objects dynamic.Interface
	// enter runs programs of the driver.
	enter func(enclosure, program string, args ...string) *exec.Cmd
	// change changes each plugin before it runs.
	change func(*plugin)
	// current is the plugin that runs, interrupt ends its run.
	current   atomic.Pointer[plugin]
	interrupt atomic.Pointer[context.CancelCauseFunc]
	// waits says that the role is held up by something that is no fault of its own: the driver is not there, or the GPUs are drained.
	waits atomic.Bool
	// drains knows whether the GPUs are to be left alone.
	drains *drains
	// driver is what is known of the node's driver.
	driver driverState
}

func (s *starter) run(ctx context.Context) error {
	if err := s.options.Validate(); err != nil {
		return err
	}
	if s.options.Files == nil {
		s.options.Files = &filewatch.Watcher{}
	}
	o := s.options
	recorder, stop := host.Recorder(ctx, s.client, role, o.NodeName)
	defer stop()
	runner := programs.Runner{Driver: o.Driver().Locate, Enter: s.enter}
	mps, end := daemons(o, runner)
	defer end()
	gpus := newBus(o.SysfsRoot)
	next := func() *plugin {
		p := newPlugin(o, s.lib, s.client, s.objects, recorder)
		p.mps, p.programs, p.bus, p.driver = mps, runner, gpus, &s.driver
		s.change(p)
		s.current.Store(p)
		return p
	}
	p := next()
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	// Served from the start: the kubelet asks whether the role lives, which it does while it waits for a driver.
	wg.Go(func() {
		gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return s.current.Load().metrics.Registry.Gather() })
		access := metrics.Guard(o.MetricsAuth, s.client)
		if err := access.Serve(ctx, o.MetricsAddress, gather, func() error { return s.current.Load().alive() },
			s.ready); err != nil {
			cancel(err)
		}
	})
	wg.Go(func() { s.driver.run(ctx, conditions{client: s.client, node: o.NodeName}, pci.NewFS(o.SysfsRoot)) })
	var err error
	if s.drains, err = newDrains(o.Drain(), o.StateDir); err != nil {
		klog.FromContext(ctx).Error(err, "What an earlier run left of a drain", "drained", s.drains.isWanted())
	}
	wg.Go(func() {
		if err := s.control(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "gpufabric drain cannot be served")
			s.current.Load().report("DrainNotServed", err.Error())
		}
	})
	for ; ; p = next() {
		s.waits.Store(true)
		err := s.hold(ctx, p)
		s.waits.Store(false)
		if err != nil {
			return ended(ctx) // told to end while it was drained
		}
		err = s.once(ctx, p)
		if ctx.Err() != nil {
			return ended(ctx) // it says more than what was interrupted by it, which may have been a start
		}
		if !errors.Is(err, errPluggedIn) && !errors.Is(err, errDrained) {
			return err
		}
	}
}

// daemons are what runs MPS control daemons, and what ends those that are this process's.
func daemons(o Options, runner programs.Runner) (sharing.Daemons, func()) {
	if o.MPSKeeper {
		return sharing.Kept{Dir: o.MPSDir}, func() {}
	}
	bounds, _ := sharing.ParseBounds(o.MPSSize) // Validate has said so
	own := &sharing.MPS{Dir: o.MPSDir, Programs: runner, Bounds: bounds}
	return own, own.Close
}

// once runs one plugin on an NVML of its own.
func (s *starter) once(ctx context.Context, p *plugin) error {
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	s.interrupt.Store(&interrupt)
	if s.drains.isWanted() {
		return errDrained // while this run was started
	}
	waited := false
	err := nvidia.Await(ctx, s.lib, s.options.DriverRoot, nvidia.Bound(s.options.SysfsRoot), func(reason, message string) {
		klog.FromContext(ctx).Info(message, "reason", reason)
		s.waits.Store(true)
		p.report("WaitingForDriver", message)
		s.driver.say(troubleStart, reason, message)
		waited = true
	})
	s.waits.Store(false)
	if err != nil {
		return ended(ctx) // told to end while it waited
	}
	if waited {
		p.bus.settle() // The driver that came has taken its GPUs, and NVML knows them.
	}
	defer func() { _ = s.lib.Shutdown() }()
	version, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		version = "of unknown version"
	}
	s.driver.runs(version)
	err = p.run(ctx)
	if cause := ended(ctx); cause != nil {
		return cause
	}
	return err
}

// ended is why ctx ended, nil where somebody told the role to end.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// alive says what has stopped the role from serving the kubelet.
func (p *plugin) alive() error {
	served := p.served.Load()
	if served == nil {
		return nil
	}
	err := served.Answers()
	if resources := p.resources.Load(); resources != nil {
		err = errors.Join(err, resources.Answers())
	}
	return err
}

// ready says why the kubelet cannot have claims prepared. A plugin that waits for the node's driver, or whose GPUs are drained, is as it
// should be: a node without GPUs must not hold a rollout up.
func (s *starter) ready() error {
	if s.current.Load().served.Load() == nil && !s.waits.Load() {
		return errors.New("the role has not begun to serve the kubelet: its log says what it does")
	}
	return nil
}

func newPlugin(o Options, lib nvml.Interface, client kubernetes.Interface, objects dynamic.Interface,
	recorder record.EventRecorder) *plugin {
	measured := metrics.New(devices.Driver)
	measured.Registry.MustRegister(o.Files)
	return &plugin{options: o, nvml: lib, client: client, dynamic: objects, recorder: recorder, metrics: measured,
		dirty: make(chan struct{}, 1), relay: make(chan struct{}, 1),
		wish: wish{known: make(chan struct{})}, self: selection.Self(client, o.NodeName),
		given: given{directory: handover.Directory(o.HandoverDir), held: map[string]bool{}}}
}

func (p *plugin) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer func() {
		wg.Wait()
		p.waiters.Wait()
	}()
	defer cancel(nil)

	p.restart = cancel
	p.at = p.options.Driver().Locate()
	hardware, err := p.read(ctx)
	if err != nil {
		return err
	}
	if err := p.follow(ctx, hardware.Node); err != nil {
		return err
	}
	p.kind = claims.New(hardware, claims.Options{
		Capabilities:  edits.Capabilities{ProcRoot: p.options.ProcRoot(), DevRoot: p.at.Dev.Path, HostDevRoot: p.at.Dev.Host},
		SetTimeSlice:  sharing.TimeSlicer{Programs: p.programs, Mountpoint: p.stateFile("root")}.Set,
		MPS:           p.mps,
		MPSDir:        p.options.MPSDir,
		LeftFile:      p.stateFile("sharing-left.json"),
		ModesFile:     p.stateFile("mig-modes.json"),
		AdoptModes:    p.ranBefore(),
		Writer:        p.writer,
		RemoveUnknown: p.options.UnknownMIG == "remove",
		Appeared:      p.appeared,
		Changed:       p.changed,
		Report:        p.report,
		Note:          p.note,
	})
	p.metrics.Registry.MustRegister(p.kind.Collectors()...)
	p.dra, err = draplugin.Start(ctx, draplugin.Config{
		Driver: devices.Driver, Node: p.options.Node, Client: p.client, Kind: servedKind{p.kind, p.health}, Metrics: p.metrics,
		Recorder: p.recorder, Writer: p.writer,
	})
	if err != nil {
		return err
	}
	defer p.dra.Stop()
	p.served.Store(p.dra)
	// The first thing published has the taints of GPUs that others have: there is no moment without.
	if err := p.askForPlugin(); err != nil {
		return err
	}
	if _, err := p.given.read(); err != nil {
		return err
	}
	p.changed()
	wg.Go(func() { p.self.RunWithContext(ctx) })
	wg.Go(func() { p.publishChanges(ctx, cancel) })
	wg.Go(func() {
		if err := p.monitor.Run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "GPU health is not followed")
			p.report("GPUHealthNotFollowed", err.Error())
		}
	})
	wg.Go(func() { p.kind.ResumeMPS(ctx, p.dra.Records) })
	for _, part := range []func(context.Context) error{p.handOver, p.servePlugin, p.followForms, p.followLayouts, p.followProfiles} {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				cancel(err)
			}
		})
	}
	select {
	case <-p.dra.Done():
		return p.dra.Err()
	case <-ctx.Done():
		return ended(ctx)
	}
}

// appeared has claims that held a device while it could not be read hold it as others do, before it is handed out again.
func (p *plugin) appeared(name string, d *devices.Device) {
	dra := p.served.Load()
	if dra == nil {
		return // its start takes the holds of what is there then
	}
	if err := claims.HoldAnew(dra.Ledger(), devices.PoolName(p.options.NodeName), name, d); err != nil {
		p.report("DeviceHeldTwice", err.Error())
	}
}

// report tells of trouble with the node as a whole.
func (p *plugin) report(reason, message string) {
	p.recorder.Event(p.nodeReference(), corev1.EventTypeWarning, reason, message[:min(len(message), 1024)])
}

// note tells something about the node as a whole that is no trouble.
func (p *plugin) note(reason, message string) {
	p.recorder.Event(p.nodeReference(), corev1.EventTypeNormal, reason, message[:min(len(message), 1024)])
}

// nodeReference names the node as the kubelet's own Events do: with the name for a UID.
func (p *plugin) nodeReference() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", Name: p.options.NodeName, UID: types.UID(p.options.NodeName)}
}

// stateFile is a file of the plugin's own beside its claims.
func (p *plugin) stateFile(name string) string { return filepath.Join(p.options.StateDir, name) }
