package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

// servedPool is a pool that the kubelet knows of.
type servedPool struct {
	offer    *offer.Offer
	resource *deviceplugin.Resource
}

// apply brings the served resources in line with the configuration and the devices.
func (p *plugin) apply(ctx context.Context) {
	if p.devices == nil {
		return // The first discovery is under way.
	}
	p.selection = pool.Select(pool.Definitions(p.file, p.objects), p.devices)
	p.tell(ctx)
	p.ports.Set(watchedPorts(p.devices))
	p.interfaces.Set(p.selection.Nets())
	known, cancel := context.WithTimeout(ctx, firstHealth)
	defer cancel()
	p.ports.Known(known)
	if p.DevicePlugin {
		p.serve(ctx)
	}
	p.publish(ctx)
	p.report()
	p.export()
}

// export gives the metrics what is served now.
func (p *plugin) export() {
	offers := make(map[string]*offer.Offer, len(p.served))
	for name, s := range p.served {
		offers[name] = s.offer
	}
	p.metrics.Set(metricsView{
		Devices: p.devices, State: p.ports.State, Device: p.kind.Ports,
		Unit: func(resource, id string) *inventory.HCA {
			if o := offers[resource]; o != nil {
				return o.Holding(id)
			}
			return nil
		},
	})
}

// serve makes the kubelet's resources those of the selection.
func (p *plugin) serve(ctx context.Context) {
	log := klog.FromContext(ctx)
	wanted := make(map[string]bool)
	for _, selected := range p.selection.Pools {
		name := selected.Resource()
		wanted[name] = true
		s := p.served[name]
		if s == nil {
			kept, err := p.layouts.Load(name)
			if err != nil {
				log.Error(err, "The units of a pool are divided anew", "resource", name)
			}
			s = &servedPool{offer: offer.New(p.deviceNodes(), kept.Units, p.specs)}
			if kept.Boot == p.boot {
				s.offer.Resume(kept.Pool)
			}
		}
		s.offer.Set(selected)
		if err := s.offer.WriteSpec(); err != nil {
			log.Error(err, "A pool's CDI spec is not what it should be", "resource", name)
		}
		if !selected.Exclusive() {
			if err := p.layouts.Save(name, offer.Kept{Boot: p.boot, Pool: selected.RDMAPoolConfig, Units: s.offer.Layout()}); err != nil {
				log.Error(err, "The division of a pool's units would not outlive a restart", "resource", name)
			}
		}
		devices := s.offer.Devices(p.ports.State)
		if s.resource != nil {
			s.resource.Update(devices)
			continue
		}
		resource, err := p.kubelet.Serve(name, s.offer, devices)
		if err != nil {
			log.Error(err, "A pool is not served")
			continue
		}
		s.resource = resource
		p.served[name] = s
	}
	for name, s := range p.served {
		if !wanted[name] {
			log.Info("A pool is no longer served", "resource", name)
			s.resource.Stop()
			delete(p.served, name)
		}
	}
	p.sweepSpecs(ctx)
}

// sweepSpecs removes the CDI specs of pools that are not served: those of an earlier run.
func (p *plugin) sweepSpecs(ctx context.Context) {
	if p.specs == nil {
		return
	}
	kept := make(map[types.UID]bool)
	for _, s := range p.served {
		kept[s.offer.SpecName()] = true
	}
	names, err := p.specs.List()
	for _, name := range names {
		if !kept[name] {
			err = errors.Join(err, p.specs.Remove(name))
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "CDI specs of an earlier run stay behind")
	}
}

// refresh tells the kubelet and the API server of ports that changed. A port that went may be gone with its HCA, and one that came back may have
// another rate, so the devices are discovered anew.
func (p *plugin) refresh(ctx context.Context) {
	if p.selection == nil {
		return
	}
	for _, s := range p.served {
		s.resource.Update(s.offer.Devices(p.ports.State))
	}
	p.publish(ctx)
	p.report()
	p.askSoon()
}

// tell logs what became of the devices, where it is not what was logged last.
func (p *plugin) tell(ctx context.Context) {
	log := klog.FromContext(ctx)
	var lines []func()
	var text strings.Builder
	say := func(failure bool, message string, values ...any) {
		fmt.Fprintln(&text, message, values)
		lines = append(lines, func() {
			if failure {
				log.Error(nil, message, values...)
			} else {
				log.Info(message, values...)
			}
		})
	}
	for _, selected := range p.selection.Pools {
		names := make([]string, len(selected.Members))
		for i, m := range selected.Members {
			names[i] = m.HCA.Name
		}
		say(false, "Pool", "resource", selected.Resource(), "source", selected.Source, "devices", names)
		if p.exclusive && selected.Closed(p.DevicePlugin) {
			say(true, "A pool's units cannot be opened", "resource", selected.Resource(), "reason", exclusive.NotOpened)
		}
		for _, conflict := range selected.Conflicts {
			say(false, "Two pools claim one device", "pool", selected.Source, "device", conflict)
		}
	}
	for _, source := range slices.Sorted(maps.Keys(p.selection.Refused)) {
		say(true, "A pool is not served", "pool", source, "reason", p.selection.Refused[source])
	}
	for _, s := range p.devices.Skipped {
		if s.Damaged {
			say(true, "A device is skipped", "device", s.Name, "reason", s.Reason)
		}
	}
	if text.String() == p.told {
		return
	}
	p.told = text.String()
	for _, line := range lines {
		line()
	}
}

// watchedPorts are the ports of all HCAs.
func watchedPorts(devices *inventory.Inventory) []health.Port {
	var ports []health.Port
	for i := range devices.HCAs {
		ports = append(ports, health.Ports(&devices.HCAs[i].Device)...)
	}
	return ports
}
