package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

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
		p.offers.Serve(ctx, p.selection.Pools, p.ports.State)
	}
	p.publish(ctx)
	p.report()
	p.export()
}

// export gives the metrics what is served now.
func (p *plugin) export() {
	p.metrics.Set(metricsView{
		Devices: p.devices, State: p.ports.State, Device: p.kind.Ports,
		Unit: p.offers.Snapshot(),
	})
}

// refresh tells the kubelet and the API server of ports that changed. A port that went may be gone with its HCA, and one that came back may
// have another rate, so the devices are discovered again.
func (p *plugin) refresh(ctx context.Context) {
	if p.selection == nil {
		return
	}
	p.offers.Update(p.ports.State)
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
