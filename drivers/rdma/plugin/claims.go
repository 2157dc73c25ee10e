package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/options"
	"gpufabric.io/drivers/node/store"
	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/health"
)

// Role is the subcommand's name, and the name of its client and its Events.
const Role = "rdma-plugin"

// claims serves the node's ports under Dynamic Resource Allocation: it publishes them, and prepares the claims that get them.
type claims struct {
	node     options.Node
	client   kubernetes.Interface // nil: claims are not served
	offering dra.Options
	registry *metrics.Plugin
	kind     *dra.Preparer
	networks *podNetworks
	// unreadable is state that could not be read at the start; Run reports it.
	unreadable []store.Unreadable

	wanted observed.Value[*publication] // nil: before the first discovery
	// served is the server for the kubelet, nil until Run makes it.
	served atomic.Pointer[draplugin.Plugin]
}

// publication has the devices to publish.
type publication struct {
	ports  int
	slices [][]resourceapi.Device
}

func newClaims(o Options, networks *podNetworks, registry *metrics.Plugin) *claims {
	return &claims{node: o.Node, client: o.Client, offering: dra.Options{Slots: o.Slots, DevicePlugin: o.DevicePlugin}, registry: registry,
		kind: dra.NewKind(o.deviceNodes(), networks), networks: networks}
}

// Set makes the ports of a picture available to claims. Run publishes them.
func (c *claims) Set(now picture, state func(health.Key) health.State) {
	if c.client == nil {
		return
	}
	ports := dra.Ports(now.devices, now.selection.Pools, c.offering)
	c.kind.Set(ports, now.devices.GPUDirect)
	c.wanted.Set(&publication{ports: len(ports), slices: dra.Slices(ports, now.devices, state, c.offering)})
}

// Run serves claims until ctx ends.
func (c *claims) Run(ctx context.Context) error {
	recorder, stop := host.Recorder(ctx, c.client, Role, c.node.NodeName)
	defer stop()
	report := host.NodeTrouble(recorder, c.node.NodeName)
	for _, u := range c.unreadable {
		report("StateUnreadable", u.String())
	}
	served, err := draplugin.Start(ctx, draplugin.Config{
		Driver: dra.Driver, Pool: c.node.NodeName + "-rdma", Node: c.node, Client: c.client, Preparer: c.kind, Metrics: c.registry,
		Recorder: recorder,
	})
	if err != nil {
		return fmt.Errorf("serve Dynamic Resource Allocation: %w", err)
	}
	defer served.Stop()
	c.served.Store(served)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.networks.run(ctx, served, recorder) })
	group.Go(func() error { c.publish(ctx, served); return nil })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-served.Done():
			return served.Err()
		}
	})
	return group.Wait()
}

// Answers returns the reason why the plugin does not answer the kubelet; nil if it does, or does not serve yet.
func (c *claims) Answers() error {
	if served := c.served.Load(); served != nil {
		return served.Answers()
	}
	return nil
}

// Started returns the reason why the kubelet cannot call yet.
func (c *claims) Started() error {
	if c.client == nil {
		return nil
	}
	served := c.served.Load()
	if served == nil {
		return errors.New("the role has not begun to serve the kubelet's claims: its log has the reason")
	}
	return served.Registered()
}

// publish updates the node's ResourceSlices with the ports and their health until ctx ends.
func (c *claims) publish(ctx context.Context, served *draplugin.Plugin) {
	var published *publication
	for {
		next, changed := c.wanted.Get()
		if next != nil && (published == nil || !equality.Semantic.DeepEqual(next.slices, published.slices)) {
			if err := served.Publish(next.resources(c.node.NodeName + "-rdma")); err == nil {
				published = next
				tainted := next.tainted()
				c.registry.Devices.WithLabelValues("available").Set(float64(next.ports - tainted))
				c.registry.Devices.WithLabelValues("tainted").Set(float64(tainted))
			} else if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Publishing the RDMA devices failed")
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// resources are published as one pool; a node without devices publishes an empty pool.
func (p *publication) resources(pool string) resourceslice.DriverResources {
	published := resourceslice.Pool{}
	for _, chunk := range p.slices {
		published.Slices = append(published.Slices, resourceslice.Slice{Devices: chunk})
	}
	if len(published.Slices) == 0 {
		published.Slices = []resourceslice.Slice{{Devices: []resourceapi.Device{}}}
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: published}}
}

// tainted counts the devices with a taint.
func (p *publication) tainted() int {
	tainted := 0
	for _, chunk := range p.slices {
		for i := range chunk {
			if len(chunk[i].Taints) > 0 {
				tainted++
			}
		}
	}
	return tainted
}
