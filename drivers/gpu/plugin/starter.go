package plugin

import (
	"cmp"
	"context"
	"errors"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/sharing"
	nvidia "gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
)

// starter runs the role, and starts it again within the process when a GPU was plugged in. NVML only lists the GPUs that were there
// when it was started, so it must be started again while it is unused. To the kubelet this looks like a restart of the plugin.
// MPS control daemons keep running.
type starter struct {
	options Options
	lib     nvml.Interface
	client  kubernetes.Interface
	objects dynamic.Interface
	// enter runs programs of the driver.
	enter  func(enclosure, program string, args ...string) *exec.Cmd
	tuning tuning
	// current is the plugin that runs; interrupt ends its run.
	current   atomic.Pointer[plugin]
	interrupt atomic.Pointer[context.CancelCauseFunc]
	// waits: the role waits through no fault of its own: there is no driver, or the GPUs are drained.
	waits atomic.Bool
	// drain has the state of the drain: drained GPUs must not be opened.
	drain *drain.Coordinator
	// driver is the state of the node's driver.
	driver driverState
}

func (s *starter) run(ctx context.Context) error {
	if err := s.options.Validate(); err != nil {
		return err
	}
	if s.options.Files == nil {
		s.options.Files = &filewatch.Watcher{}
	}
	o := s.options
	recorder, stop := host.Recorder(ctx, s.client, role, o.NodeName)
	defer stop()
	runner := programs.Runner{Driver: o.Driver().Locate, Enter: s.enter}
	mps, end := daemons(o, runner)
	defer end()
	gpus := newBus(o.SysfsRoot)
	next := func() *plugin {
		measured := metrics.New(devices.Driver)
		measured.Registry.MustRegister(o.Files)
		p := &plugin{options: o, lib: s.lib, client: s.client, objects: s.objects, metrics: measured,
			events: nodeEvents{recorder: recorder, node: o.NodeName}, tuning: s.tuning, mps: mps, programs: runner, driver: &s.driver, bus: gpus}
		s.current.Store(p)
		return p
	}
	p := next()
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	// The probes are served from the start: the kubelet probes the role while it waits for a driver.
	wg.Go(func() {
		gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return s.current.Load().metrics.Registry.Gather() })
		access := metrics.Guard(o.MetricsAuth, s.client)
		alive := func() error { return s.current.Load().alive() } //nolint:contextcheck // a probe has the plugin's context
		if err := access.Serve(ctx, o.MetricsAddress, gather, alive, s.ready); err != nil {
			cancel(err)
		}
	})
	wg.Go(func() { s.driver.run(ctx, conditions{client: s.client, node: o.NodeName}, pci.NewFS(o.SysfsRoot)) })
	var err error
	if s.drain, err = drain.NewCoordinator(o.Drain(), s); err != nil {
		klog.FromContext(ctx).Error(err, "The state of an earlier drain", "drained", s.drain.Wanted())
	}
	wg.Go(func() { s.drain.Run(ctx, s.client, o.NodeName, o.StateDir) })
	for ; ; p = next() {
		s.waits.Store(true)
		err := s.awaitUndrain(ctx, p)
		s.waits.Store(false)
		if err != nil {
			return ended(ctx) // ended while it was drained
		}
		err = s.once(ctx, p)
		if ctx.Err() != nil {
			return ended(ctx) // it explains more than the errors of the interrupted calls, possibly of a start
		}
		if !errors.Is(err, errPluggedIn) && !errors.Is(err, drain.ErrDrained) && !errors.Is(err, errNotYet) && !errors.Is(err, errForms) {
			return err
		}
	}
}

// daemons returns the runner of MPS control daemons, and a function that ends those that are this process's children.
func daemons(o Options, runner programs.Runner) (sharing.Daemons, func()) {
	if o.MPSKeeper {
		return sharing.Kept{Dir: o.MPSDir}, func() {}
	}
	bounds, _ := sharing.ParseBounds(o.MPSSize) // Validate has reported it
	own := &sharing.MPS{Dir: o.MPSDir, Programs: runner, Bounds: bounds}
	return own, own.Close
}

// once runs one plugin on an NVML of its own.
func (s *starter) once(ctx context.Context, p *plugin) error {
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	s.interrupt.Store(&interrupt)
	if s.drain.Wanted() {
		return drain.ErrDrained // while this run was started
	}
	p.standIn = s.standIn(ctx, p)
	defer p.standIn.end()
	if s.options.Passthrough {
		if v, err := s.passer(ctx, p); err != nil || v != nil {
			return s.pass(ctx, v, err)
		}
	}
	waited := false
	err := nvidia.Await(ctx, s.lib, s.options.DriverRoot, nvidia.Bound(s.options.SysfsRoot), func(reason, message string) {
		if why := jetson(s.options.SysfsRoot); why != "" {
			message = why
		}
		klog.FromContext(ctx).Info(message, "reason", reason)
		s.waits.Store(true)
		p.events.Report("WaitingForDriver", message)
		s.driver.set(troubleStart, reason, message)
		p.standIn.begin(message)
		waited = true
	})
	s.waits.Store(false)
	if err != nil {
		return ended(ctx) // ended while it waited
	}
	if waited {
		p.bus.settle() // The driver that was installed has bound its GPUs, and NVML lists them.
	}
	defer func() { _ = s.lib.Shutdown() }()
	version, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		version = "of unknown version"
	}
	s.driver.runs(version)
	err = p.run(ctx)
	if cause := ended(ctx); cause != nil || ctx.Err() != nil || !errors.Is(err, errNotYet) {
		return cmp.Or(cause, err)
	}
	return s.pause(ctx, p, err)
}

// pause serves the kubelet for a while without the driver, after a start that failed on a driver that is there in part.
func (s *starter) pause(ctx context.Context, p *plugin, why error) error {
	klog.FromContext(ctx).Error(why, "The node's GPUs cannot be offered yet")
	s.waits.Store(true)
	defer s.waits.Store(false)
	p.events.Report("WaitingForDriver", why.Error())
	s.driver.set(troubleStart, nvidia.Failed, why.Error())
	p.standIn.begin(why.Error())
	select {
	case <-time.After(startPause):
		return errNotYet
	case <-ctx.Done():
		return ended(ctx)
	}
}

// ended is the cause of ctx's end, nil if the role was stopped.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// ready returns the reason why the kubelet cannot prepare claims. A plugin that waits for the node's driver, or whose GPUs are drained,
// counts as ready: a node without GPUs must not block a rollout.
func (s *starter) ready() error {
	p := s.current.Load()
	serving, passing := p.serving.Load(), p.passing.Load()
	switch {
	case passing != nil:
		return passing.dra.Registered()
	case serving != nil:
		return serving.dra.Registered()
	case s.waits.Load():
		return nil
	}
	return errors.New("the role has not begun to serve the kubelet: its log has the reason")
}
