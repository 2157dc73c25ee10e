package plugin

import (
	"context"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/health"
)

// changed has the node's devices published again.
func (p *plugin) changed() {
	select {
	case p.dirty <- struct{}{}:
	default: // it will be anyway
	}
}

// publishChanges publishes the node's devices whenever they changed, until ctx ends. The first time waits for the API server; claims of the
// kubelet are served meanwhile.
func (p *plugin) publishChanges(ctx context.Context, fail context.CancelCauseFunc) {
	select {
	case <-p.wish.known: // Offered in another form first, a GPU could be given away in it.
	case <-ctx.Done():
		return
	}
	told := conditions{client: p.client, node: p.options.NodeName}
	var retry <-chan time.Time
	for {
		select {
		case <-p.dirty:
			if err := p.publish(); err != nil && ctx.Err() == nil {
				fail(err)
				return
			}
		case <-retry:
		case <-ctx.Done():
			return
		}
		retry = nil
		if err := told.write(ctx, p.condition()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The forms of the node's GPUs are not told")
			retry = time.After(conditionRetry)
		}
	}
}

// publish makes the pool the content of the node's ResourceSlices.
func (p *plugin) publish() error {
	pool := p.kind.Hardware().Pool
	return p.dra.Publish(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		devices.PoolName(p.options.NodeName): {Slices: pool.Slices(p.drainTaints(p.given.taints(health.Taints(p.monitor.Faults(), pool.Devices()),
			pool.Devices()), pool.Devices()))},
	}})
}
