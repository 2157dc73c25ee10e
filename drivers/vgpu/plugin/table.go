package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/settings"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// table is the node's present sharedGPUs: the hardware and the settings, the factor that the cluster agreed on, and the problems of
// its GPUs. When one of the last two changes, the set of shared GPUs is computed again and sent to the kubelet and the scheduler.
type table struct {
	node     *inventory.Node
	locate   func(busID string) (inventory.Place, error)
	settings settings.Settings
	monitor  *health.Monitor
	// returned is closed when a GPU answers that did not answer when the node was read.
	returned chan struct{}
	// unusable are the reasons why GPUs cannot be used in their mode, by UUID. It is written before any reader starts.
	unusable map[string]string

	// lacking are the device nodes that a GPU's containers would lack, by UUID.
	lacking atomic.Pointer[map[string]string]
	// draining: the node's GPUs are being drained.
	draining atomic.Bool

	sharedGPUs atomic.Pointer[sharedgpus.Set]

	mu          sync.Mutex // held while the set of shared GPUs is computed
	factor      int
	subscribers []func(*sharedgpus.Set)
}

// SharedGPUs is the set of shared GPUs now.
func (t *table) SharedGPUs() *sharedgpus.Set { return t.sharedGPUs.Load() }

// onChange calls subscriber with every set that is computed after this call.
func (t *table) onChange(subscriber func(*sharedgpus.Set)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subscribers = append(t.subscribers, subscriber)
}

// agreed sets the cluster's factor, where the settings have none of their own.
func (t *table) agreed(ctx context.Context, factor int) {
	if t.settings.MemoryFactor != 0 {
		return
	}
	t.mu.Lock()
	same := t.factor == factor
	t.factor = factor
	t.mu.Unlock()
	if !same {
		t.lay(ctx)
	}
}

// followUnit keeps the node in the unit of memory that the cluster has agreed on, until ctx ends.
func (t *table) followUnit(ctx context.Context, cluster agreement) error {
	return cluster.Follow(ctx, func(inForce int) {
		t.agreed(ctx, inForce)
		// Somebody removed or overwrote the agreement. This node cannot use a smaller unit, and the others must not go on in another one.
		if needed := t.SharedGPUs().Factor; t.settings.MemoryFactor == 0 && needed > inForce {
			if _, err := cluster.Agree(ctx, needed); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "The cluster's unit of memory is smaller than this node's")
			}
		}
	})
}

// lay computes the set of shared GPUs again.
func (t *table) lay(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gpus, err := sharedgpus.Compute(t.node, t.settings, t.factor)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The shared GPUs keep their former layout")
		return
	}
	gpus.MarkUnhealthy(t.unhealthy)
	t.sharedGPUs.Store(gpus)
	for _, subscriber := range t.subscribers {
		subscriber(gpus)
	}
}

// lacks marks GPUs as unhealthy whose containers would lack device nodes, and others as healthy again.
func (t *table) lacks(ctx context.Context, nodes map[string]string) {
	before := t.lacking.Swap(&nodes)
	if before == nil && len(nodes) == 0 || before != nil && maps.Equal(*before, nodes) {
		return
	}
	for uuid, why := range nodes {
		klog.FromContext(ctx).Info("A GPU is not shared until its device nodes are there", "gpu", uuid, "reason", why)
	}
	t.lay(ctx)
}

// drain marks every GPU as unhealthy while the node is drained.
func (t *table) drain(ctx context.Context, wanted bool) {
	if t.draining.Swap(wanted) != wanted {
		t.lay(ctx)
	}
}

// unhealthy returns the problem of a card; empty: there is none. After a fault of one MIG instance the others of its GPU can still be
// used.
func (t *table) unhealthy(card *sharedgpus.Card) string {
	if t.draining.Load() {
		return "the node's GPUs are drained, until gpufabric undrain"
	}
	if lacking := t.lacking.Load(); lacking != nil && (*lacking)[card.GPU.UUID] != "" {
		return (*lacking)[card.GPU.UUID]
	}
	if why := t.unusable[card.GPU.UUID]; why != "" {
		return why
	}
	if t.monitor == nil {
		return ""
	}
	for _, f := range t.monitor.Faults() {
		if f.Fatal && f.GPU == card.GPU.UUID && (f.Placement == nil || card.Mode != annotation.ModeMIG) {
			return f.String()
		}
	}
	return ""
}

// faulty returns the reason why no MIG instance may be made at a placement.
func (t *table) faulty(uuid string, at inventory.Placement) error {
	for _, f := range t.monitor.Faults() {
		if p := f.Placement; f.Fatal && f.GPU == uuid && p != nil && p.Start < at.Start+at.Size && at.Start < p.Start+p.Size {
			return errors.New(f.String())
		}
	}
	return nil
}

// follow makes the monitor of the GPUs' health.
func (t *table) follow(ctx context.Context, o *Options, lib nvml.Interface) {
	var err error
	t.monitor, err = health.New(health.Options{
		NVML: lib, Path: o.stateFile("faults.json"), Boot: o.BootID(), Now: time.Now, Recheck: o.recheck,
		Node: func() *inventory.Node { return t.node },
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "The stored faults could not be read")
	}
}

// followFaults computes the set of shared GPUs again whenever the faults of the GPUs change, until ctx ends.
func (t *table) followFaults(ctx context.Context) error {
	for {
		_, changed := t.monitor.Watch()
		t.lay(ctx)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// attendant receives what the monitor finds, and looks for GPUs that answer again.
type attendant struct {
	table *table
	lib   nvml.Interface
	// found closes the table's returned.
	found sync.Once
}

var _ health.Listener = (*attendant)(nil)

// Happened implements health.Listener.
func (*attendant) Happened(ctx context.Context, f health.Fault, first bool) {
	klog.FromContext(ctx).Info("GPU event", "gpu", f.GPU, "kind", f.Kind, "code", f.Code, "fatal", f.Fatal, "message", f.Message, "new", first)
}

// Healed implements health.Listener.
func (*attendant) Healed(ctx context.Context, f health.Fault) {
	klog.FromContext(ctx).Info("GPU is healthy again", "gpu", f.GPU, "kind", f.Kind, "code", f.Code)
}

// Checked implements health.Listener.
func (a *attendant) Checked(context.Context) {
	reader := inventory.Reader{NVML: a.lib, Locate: a.table.locate}
	if !reader.Outdated(&inventory.Node{Missing: a.table.node.Missing}) {
		return
	}
	now, err := reader.Read()
	if err != nil {
		return
	}
	// A GPU that answers but cannot be read does not count.
	if slices.ContainsFunc(now.GPUs, func(g *inventory.GPU) bool { return a.table.node.ByUUID(g.UUID) == nil }) {
		a.found.Do(func() { close(a.table.returned) })
	}
}

// awaitMissing waits until a missing GPU answers, and ends with errGPUReturned.
func (t *table) awaitMissing(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-t.returned:
		return errGPUReturned
	}
}

// divide switches each shared GPU to the MIG mode that its way of sharing needs. A GPU that cannot be switched is unhealthy, with
// the reason.
func (t *table) divide(ctx context.Context) {
	t.unusable = map[string]string{}
	for _, card := range t.SharedGPUs().Cards {
		if card.GPU.MIG == nil {
			continue
		}
		if err := setMode(card); err != nil {
			t.unusable[card.GPU.UUID] = err.Error()
			klog.FromContext(ctx).Error(err, "A GPU cannot be shared in its mode", "gpu", card.GPU.UUID, "mode", card.Mode)
		}
	}
}

func setMode(card sharedgpus.Card) error {
	if card.Mode == annotation.ModeMIG {
		return partition.Require(card.GPU, true)
	}
	standing, err := partition.List(card.GPU)
	if err != nil {
		return err
	}
	if len(standing) > 0 {
		return fmt.Errorf("%s is cut into %d MIG instances and cannot be shared in mode %s: remove them (nvidia-smi mig -dci; nvidia-smi mig "+
			"-dgi), or give it mode mig in gpumodes",
			card.GPU.UUID, len(standing), card.Mode)
	}
	return partition.Require(card.GPU, false)
}

// serve serves the resources, and sends the kubelet each new set.
func (t *table) serve(plugins *deviceplugin.Host, shares number) error {
	for _, served := range []struct {
		resource string
		backend  deviceplugin.Backend
		devices  func(*sharedgpus.Set) []deviceplugin.Device
	}{
		{t.settings.NumberResource, shares, (*sharedgpus.Set).Number},
		{t.settings.MemoryResource, memory{shares}, (*sharedgpus.Set).Memory},
		{t.settings.CoresResource, amount{}, (*sharedgpus.Set).Cores},
		{t.settings.PercentageResource, amount{}, (*sharedgpus.Set).Percentage},
	} {
		resource, err := plugins.Serve(served.resource, served.backend, served.devices(t.SharedGPUs()))
		if err != nil {
			return err
		}
		t.onChange(func(gpus *sharedgpus.Set) { resource.Update(served.devices(gpus)) })
	}
	return nil
}
