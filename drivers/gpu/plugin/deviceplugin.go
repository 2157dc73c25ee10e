package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gpufabric.io/drivers/gpu/extendedresource"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/deviceplugin"
)

// askForPlugin asks for the GPUs of --device-plugin, but for those of device plugins that may have them no more: takeBack gives these back
// first. What an earlier run asked for stays asked for: pods may have a GPU that does not answer now, or that the flag names no more, and
// takeBack knows when it is free.
func (p *plugin) askForPlugin() error {
	if p.given.directory == "" {
		return nil
	}
	standing, err := p.given.directory.Requests()
	if err != nil {
		return fmt.Errorf("--device-plugin: %w", err)
	}
	uuids := slices.DeleteFunc(uuidsOf(extendedresource.Select(p.kind.Hardware().Node, p.options.DevicePlugin)), func(uuid string) bool {
		owner, asked := standing[uuid]
		return asked && !p.mayHave(owner, uuid)
	})
	for uuid, owner := range standing {
		if owner == extendedresource.Owner {
			uuids = append(uuids, uuid)
		}
	}
	if err := p.given.directory.Ask(extendedresource.Owner, uuids...); err != nil {
		return fmt.Errorf("--device-plugin: %w", err)
	}
	return nil
}

func uuidsOf(gpus []*inventory.GPU) []string {
	uuids := make([]string, len(gpus))
	for i, g := range gpus {
		uuids[i] = g.UUID
	}
	return uuids
}

// lackingRetry is how often device nodes are looked for that are missing: a /dev tells nobody of those that come.
const lackingRetry = 5 * time.Second

// mayHave says whether a device plugin may have a GPU. One of --device-plugin may though it is not to be seen now.
func (p *plugin) mayHave(owner, uuid string) bool {
	if owner == extendedresource.Owner {
		return slices.Contains(p.options.DevicePlugin, "all") || slices.Contains(p.options.DevicePlugin, uuid)
	}
	return slices.Contains(p.options.HandoverTo, owner)
}

// servePlugin hands the GPUs of --device-plugin out as nvidia.com/gpu until ctx ends: they are asked for like any other device plugin's, so
// they are tainted in DRA before they are counted here.
func (p *plugin) servePlugin(ctx context.Context) error {
	gpus := extendedresource.Select(p.kind.Hardware().Node, p.options.DevicePlugin)
	if p.given.directory == "" || len(gpus) == 0 {
		return nil
	}
	set, err := p.kind.Hardware().Edits(ctx)
	if err != nil {
		return err
	}
	for set.Lacking(gpus...) != nil { // told already; what is handed out now would have no device node
		select {
		case <-time.After(lackingRetry):
		case <-ctx.Done():
			return nil
		}
		if set, err = p.kind.Hardware().Edits(ctx); err != nil {
			return err
		}
	}
	backend, err := extendedresource.New(gpus, set, p.options.CDIRoot, p.kind.Lock)
	if err != nil {
		return err
	}
	if err := p.given.directory.Await(ctx, p.options.Files, uuidsOf(gpus)...); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	counts := deviceplugin.NewMetrics()
	p.metrics.Registry.MustRegister(counts.Collectors()...)
	host := deviceplugin.NewHost(p.options.KubeletRoot, p.options.Files, counts)
	host.Trouble = p.report
	p.resources.Store(host)
	resource, err := host.Serve(extendedresource.Resource, backend, backend.Devices(p.healthy))
	if err != nil {
		return err
	}
	stop := p.health.onChange(func() { resource.Update(backend.Devices(p.healthy)) })
	defer stop()
	return host.Run(ctx)
}

// healthy says whether a whole GPU may be given to new pods.
func (p *plugin) healthy(g *inventory.GPU) bool {
	for _, f := range p.monitor.Faults() {
		if f.GPU == g.UUID && f.Fatal {
			return false
		}
	}
	return true
}
