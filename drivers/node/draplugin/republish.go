package draplugin

import (
	"context"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// republishInterval is how often the library's controller is asked to compare what is published with what should be. A comparison asks the
// API server nothing. It is longer than the library's memory of its own writes (resourceslice.DefaultMutationCacheTTL, a minute).
const republishInterval = 75 * time.Second

// publication is what the library last took for this node's ResourceSlices.
//
// A kubelet removes a driver's slices half a minute after it has lost the plugin, as it does where a restart takes long. If the library has
// updated a slice less than half a minute before, its next comparison takes its memory of that update for the slice (cache.MutationCache
// keeps it for a minute), and nothing makes it look again: it looks again after what it created, not after what it updated
// (resourceslicecontroller.go, v0.36.3). The node then offers nothing, and nobody says so.
type publication struct {
	// send hands resources to the library.
	send func(context.Context, resourceslice.DriverResources) error

	mu        sync.Mutex
	resources *resourceslice.DriverResources
}

// publish sends resources, and keeps them for keep. What is sent last is kept.
func (p *publication) publish(ctx context.Context, resources resourceslice.DriverResources) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.send(ctx, resources); err != nil {
		return err
	}
	p.resources = &resources
	return nil
}

// keep sends what was published last again and again until ctx ends.
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

// again sends what was published last once more.
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
