package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/rdma/config"
	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

const (
	// defaultRescan is how often devices are discovered without an event, where no file says.
	defaultRescan = 60 * time.Second
	// firstHealth is how long serving waits for the first reading of all ports, so that the kubelet's first list is the right one.
	firstHealth = 2 * time.Second
	// Between discoveries where something could not be read: the sysfs tree may not be mounted yet, or a driver only be loading.
	firstRetry, lastRetry = time.Second, 10 * time.Second
	// slowDiscovery is when a discovery that does not end is reported: a read of sysfs hangs with the firmware that it asks.
	slowDiscovery = 10 * time.Second
)

// plugin is one running role. Its fields belong to the goroutine of loop, but for what says otherwise.
type plugin struct {
	Options
	registry *metrics.Plugin
	ports    *health.Watcher
	kind     *dra.Kind
	metrics  *portMetrics
	verbs    *verbsEvents  // nil: not listened to
	offers   *offer.Offers // of the pools, to the kubelet

	file      *config.Config // the last good one
	fileError error          // of the newest, where that is no good
	devices   *inventory.Inventory
	exclusive bool // the kernel's RDMA subsystem is in exclusive mode, as the last discovery found it
	selection *pool.Selection
	objects   []pool.Object     // the RDMAPools that select the node
	dra       *draplugin.Plugin // nil: starting, or not served
	published [][]resourceapi.Device
	told      string // the last that was logged of the pools

	interfaces *exclusive.Setter
	setUp      chan struct{} // interfaces were set up, or could not be

	asking   atomic.Bool      // a discovery will be asked for soon
	discover chan struct{}    // asks for a discovery; any goroutine may
	files    chan fileContent // from the configuration's watcher
	found    chan discovery   // from the discoverer
	listed   chan []pool.Object
	started  chan *draplugin.Plugin
	reports  chan map[string]v1alpha1.RDMAPoolNode // holds the newest reports, by RDMAPool
}

type fileContent struct {
	config *config.Config
	err    error
}

type discovery struct {
	devices   *inventory.Inventory
	exclusive bool
	err       error
}

// Run serves until ctx ends. An error means that it cannot serve at all; bad configuration, damaged devices and a missing kubelet are
// waited out.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Files == nil {
		o.Files = &filewatch.Watcher{}
	}
	layouts, err := offer.OpenStore(filepath.Join(o.StateDir, "layouts"))
	if err != nil {
		return err
	}
	var specs *cdi.Dir
	if o.DevicePlugin && o.DevicePluginCDI {
		// Not the DRA driver's name: that one's specs are its claims', and it removes those that it does not know.
		if specs, err = cdi.Open(o.CDIRoot, "pools."+dra.Driver, atomicfile.Writer{}); err != nil {
			return err
		}
	}
	networks, err := newPodNetworks(o)
	if err != nil {
		return err
	}
	served := deviceplugin.NewMetrics()
	kubelet := deviceplugin.NewHost(o.KubeletRoot, o.Files, served)
	p := &plugin{
		Options: o, registry: metrics.New(dra.Driver), ports: health.New(o.SysfsRoot, clock.RealClock{}),
		offers:   offer.NewOffers(offer.Node{Boot: o.BootID(), Nodes: o.deviceNodes(), Specs: specs, Layouts: layouts, Kubelet: kubelet}),
		discover: make(chan struct{}, 1), files: make(chan fileContent), found: make(chan discovery),
		metrics: newPortMetrics(o.SysfsRoot, o.KubeletRoot),
		kind:    dra.NewKind(o.deviceNodes(), networks), listed: make(chan []pool.Object), started: make(chan *draplugin.Plugin),
		reports: make(chan map[string]v1alpha1.RDMAPoolNode, 1),
		setUp:   make(chan struct{}, 1),
	}
	p.interfaces = exclusive.NewSetter(o.Interfaces, p.askReport)
	if o.VerbsEvents {
		p.verbs = p.hearVerbs()
		defer p.verbs.wait()
	}
	p.registry.Registry.MustRegister(append(served.Collectors(), p.metrics, o.Files)...)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(ctx, o.MetricsAddress, p.registry.Registry, nil) })
	if o.DevicePlugin { // else its directory may not even be there
		group.Go(func() error { return kubelet.Run(ctx) })
	}
	group.Go(func() error { p.ports.Run(ctx); return nil })
	group.Go(func() error { p.interfaces.Run(ctx); return nil })
	group.Go(func() error {
		config.Watch(ctx, o.Files, o.ConfigFile, func(c *config.Config, err error) { send(ctx, p.files, fileContent{c, err}) })
		return nil
	})
	group.Go(func() error { p.discoverer(ctx); return nil })
	group.Go(func() error { p.watchDevices(ctx); return nil })
	group.Go(func() error { return p.watchLinks(ctx) })
	if p.Client != nil {
		group.Go(func() error { return p.serveDRA(ctx, networks, p.started) })
	}
	if p.Pools != nil {
		group.Go(func() error { return p.Pools.Watch(ctx, func(pools []pool.Object) { send(ctx, p.listed, pools) }) })
		group.Go(func() error { p.reporter(ctx); return nil })
	}
	group.Go(func() error { return p.loop(ctx) })
	return group.Wait()
}

// loop takes events, one at a time, and brings what is served in line with them.
func (p *plugin) loop(ctx context.Context) error {
	log := klog.FromContext(ctx)
	p.ask()
	rescan := time.NewTicker(defaultRescan)
	defer func() { rescan.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-p.files:
			p.takeFile(ctx, f)
			if interval := p.rescanInterval(); interval > 0 {
				rescan.Stop()
				rescan = time.NewTicker(interval)
			} else {
				rescan.Stop()
			}
			p.apply(ctx)
			p.ask() // The file may have been written because devices changed.
		case d := <-p.found:
			if d.err != nil {
				log.Error(d.err, "Discovery failed; what was found before stays")
				break
			}
			p.devices, p.exclusive = d.devices, d.exclusive
			p.apply(ctx)
			if p.verbs != nil {
				p.verbs.set(ctx, p.devices)
			}
		case p.objects = <-p.listed:
			p.apply(ctx)
		case p.dra = <-p.started:
			p.publish(ctx)
		case <-p.setUp:
			p.report()
		case <-p.ports.Changed():
			p.refresh(ctx)
		case <-rescan.C:
			p.ask()
		}
	}
}

func (p *plugin) rescanInterval() time.Duration {
	if p.file == nil {
		return defaultRescan
	}
	return p.file.Rescan
}

// takeFile keeps the last good configuration.
func (p *plugin) takeFile(ctx context.Context, f fileContent) {
	log := klog.FromContext(ctx)
	p.fileError = f.err
	switch {
	case f.err == nil:
		log.Info("Read the configuration", "file", p.ConfigFile, "pools", len(f.config.Pools))
		p.file = f.config
	case errors.Is(f.err, os.ErrNotExist) && p.file == nil:
		p.fileError = nil
		log.Info("There is no configuration file; pools come from RDMAPools only", "file", p.ConfigFile)
	case f.config != nil:
		if p.file != nil {
			f.config.Keep(p.file)
		}
		p.file = f.config
		log.Error(f.err, "Entries of the configuration cannot be used; the others are, and what was served before stays", "pools",
			len(f.config.Pools))
	case p.file != nil:
		log.Error(f.err, "The configuration cannot be used; the last good one stays")
	default:
		log.Error(f.err, "The configuration cannot be used; there is no earlier one")
	}
}

// ask asks for a discovery.
func (p *plugin) ask() {
	select {
	case p.discover <- struct{}{}:
	default: // One is asked for already.
	}
}

// askReport asks for a report.
func (p *plugin) askReport() {
	select {
	case p.setUp <- struct{}{}:
	default: // One is asked for already.
	}
}

// discoverer discovers when asked, and again after a while where something could not be read. It is a goroutine of its own, since a read
// may hang.
func (p *plugin) discoverer(ctx context.Context) {
	roots := inventory.Roots{Sysfs: p.SysfsRoot, Proc: p.ProcRoot()}
	var again <-chan time.Time
	pause := firstRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.discover:
		case <-again:
		}
		slow := time.AfterFunc(slowDiscovery, func() {
			klog.FromContext(ctx).Error(nil, "Discovery hangs in a read; what was found before stays", "after", slowDiscovery)
		})
		devices, err := inventory.Discover(ctx, roots)
		slow.Stop()
		if again = nil; err != nil || devices.Damaged() {
			again = time.After(pause)
			pause = min(2*pause, lastRetry)
		} else {
			pause = firstRetry
		}
		exclusive, modeErr := p.links().Exclusive()
		// A kernel without RDMA has no mode.
		send(ctx, p.found, discovery{devices, exclusive && modeErr == nil, err})
	}
}

func send[T any](ctx context.Context, c chan<- T, v T) {
	select {
	case c <- v:
	case <-ctx.Done():
	}
}
