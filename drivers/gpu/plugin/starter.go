package plugin

import (
	"context"
	"errors"
	"os/exec"
	"sync"
	"sync/atomic"

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
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
)

// starter runs the role, and starts it again within the process when a GPU was plugged in. NVML only knows the GPUs that were there
// when it was started, so it must be started again while nothing uses it. To the kubelet this looks like a restart of the plugin.
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
	// waits says that the role waits through no fault of its own: there is no driver, or the GPUs are drained.
	waits atomic.Bool
	// drains knows whether the GPUs must be left alone.
	drains *drains
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
	if s.drains, err = newDrains(o.Drain(), o.StateDir); err != nil {
		klog.FromContext(ctx).Error(err, "What an earlier run left of a drain", "drained", s.drains.isWanted())
	}
	wg.Go(func() {
		if err := s.control(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "gpufabric drain cannot be served")
			s.current.Load().events.Report("DrainNotServed", err.Error())
		}
	})
	for ; ; p = next() {
		s.waits.Store(true)
		err := s.hold(ctx, p)
		s.waits.Store(false)
		if err != nil {
			return ended(ctx) // ended while it was drained
		}
		err = s.once(ctx, p)
		if ctx.Err() != nil {
			return ended(ctx) // it says more than the errors of what it interrupted, possibly a start
		}
		if !errors.Is(err, errPluggedIn) && !errors.Is(err, errDrained) {
			return err
		}
	}
}

// daemons returns what runs MPS control daemons, and what ends those that are this process's children.
func daemons(o Options, runner programs.Runner) (sharing.Daemons, func()) {
	if o.MPSKeeper {
		return sharing.Kept{Dir: o.MPSDir}, func() {}
	}
	bounds, _ := sharing.ParseBounds(o.MPSSize) // Validate has said so
	own := &sharing.MPS{Dir: o.MPSDir, Programs: runner, Bounds: bounds}
	return own, own.Close
}

// once runs one plugin on an NVML of its own.
func (s *starter) once(ctx context.Context, p *plugin) error {
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	s.interrupt.Store(&interrupt)
	if s.drains.isWanted() {
		return errDrained // while this run was started
	}
	waited := false
	err := nvidia.Await(ctx, s.lib, s.options.DriverRoot, nvidia.Bound(s.options.SysfsRoot), func(reason, message string) {
		klog.FromContext(ctx).Info(message, "reason", reason)
		s.waits.Store(true)
		p.events.Report("WaitingForDriver", message)
		s.driver.say(troubleStart, reason, message)
		waited = true
	})
	s.waits.Store(false)
	if err != nil {
		return ended(ctx) // ended while it waited
	}
	if waited {
		p.bus.settle() // The driver that was installed has bound its GPUs, and NVML knows them.
	}
	defer func() { _ = s.lib.Shutdown() }()
	version, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		version = "of unknown version"
	}
	s.driver.runs(version)
	err = p.run(ctx)
	if cause := ended(ctx); cause != nil {
		return cause
	}
	return err
}

// ended is why ctx ended, nil where the role was asked to end.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// ready says why the kubelet cannot prepare claims. A plugin that waits for the node's driver, or whose GPUs are drained, counts as
// ready: a node without GPUs must not block a rollout.
func (s *starter) ready() error {
	serving := s.current.Load().serving.Load()
	switch {
	case serving != nil:
		return serving.dra.Registered()
	case s.waits.Load():
		return nil
	}
	return errors.New("the role has not begun to serve the kubelet: its log says what it does")
}
