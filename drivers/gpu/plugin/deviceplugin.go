package plugin

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/extendedresource"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/deviceplugin"
)

func uuidsOf(gpus []*inventory.GPU) []string {
	uuids := make([]string, len(gpus))
	for i, g := range gpus {
		uuids[i] = g.UUID
	}
	return uuids
}

// lackingRetry is how often to look for missing device nodes: /dev does not give a notification for new ones.
const lackingRetry = 5 * time.Second

// countedGPUs offers the GPUs of --device-plugin as nvidia.com/gpu. They are requested like any other device plugin's, so they are
// tainted in DRA before they are counted here.
type countedGPUs struct {
	options  Options
	kind     *claims.Preparer
	monitor  *health.Monitor
	registry *prometheus.Registry
	events   nodeEvents
	// holders are the pods that have the GPUs, by the GPU's UUID.
	holders *deviceplugin.Holders
	// serving is the server for the kubelet, once it runs. The liveness probe may come before that.
	serving atomic.Pointer[deviceplugin.Host]
}

// answers returns the error that has stopped it from serving the kubelet.
func (c *countedGPUs) answers() error {
	if host := c.serving.Load(); host != nil {
		return host.Answers()
	}
	return nil
}

// Run serves the kubelet until ctx ends.
func (c *countedGPUs) Run(ctx context.Context) error {
	directory := handover.Directory(c.options.HandoverDir)
	gpus := extendedresource.Select(c.kind.Hardware().Node, c.options.DevicePlugin)
	if directory == "" || len(gpus) == 0 {
		return nil
	}
	set, err := c.kind.Hardware().Edits(ctx)
	if err != nil {
		return err
	}
	for set.Lacking(gpus...) != nil { // reported already; a container would have no device node now
		select {
		case <-time.After(lackingRetry):
		case <-ctx.Done():
			return nil
		}
		if set, err = c.kind.Hardware().Edits(ctx); err != nil {
			return err
		}
	}
	find := func(ctx context.Context) (*edits.Set, error) { return c.kind.Hardware().Edits(ctx) } // the hardware may be read again
	backend, err := extendedresource.New(ctx, gpus, find, c.options.CDIRoot, c.kind.Lock)
	if err != nil {
		return err
	}
	if err := directory.Await(ctx, c.options.Files, uuidsOf(gpus)...); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	counts := deviceplugin.NewMetrics()
	c.registry.MustRegister(counts.Collectors()...)
	host := deviceplugin.NewHost(c.options.KubeletRoot, c.options.Files, counts)
	host.Trouble, host.Holders = c.events.Report, c.holders
	c.serving.Store(host)
	faults, changed := c.monitor.Watch()
	resource, err := host.Serve(extendedresource.Resource, backend, backend.Devices(healthy(faults)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() {
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			faults, changed = c.monitor.Watch()
			resource.Update(backend.Devices(healthy(faults)))
		}
	})
	return host.Run(ctx)
}

// healthy reports whether a whole GPU may be given to new pods.
func healthy(faults []health.Fault) func(*inventory.GPU) bool {
	return func(g *inventory.GPU) bool {
		return !slices.ContainsFunc(faults, func(f health.Fault) bool { return f.GPU == g.UUID && f.Fatal })
	}
}
