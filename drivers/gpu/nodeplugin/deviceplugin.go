package nodeplugin

import (
	"context"
	"fmt"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/legacy"
	"gpufabric.io/drivers/node/deviceplugin"
)

// servePlugin hands the GPUs of --device-plugin out as nvidia.com/gpu until ctx ends: they are asked for like any other device plugin's, so they
// are tainted in DRA before they are counted here.
func (p *plugin) servePlugin(ctx context.Context) error {
	if p.given.directory == "" {
		return nil
	}
	gpus := legacy.Select(p.kind.Hardware().Node, p.options.DevicePlugin)
	uuids := make([]string, len(gpus))
	for i, g := range gpus {
		uuids[i] = g.UUID
	}
	// Asking for none gives back what an earlier run with other flags asked for.
	if err := p.given.directory.Ask(legacy.Owner, uuids...); err != nil {
		return fmt.Errorf("--device-plugin: %w", err)
	}
	if len(gpus) == 0 {
		return nil
	}
	set, err := p.kind.Hardware().Edits(ctx)
	if err != nil {
		return err
	}
	backend, err := legacy.New(gpus, set, p.options.CDIRoot, p.kind.Lock)
	if err != nil {
		return err
	}
	if err := p.given.directory.Await(ctx, uuids...); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	counts := deviceplugin.NewMetrics()
	p.metrics.Registry.MustRegister(counts.Collectors()...)
	host := deviceplugin.NewHost(p.options.KubeletRoot, counts)
	resource, err := host.Serve(legacy.Resource, backend, backend.Devices(p.healthy))
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
