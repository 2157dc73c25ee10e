package nodeplugin

import (
	"context"

	"k8s.io/dynamic-resource-allocation/resourceslice"

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
	for {
		select {
		case <-p.dirty:
		case <-ctx.Done():
			return
		}
		if err := p.publish(); err != nil && ctx.Err() == nil {
			fail(err)
			return
		}
	}
}

// publish makes the pool the content of the node's ResourceSlices.
func (p *plugin) publish() error {
	pool := p.kind.Hardware().Pool
	return p.dra.Publish(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		devices.PoolName(p.options.NodeName): {Slices: pool.Slices(p.given.taints(health.Taints(p.monitor.Faults(), pool.Devices()), pool.Devices()))},
	}})
}
