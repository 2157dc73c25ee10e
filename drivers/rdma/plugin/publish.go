package plugin

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/rdma/dra"
)

// Role is the subcommand's name, and that of its client and its Events.
const Role = "rdma-plugin"

// serveDRA serves claims until ctx ends.
func (p *plugin) serveDRA(ctx context.Context, networks *podNetworks, started chan<- *draplugin.Plugin) error {
	recorder, stop := host.Recorder(ctx, p.Client, Role, p.NodeName)
	defer stop()
	served, err := draplugin.Start(ctx, draplugin.Config{
		Driver: dra.Driver, Node: p.Node, Client: p.Client, Kind: p.kind, Metrics: p.registry, Recorder: recorder,
	})
	if err != nil {
		return fmt.Errorf("serve Dynamic Resource Allocation: %w", err)
	}
	defer served.Stop()
	send(ctx, started, served)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return networks.run(ctx, served, recorder) })
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

// publish brings the node's ResourceSlices in line with the devices and their health.
func (p *plugin) publish(ctx context.Context) {
	if p.Client == nil || p.selection == nil {
		return
	}
	options := dra.Options{Slots: p.Slots, DevicePlugin: p.DevicePlugin}
	ports := dra.Ports(p.devices, p.selection.Pools, options)
	p.kind.Set(ports)
	if p.dra == nil {
		return // It is starting, and publishes then.
	}
	devices := dra.Slices(ports, p.devices, p.ports.State, options)
	if p.published != nil && equality.Semantic.DeepEqual(devices, p.published) {
		return
	}
	resources := resourceslice.Pool{}
	tainted := 0
	for _, chunk := range devices {
		resources.Slices = append(resources.Slices, resourceslice.Slice{Devices: chunk})
		for i := range chunk {
			if len(chunk[i].Taints) > 0 {
				tainted++
			}
		}
	}
	if len(resources.Slices) == 0 {
		resources.Slices = []resourceslice.Slice{{Devices: []resourceapi.Device{}}}
	}
	err := p.dra.Publish(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{p.NodeName + "-rdma": resources}})
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Publishing the RDMA devices failed")
		}
		return
	}
	p.published = devices
	p.registry.Devices.WithLabelValues("available").Set(float64(len(ports) - tainted))
	p.registry.Devices.WithLabelValues("tainted").Set(float64(tainted))
}
