package draplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/capability"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/devicemetadata"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/keylock"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/occupancy"
	"gpufabric.io/drivers/node/options"
)

// Config is the configuration of a plugin.
type Config struct {
	// Driver is the DRA driver's name ("gpu.nvidia.com"), Pool that of the node's pool.
	Driver, Pool string
	Node         options.Node
	// NodeUID is the Node object's UID; empty: it is looked up.
	NodeUID  types.UID
	Client   kubernetes.Interface
	Preparer Preparer
	Metrics  *metrics.Plugin
	// Recorder writes Events on claims and pods.
	Recorder record.EventRecorder
	// Missing is called with the features that the cluster lacks, before the first publication and when they change; nil: with none.
	Missing func(capability.Missing)
	// Writer writes state and CDI files; use the zero value outside tests.
	Writer atomicfile.Writer
	// Ledger records which claim has which device; nil: the plugin's own.
	Ledger *ledger.Ledger

	takeover time.Duration // tests shorten takeoverPause
}

// Plugin is a running node plugin.
type Plugin struct {
	config Config
	bootID string
	state  *claimstate.Store
	cdi    *cdi.Dir
	// metadata are the files by which containers find the attributes of their devices.
	metadata devicemetadata.Files
	locks    keylock.Locks
	ledger   *ledger.Ledger
	report   *reporter
	// cgroups are the node's, where the claims' containers are seen. releases are the claims that wait for theirs.
	cgroups  occupancy.Cgroups
	releases releases
	helper   *kubeletplugin.Helper
	// registrar is the socket by which the kubelet detects the plugin.
	registrar *socket
	// registration is the kubelet's last answer to the plugin's registration.
	registration registration
	// published is the last publication of the node's slices. capabilities are the fields of it that the API server keeps.
	published    publication
	slices       nodeSlices
	capabilities *capabilities
	// lock keeps a second plugin of this role out of the state directory.
	lock io.Closer

	first sync.Once // publishing

	// gate is held for reading by each of the kubelet's calls, and closed when the plugin stops.
	gate sync.RWMutex
	shut bool

	cancel context.CancelCauseFunc
	ctx    context.Context // ends when the plugin stops; its cause is the reason
	wg     sync.WaitGroup
}

// Start recovers the state of the last run, then registers with the kubelet, once no other plugin serves the driver's name. The plugin
// runs until ctx ends, Stop is called, a server fails or another plugin registers; see Done and Err. Work with the API server runs in the
// background, so a plugin starts without one.
func Start(ctx context.Context, config Config) (*Plugin, error) {
	if err := config.Node.Validate(); err != nil {
		return nil, err
	}
	p := &Plugin{config: config, bootID: config.Node.BootID(), report: newReporter(config), ledger: config.Ledger,
		capabilities: newCapabilities(config)}
	if p.ledger == nil {
		p.ledger = &ledger.Ledger{}
	}
	if p.config.Node.Files == nil {
		p.config.Node.Files = &filewatch.Watcher{}
	}
	p.cgroups.Root = config.Node.Cgroups().Path
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	if err := p.start(); err != nil {
		p.Stop()
		return nil, fmt.Errorf("start plugin %s: %w", config.Driver, err)
	}
	return p, nil
}

func (p *Plugin) start() error {
	lock, err := claimstate.Lock(p.ctx, p.config.Node.StateDir)
	if err != nil {
		return err
	}
	p.lock = lock
	if err := p.open(); err != nil {
		return err
	}
	if err := p.recoverLocal(p.ctx); err != nil {
		return err
	}
	left := p.state.List() // later records come from claims that were just read from the API
	pluginDir := filepath.Join(p.config.Node.KubeletRoot, "plugins", p.config.Driver)
	registryDir := filepath.Join(p.config.Node.KubeletRoot, "plugins_registry")
	for _, dir := range []string{pluginDir, registryDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make the kubelet's plugin directory (is --kubelet-root right?): %w", err)
		}
		if err := checkSocketPath(dir, p.config.Driver); err != nil {
			return err
		}
	}
	if err := p.awaitTurn(p.ctx, registryDir); err != nil {
		return err
	}
	registered := p.config.Node.Files.Entries(p.ctx, registryDir)
	helper, err := kubeletplugin.Start(p.ctx, p.served(),
		kubeletplugin.DriverName(p.config.Driver),
		kubeletplugin.NodeName(p.config.Node.NodeName),
		kubeletplugin.NodeUID(p.config.NodeUID),
		kubeletplugin.KubeClient(p.config.Client),
		kubeletplugin.PluginDataDirectoryPath(pluginDir),
		kubeletplugin.RegistrarDirectoryPath(registryDir),
		kubeletplugin.PluginListener(func(ctx context.Context, path string) (net.Listener, error) { return listen(ctx, path) }),
		kubeletplugin.RegistrarListener(p.listenRegistrar),
		kubeletplugin.GRPCInterceptor(p.observeCall),
		// A claim that waits (for a daemon, for a MIG device) must not delay other claims: it may be waiting for one of them.
		kubeletplugin.Serialize(false),
	)
	if err != nil {
		return fmt.Errorf("register with the kubelet under %s: %w", p.config.Node.KubeletRoot, err)
	}
	p.helper = helper
	p.registration.offered(time.Now())
	p.slices = nodeSlices{driver: p.config.Driver, node: p.config.Node.NodeName, ctx: p.ctx, owner: p.config.NodeUID,
		options: resourceslice.Options{KubeClient: p.config.Client, ErrorHandler: p.publishFailed}}
	p.published.send = func(_ context.Context, resources resourceslice.DriverResources) error {
		return p.slices.publish(p.publishable(resources))
	}
	p.wg.Go(func() { p.followOthers(p.ctx, registryDir, registered) })
	p.wg.Go(func() { p.slices.follow(p.ctx, ownerInterval) })
	p.wg.Go(func() { p.published.keep(p.ctx, republishInterval) })
	p.wg.Go(func() { p.followCapabilities(p.ctx) })
	p.wg.Go(func() { p.takeOrders(p.ctx) })
	specs := p.config.Node.Files.Entries(p.ctx, p.config.Node.CDIRoot)
	p.wg.Go(func() {
		p.recoverFromAPI(p.ctx, left)
		p.keepSpecs(p.ctx, specs)
	})
	p.wg.Go(func() { (&cdi.Watch{Unread: p.unread, Report: p.report.node}).Run(p.ctx) })
	return nil
}

// unread returns the claims whose CDI specs were written before a time, and that no process has read.
func (p *Plugin) unread(before time.Time) ([]string, error) {
	claims, err := p.cdi.Unread(before)
	var names []string
	for _, uid := range claims {
		if record, ok := p.state.Get(uid); ok {
			names = append(names, "claim "+record.Namespace+"/"+record.Name)
		}
	}
	return names, err
}

// open opens the state and the CDI directory, and reports unreadable records.
func (p *Plugin) open() error {
	logger := klog.FromContext(p.ctx)
	dir, err := cdi.Open(p.config.Node.CDIRoot, p.config.Driver, p.config.Writer)
	if err != nil {
		return err
	}
	state, unreadable, err := claimstate.Open(filepath.Join(p.config.Node.StateDir, "claims"), p.config.Writer)
	if err != nil {
		return err
	}
	for _, file := range unreadable {
		logger.Error(file.Err, "Claim state set aside", "file", file.File, "movedTo", file.MovedTo)
		p.report.node("ClaimStateUnreadable", file.String())
	}
	p.config.Metrics.Registry.MustRegister(state.Collector())
	p.cdi, p.state = dir, state
	p.metadata = devicemetadata.Files{Directory: filepath.Join(p.config.Node.StateDir, "metadata"), Driver: p.config.Driver,
		Writer: p.config.Writer}
	p.config.Metrics.Claims.Set(float64(state.Len()))
	return nil
}

// checkSocketPath returns a clear error where bind would return "invalid argument": a socket's path has at most 107 bytes.
func checkSocketPath(dir, driver string) error {
	const limit = 107
	if path := filepath.Join(dir, driver+"-reg.sock"); len(path) > limit {
		return fmt.Errorf("the socket path %s has %d bytes, at most %d are allowed: choose a shorter --kubelet-root", path, len(path), limit)
	}
	return nil
}

// healthPlugin is a plugin whose Preparer also serves device health. Other plugins must not advertise the service: the kubelet logs an
// error for every call without an answer.
type healthPlugin struct {
	*Plugin
	drahealth.DRAResourceHealthServer
}

func (p *Plugin) served() kubeletplugin.DRAPlugin {
	if health, ok := p.config.Preparer.(drahealth.DRAResourceHealthServer); ok {
		return healthPlugin{Plugin: p, DRAResourceHealthServer: health}
	}
	return p
}

// Publish makes resources the content of this node's ResourceSlices. It may be called any number of times. The first call waits for
// the API server.
func (p *Plugin) Publish(resources resourceslice.DriverResources) error {
	counts := map[string]int{"available": 0, "tainted": 0}
	for _, pool := range resources.Pools {
		for _, slice := range pool.Slices {
			for _, device := range slice.Devices {
				if len(device.Taints) > 0 {
					counts["tainted"]++
				} else {
					counts["available"]++
				}
			}
		}
	}
	for state, count := range counts {
		p.config.Metrics.Devices.WithLabelValues(state).Set(float64(count))
	}
	p.first.Do(func() {
		p.Learn()
		if err := p.createSlices(p.ctx, p.publishable(resources)); err != nil {
			klog.FromContext(p.ctx).Info("The first ResourceSlices are left to the controller", "err", err)
		}
	})
	if err := p.published.publish(p.ctx, resources); err != nil {
		return fmt.Errorf("publish the devices of %s: %w", p.config.Driver, err)
	}
	return nil
}

// Records returns the claims that the plugin holds, sorted by UID.
func (p *Plugin) Records() []claimstate.Record { return p.state.List() }

// Done is closed when the plugin stops.
func (p *Plugin) Done() <-chan struct{} { return p.ctx.Done() }

// Err returns the reason why the plugin stopped: nil if ctx ended or Stop was called.
func (p *Plugin) Err() error {
	if cause := context.Cause(p.ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, errStopped) {
		return cause
	}
	return nil
}

var errStopped = errors.New("plugin stopped")

// enter admits one of the kubelet's calls, unless the plugin stops. Call leave after it.
func (p *Plugin) enter() (leave func(), err error) {
	p.gate.RLock()
	if p.shut {
		p.gate.RUnlock()
		return nil, fmt.Errorf("plugin %s: %w", p.config.Driver, errStopped)
	}
	return p.gate.RUnlock, nil
}

// callPatience is how long the kubelet's calls may run on when the plugin stops.
const callPatience = 3 * time.Second

// Stop stops the plugin and waits for everything that it runs, including the kubelet's calls. After that the caller may remove the
// resources of their handlers. Prepared claims stay prepared.
func (p *Plugin) Stop() {
	p.cancel(errStopped)
	// The kubelet's calls must end before their connections close. Otherwise the answer to the call that released a drained node's
	// last claim would be lost, and the kubelet's next call would find no server.
	ended := make(chan struct{})
	go func() {
		p.gate.Lock()
		p.shut = true
		p.gate.Unlock()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(callPatience):
	}
	p.helper.Stop() // this ends the calls that still wait
	<-ended
	p.slices.stop()
	p.wg.Wait()
	if p.lock != nil {
		_ = p.lock.Close() // this releases the lock; there is nothing to lose in the file
	}
}

// publishFailed receives errors of publishing. They are retried.
func (p *Plugin) publishFailed(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg, "driver", p.config.Driver)
	p.config.Metrics.Errors.WithLabelValues("publish", "PublishFailed").Inc()
	p.droppedFields(err)
}

// HandleError receives background errors from the kubelet helper.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.publishFailed(ctx, err, msg)
		return
	}
	p.cancel(fmt.Errorf("%s: %w", msg, err))
}
