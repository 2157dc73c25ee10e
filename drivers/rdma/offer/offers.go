package offer

import (
	"context"
	"errors"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/options"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// Node has the common data of a node's offers.
type Node struct {
	Boot    string // the node's boot
	Nodes   inventory.DeviceNodes
	Specs   *cdi.Dir // of pools that use CDI; nil: they do not
	Layouts *Store
	Kubelet *deviceplugin.Host
}

// Offers are the pools of the kubelet. Only one goroutine may use them; the result of Snapshot is safe for concurrent use.
type Offers struct {
	node   Node
	served map[string]*served // by resource
}

type served struct {
	offer    *Offer
	resource *deviceplugin.Resource
}

// NewOffers makes the offers of a node, without any pool yet.
func NewOffers(node Node) *Offers { return &Offers{node: node, served: make(map[string]*served)} }

// Serve serves the pools as resources of the kubelet, with the health that state reports for their ports.
func (o *Offers) Serve(ctx context.Context, pools []pool.Pool, state func(health.Key) health.State) {
	log := klog.FromContext(ctx)
	wanted := make(map[string]bool)
	for _, selected := range pools {
		name := selected.Resource()
		wanted[name] = true
		s := o.served[name]
		if s == nil {
			s = &served{offer: o.resume(ctx, name)}
			log.Info("A pool is served", "resource", name, "source", selected.Source, "units", selected.RDMAHCAMax, "unit", meaning(&selected))
		}
		o.set(ctx, s.offer, selected)
		devices := s.offer.Devices(state)
		if s.resource != nil {
			s.resource.Update(devices)
			continue
		}
		resource, err := o.node.Kubelet.Serve(name, s.offer, devices)
		if err != nil {
			log.Error(err, "A pool is not served")
			continue
		}
		s.resource = resource
		o.served[name] = s
	}
	for name, s := range o.served {
		if !wanted[name] {
			log.Info("A pool is no longer served", "resource", name)
			s.resource.Stop()
			delete(o.served, name)
		}
	}
	o.sweep(ctx)
}

// meaning describes the devices of one unit of a pool. A config.json and an RDMAPool differ in it where deviceNodes is not given.
func meaning(p *pool.Pool) string {
	switch {
	case p.Exclusive():
		return "a whole HCA, for one container"
	case p.DeviceNodes == v1alpha1.RDMANodesAll:
		return "every HCA of the pool, as with k8s-rdma-shared-dev-plugin; deviceNodes: Allocated makes it a share of one HCA"
	}
	return "a share of one HCA; deviceNodes: All makes it every HCA of the pool, as with k8s-rdma-shared-dev-plugin"
}

// resume makes the offer of a resource with the layout of an earlier run.
func (o *Offers) resume(ctx context.Context, name string) *Offer {
	kept, err := o.node.Layouts.Load(name)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The units of a pool are divided again", "resource", name)
	}
	made := New(o.node.Nodes, kept.Units, o.node.Specs)
	if options.SameBoot(kept.Boot, o.node.Boot) {
		made.Resume(kept.Pool)
	}
	return made
}

// set sets an offer's pool, writes its CDI spec and stores its layout.
func (o *Offers) set(ctx context.Context, made *Offer, selected pool.Pool) {
	log := klog.FromContext(ctx)
	made.Set(selected)
	if err := made.WriteSpec(); err != nil {
		log.Error(err, "Could not write a pool's CDI spec", "resource", selected.Resource())
	}
	if selected.Exclusive() {
		return
	}
	kept := Kept{Boot: o.node.Boot, Pool: selected.RDMAPoolConfig, Units: made.Layout()}
	if err := o.node.Layouts.Save(selected.Resource(), kept); err != nil {
		log.Error(err, "Could not store the division of a pool's units; a restart loses it", "resource", selected.Resource())
	}
}

// sweep removes the CDI specs of an earlier run's pools that are no longer served.
func (o *Offers) sweep(ctx context.Context) {
	if o.node.Specs == nil {
		return
	}
	kept := make(map[types.UID]bool)
	for _, s := range o.served {
		kept[s.offer.SpecName()] = true
	}
	names, err := o.node.Specs.List()
	for _, name := range names {
		if !kept[name] {
			err = errors.Join(err, o.node.Specs.Remove(name))
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not remove CDI specs of an earlier run")
	}
}

// Update reports the health of all units to the kubelet.
func (o *Offers) Update(state func(health.Key) health.State) {
	for _, s := range o.served {
		s.resource.Update(s.offer.Devices(state))
	}
}

// Healthy counts the units of a resource that the kubelet may allocate now.
func (o *Offers) Healthy(resource string, state func(health.Key) health.State) int32 {
	s := o.served[resource]
	if s == nil {
		return 0
	}
	healthy := int32(0)
	for _, d := range s.offer.Devices(state) {
		if d.Healthy {
			healthy++
		}
	}
	return healthy
}

// Snapshot returns a function that finds the HCAs of a unit of the present resources. Any goroutine may call it.
func (o *Offers) Snapshot() func(resource, id string) []*inventory.HCA {
	offers := maps.Clone(o.served)
	return func(resource, id string) []*inventory.HCA {
		if s := offers[resource]; s != nil {
			return s.offer.Holding(id)
		}
		return nil
	}
}
