package draplugin

import (
	"context"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// republishInterval is how often the library's controller compares the published slices with the wanted ones. A comparison sends no
// request to the API server. The interval is longer than the library keeps its own writes
// (resourceslice.DefaultMutationCacheTTL, a minute).
const republishInterval = 75 * time.Second

// publication is the last input of the library for this node's ResourceSlices.
//
// A kubelet removes a driver's slices half a minute after it has lost the plugin, for example when a restart takes long. If the
// library updated a slice less than half a minute before, its next comparison uses its memory of that update instead of the slice
// (cache.MutationCache keeps it for a minute). After that nothing makes it compare again: it compares again after a create, not
// after an update (resourceslicecontroller.go, v0.36.3). The node then offers nothing, and nothing reports it.
type publication struct {
	// send hands resources to the library.
	send func(context.Context, resourceslice.DriverResources) error

	mu        sync.Mutex
	resources *resourceslice.DriverResources
}

// publish sends resources, and stores them for keep to send again.
func (p *publication) publish(ctx context.Context, resources resourceslice.DriverResources) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.send(ctx, resources); err != nil {
		return err
	}
	p.resources = &resources
	return nil
}

// keep sends the last publication again and again until ctx ends.
func (p *publication) keep(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.again(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// again sends the last publication once more.
func (p *publication) again(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resources == nil {
		return
	}
	if err := p.send(ctx, *p.resources); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "ResourceSlices were not compared with the node's devices")
	}
}
