package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/occupancy"
	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

// firstHealth is how long to wait for the first reading of all ports before serving, so that the kubelet's first list is right.
const firstHealth = 2 * time.Second

// plugin is one running role. Each of its parts runs by itself. Only the loop takes their results, makes a picture from them, and
// gives it to the parts that serve.
type plugin struct {
	// These provide input: the configuration's file, the devices, the health of their ports, and events that require another look.
	configuration *configuration
	scanner       *scanner
	ports         *health.Watcher
	events        *events
	verbs         *verbsEvents // nil: not listened to
	objects       chan []pool.Object
	// These serve: pools as extended resources where devicePlugin is set, devices to claims, reports, interfaces, metrics and the log.
	devicePlugin bool
	offers       *offer.Offers
	claims       *claims
	reporter     *reporter
	interfaces   *exclusive.Setter
	metrics      *portMetrics
	nodes        inventory.DeviceNodes
	journal      journal
}

// picture is the role's knowledge of the node at one moment, and the selection made from it. It is replaced as a whole, and never
// changed.
type picture struct {
	devicePlugin bool                 // pools are served to the kubelet as extended resources
	devices      *inventory.Inventory // nil: the first discovery has not finished
	exclusive    bool                 // the kernel's RDMA subsystem is in exclusive mode
	objects      []pool.Object        // the RDMAPools that select the node
	selection    *pool.Selection      // which devices the pools get; nil as long as devices is
}

// closed reports whether no container can open a pool's units, because the kernel's RDMA subsystem is in exclusive mode.
func (n picture) closed(p *pool.Pool) bool { return n.exclusive && p.Closed(n.devicePlugin) }

// Run serves until ctx ends. An error means that it cannot serve at all. With a bad configuration, damaged devices or a missing
// kubelet it waits.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Files == nil {
		o.Files = &filewatch.Watcher{}
	}
	registry := metrics.New(dra.Driver)
	served := deviceplugin.NewMetrics()
	kubelet := deviceplugin.NewHost(o.KubeletRoot, o.Files, served)
	kubelet.Holders = o.holders()
	if o.Client != nil {
		recorder, stop := host.Recorder(ctx, o.Client, Role, o.NodeName)
		defer stop()
		kubelet.Trouble = host.NodeTrouble(recorder, o.NodeName)
	}
	networks, err := newPodNetworks(o)
	if err != nil {
		return err
	}
	layouts, err := offer.OpenStore(filepath.Join(o.StateDir, "layouts"))
	if err != nil {
		return err
	}
	offers, err := newOffers(o, kubelet, layouts)
	if err != nil {
		return err
	}
	serving := newClaims(o, networks, registry)
	serving.unreadable = append(layouts.Unreadable(), networks.unreadable...)
	p := newPlugin(o, offers, serving)
	registry.Registry.MustRegister(append(served.Collectors(), p.metrics, o.Files, layouts.Collector(), networks.mover.Collector())...)

	group, ctx := errgroup.WithContext(ctx)
	answers := func() error { //nolint:contextcheck // it has the plugin's context
		return errors.Join(p.claims.Answers(), kubelet.Answers(), filewatch.Removed(o.CDIRoot), filewatch.Removed(o.StateDir))
	}
	group.Go(func() error {
		return metrics.Guard(o.MetricsAuth, o.Client).Serve(ctx, o.MetricsAddress, registry.Registry, answers, p.claims.Started)
	})
	if o.DevicePlugin { // otherwise its directory may not even exist
		group.Go(func() error { return kubelet.Run(ctx) })
	}
	if o.Client != nil {
		group.Go(func() error { return p.claims.Run(ctx) })
	}
	if o.Pools != nil {
		group.Go(func() error { return o.Pools.Watch(ctx, func(pools []pool.Object) { send(ctx, p.objects, pools) }) })
		group.Go(func() error { p.reporter.Run(ctx); return nil })
	}
	if p.verbs != nil {
		group.Go(func() error { p.verbs.Run(ctx); return nil })
	}
	for _, part := range []interface{ Run(context.Context) }{p.configuration, p.scanner, p.ports, p.events, p.interfaces} {
		group.Go(func() error { part.Run(ctx); return nil })
	}
	group.Go(func() error { p.loop(ctx); return nil })
	return group.Wait()
}

// holders follows the pods that have units of pools.
func (o *Options) holders() *deviceplugin.Holders {
	return deviceplugin.NewHolders(o.KubeletRoot, &occupancy.Cgroups{Root: o.Cgroups().Path},
		filepath.Join(o.StateDir, "device-plugin-pods.json"), holderKey)
}

// holderKey is the key of the devices of a unit. Units of exclusive pools are named after their HCA, which a pod keeps when it gets
// into a pool of another name; those of shared pools are numbers of the resource.
func holderKey(resource, id string) string {
	if strings.Trim(id, "0123456789") == "" {
		return resource + "/" + id
	}
	return id
}

// newOffers makes the pools of the kubelet.
func newOffers(o Options, kubelet *deviceplugin.Host, layouts *offer.Store) (*offer.Offers, error) {
	var specs *cdi.Dir
	var err error
	if o.DevicePlugin && o.DevicePluginCDI {
		// Not the DRA driver's name: the specs of that name belong to claims, and the driver removes those without a claim.
		if specs, err = cdi.Open(o.CDIRoot, "pools."+dra.Driver, atomicfile.Writer{}); err != nil {
			return nil, err
		}
	}
	return offer.NewOffers(offer.Node{Boot: o.BootID(), Nodes: o.deviceNodes(), Specs: specs, Layouts: layouts, Kubelet: kubelet}), nil
}

// newPlugin makes the parts.
func newPlugin(o Options, offers *offer.Offers, served *claims) *plugin {
	ports := health.New(o.SysfsRoot, clock.RealClock{})
	scanner := newScanner(inventory.Roots{Sysfs: o.SysfsRoot, Proc: o.ProcRoot()}, o.links())
	interfaces := exclusive.NewSetter(o.Interfaces)
	p := &plugin{
		configuration: newConfiguration(o.ConfigFile, o.Files), scanner: scanner, ports: ports,
		events:       &events{files: o.Files, dev: o.Dev().Path, ports: ports, scanner: scanner},
		objects:      make(chan []pool.Object),
		devicePlugin: o.DevicePlugin, offers: offers, claims: served, interfaces: interfaces,
		metrics:  newPortMetrics(o.SysfsRoot, o.KubeletRoot),
		nodes:    o.deviceNodes(),
		reporter: &reporter{pools: o.Pools, node: o.NodeName, ports: ports, offers: offers, interfaces: interfaces},
	}
	if o.VerbsEvents {
		p.verbs = newVerbsEvents(o.deviceNodes(), o.OpenVerbs, ports, scanner)
	}
	return p
}

// loop takes the parts' results one at a time, and updates the served resources.
func (p *plugin) loop(ctx context.Context) {
	p.scanner.Ask()
	rescan := time.NewTicker(defaultRescan)
	defer func() { rescan.Stop() }()
	now := picture{devicePlugin: p.devicePlugin}
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-p.configuration.read:
			p.configuration.take(ctx, f)
			rescan.Stop()
			if interval := p.configuration.rescan(); interval > 0 {
				rescan = time.NewTicker(interval)
			}
			now = p.apply(ctx, now)
			p.scanner.Ask() // The file may have been written because devices changed.
		case d := <-p.scanner.found:
			if d.err != nil {
				klog.FromContext(ctx).Error(d.err, "Discovery failed; devices found before stay")
				break
			}
			now.devices, now.exclusive = d.devices, d.exclusive
			now = p.apply(ctx, now)
			if p.verbs != nil {
				p.verbs.Set(now.devices)
			}
		case now.objects = <-p.objects:
			now = p.apply(ctx, now)
		case <-p.interfaces.Changed():
			p.reporter.Set(now)
		case <-p.ports.Changed():
			p.refresh(now)
		case <-rescan.C:
			p.scanner.Ask()
		}
	}
}

// apply selects the devices of the pools again, and updates the served resources.
func (p *plugin) apply(ctx context.Context, now picture) picture {
	if now.devices == nil {
		return now
	}
	now.selection = pool.Select(pool.Definitions(p.configuration.good, now.objects), now.devices)
	watched := watchedPorts(now.devices, p.nodes)
	p.journal.write(klog.FromContext(ctx), now, watched...)
	p.ports.Set(watched)
	p.interfaces.Set(now.selection.Nets())
	known, cancel := context.WithTimeout(ctx, firstHealth)
	defer cancel()
	p.ports.Known(known)
	if p.devicePlugin {
		p.offers.Serve(ctx, now.selection.Pools, p.ports.State)
	}
	p.claims.Set(now, p.ports.State)
	p.reporter.Set(now)
	p.metrics.Set(metricsView{Devices: now.devices, State: p.ports.State, Device: p.claims.kind.Ports, Unit: p.offers.Snapshot()})
	return now
}

// refresh reports changed ports to the kubelet and the API server. It also discovers the devices again: a port that disappeared may
// be gone with its HCA, and one that came back may have another rate.
func (p *plugin) refresh(now picture) {
	if now.selection == nil {
		return
	}
	p.offers.Update(p.ports.State)
	p.claims.Set(now, p.ports.State)
	p.reporter.Set(now)
	p.scanner.AskSoon()
}

// watchedPorts are the ports of all HCAs.
func watchedPorts(devices *inventory.Inventory, nodes inventory.DeviceNodes) []health.Port {
	var ports []health.Port
	for i := range devices.HCAs {
		ports = append(ports, health.PortsOf(&devices.HCAs[i], nodes)...)
	}
	return ports
}

func send[T any](ctx context.Context, c chan<- T, v T) {
	select {
	case c <- v:
	case <-ctx.Done():
	}
}
