package nodeplugin

import (
	"context"
	"errors"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/observed"
)

// NVML has no event for a GPU's place in the fabric, so it is read: every second while GPUs are joining, and every ten after that,
// which is how late a change of clique (a partition made anew by the fabric manager) may be seen. A read takes microseconds once
// the library is open, and asks no API server.
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
	// problem says why the node's fabric cannot be used; its kind is one of the taint's values.
	problem     string
	problemKind string
}

// The taint's values.
const (
	problemDisagree = "CliquesDisagree"
	problemGPU      = "GPUTrouble"
	problemJoining  = "Joining"
)

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
}

// read never fails: what it cannot read is a node without fabric, or one with a problem.
func (r *fabricReader) read(ctx context.Context) fabric {
	logger := klog.FromContext(ctx)
	if r.driver == nil {
		driver, err := nvml.Open(r.library)
		if errors.Is(err, nvmllib.ERROR_LIBRARY_NOT_FOUND) || errors.Is(err, nvmllib.ERROR_DRIVER_NOT_LOADED) {
			logger.V(2).Info("No NVIDIA driver on this node", "reason", err.Error())
			return fabric{known: true, state: nvml.NoFabric}
		}
		if err != nil {
			return troubled(err)
		}
		r.driver = driver
	}
	gpus, err := r.driver.Fabric()
	if err != nil {
		// Opened anew next time: a driver that was reloaded leaves the library useless.
		r.close(ctx)
		return troubled(err)
	}
	clique, state, err := gpus.Clique()
	if err != nil {
		return troubled(err)
	}
	return fabric{known: true, state: state, clique: clique}
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
		if current != into.Now() {
			into.Set(current)
			changed(current)
		}
		interval := steadyInterval
		if current.state == nvml.Joining {
			interval = joiningInterval
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
	}
}
