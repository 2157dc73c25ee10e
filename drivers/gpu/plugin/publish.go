package plugin

import (
	"context"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/node/observed"
)

// publisher keeps the node's ResourceSlices, and its condition GPUForms, up to date.
type publisher struct {
	kind      *claims.Preparer
	monitor   *health.Monitor
	forms     *forms
	handovers *handovers
	draining  *observed.Value[bool]
	dra       resourcePublisher
	pool      string
	condition conditions
}

// resourcePublisher publishes ResourceSlices. draplugin.Plugin is one.
type resourcePublisher interface {
	Learn()
	Publish(resources resourceslice.DriverResources) error
}

// Run publishes the node's devices whenever they, their faults, their owners or their forms change, until ctx ends. The first
// publication waits for the API server; the kubelet's claims do not.
func (p *publisher) Run(ctx context.Context) error {
	// A GPU that is first offered in another form could be allocated in it.
	if _, known := p.forms.wish.Await(ctx, func(w wish) bool { return w.known }); !known {
		return nil
	}
	p.dra.Learn() // so that the first publication is one that the cluster keeps whole
	for {
		hardware, hardwareChanged := p.kind.Watch()
		faults, faultsChanged := p.monitor.Watch()
		requests, requestsChanged := p.handovers.requests.Get()
		draining, drainingChanged := p.draining.Get()
		wish, wishChanged := p.forms.wish.Get()
		if err := p.publish(hardware.Pool, faults, requests, draining); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var retry <-chan time.Time
	reported:
		for {
			if err := p.condition.write(ctx, wish.condition(hardware)); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Could not report the forms of the node's GPUs")
				retry = time.After(conditionRetry)
			}
			select {
			case <-retry:
				continue
			case <-hardwareChanged:
			case <-faultsChanged:
			case <-requestsChanged:
			case <-drainingChanged:
			case <-wishChanged:
			case <-ctx.Done():
				return nil
			}
			break reported
		}
	}
}

// publish publishes the pool as the node's ResourceSlices, with the taints of devices that are faulty, handed over or drained.
func (p *publisher) publish(pool *devices.Pool, faults []health.Fault, requests map[string]string, draining bool) error {
	all := pool.Devices()
	taints := health.Taints(faults, all)
	addHandoverTaints(taints, requests, all)
	if draining {
		addDrainTaints(taints, all)
	}
	return p.dra.Publish(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{p.pool: {Slices: pool.Slices(taints)}}})
}
