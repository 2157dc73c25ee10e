package plugin

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/limiter/unlimited"
	"gpufabric.io/drivers/gpu/memorylimits"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/occupancy"
	"gpufabric.io/drivers/node/runtimehook"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/figures"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/hook"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/podwatch"
	"gpufabric.io/drivers/vgpu/settings"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// role has the inputs of the role vgpu-plugin.
type role struct {
	options  *Options
	config   settings.Settings
	lib      nvml.Interface
	client   kubernetes.Interface
	registry *prometheus.Registry
	// served is the server for the kubelet while GPUs are shared.
	served *atomic.Pointer[deviceplugin.Host]
}

// sharing are the parts of the role while it shares GPUs.
type sharing struct {
	role
	factor agreement
	table  *table
	files  *deviceFiles

	// memory limits the memory of containers by the driver. backend is the backend of the node; limiters is the directory of its library.
	memory   *memorylimits.Keeper
	backend  injection.Backend
	limiters string

	made    *instances.Manager
	book    *holdings.Book
	metrics *deviceplugin.Metrics

	hook     *hook.Hook
	outcomes *outcome
	fails    *failing
	seats    *cores.Seats
	shares   number
	unheld   *unlimited.Watch

	recorder record.EventRecorder
	trouble  func(reason, message string)
}

// share gives out shares until ctx ends, until a missing GPU has appeared, or until it has released the GPUs for a drain.
func (r role) share(ctx context.Context, session *drain.Session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &sharing{role: r, book: &holdings.Book{}, metrics: deviceplugin.NewMetrics(),
		factor: agreement{Client: r.client, Namespace: r.options.Namespace}}
	if err := s.takeGPUs(ctx); err != nil {
		return err
	}
	if err := s.openLimits(ctx); err != nil {
		return err
	}
	defer count(r.registry, s.book, s.made, s.memory, s.metrics.Collectors()...)()
	drained := drained{session: session, table: s.table, book: s.book, made: s.made}
	defer drained.leave(ctx)
	recorder, stop := host.Recorder(ctx, r.client, Role, r.options.NodeName)
	defer stop()
	s.recorder, s.trouble = recorder, host.NodeTrouble(recorder, r.options.NodeName)
	s.makeHook()
	s.hook.Limiter.Resume(ctx)
	if err := s.followPods(ctx); err != nil {
		return err
	}
	gauge := unlimitedGauge(s.unheld)
	r.registry.MustRegister(gauge)
	defer r.registry.Unregister(gauge)
	if !s.shares.nri {
		if err := s.shares.recover(ctx); err != nil {
			return err
		}
	}
	plugins := deviceplugin.NewHost(r.options.KubeletRoot, r.options.Files, s.metrics)
	r.served.Store(plugins)
	defer r.served.Store(nil)
	plugins.Trouble = s.trouble
	s.reportWithoutEffect(ctx)
	if err := s.table.serve(plugins, s.shares); err != nil {
		return err
	}
	registers := s.registrar()
	s.table.onChange(func(*sharedgpus.Set) { registers.wake() })
	klog.FromContext(ctx).Info("Sharing GPUs", "gpus", len(s.table.SharedGPUs().Cards), "memoryFactorMiB", s.table.SharedGPUs().Factor)
	return s.run(ctx, plugins, registers, drained)
}

// takeGPUs reads the node's GPUs, waits until they are this role's, and prepares the files of their containers.
func (s *sharing) takeGPUs(ctx context.Context) error {
	var err error
	if s.table, err = setTable(ctx, s.options, s.lib, s.config, s.factor); err != nil {
		return err
	}
	if err := own(ctx, s.options, s.table.SharedGPUs()); err != nil {
		return err
	}
	if s.files, err = openDevices(s.options, s.lib, s.table); err != nil {
		return err
	}
	if err := s.files.find(ctx); err != nil {
		return err
	}
	s.table.divide(ctx)
	s.table.follow(ctx, s.options, s.lib)
	s.table.lay(ctx)
	return nil
}

// openLimits opens the stored limits and MIG instances of containers, and chooses the backend.
func (s *sharing) openLimits(ctx context.Context) error {
	var err error
	if s.memory, err = s.options.openMemory(ctx, s.lib); err != nil {
		return err
	}
	native := s.options.native(s.memory, s.config, s.table.SharedGPUs())
	if s.backend, s.limiters, err = s.options.limiter(ctx, native); err != nil {
		return err
	}
	s.made, err = openInstances(ctx, s.options, s.table)
	return err
}

// makeHook makes the hook of the container runtime, with the reports of its results.
func (s *sharing) makeHook() {
	o := s.options
	resources := resourcesOf(s.config)
	s.fails = &failing{client: s.client, node: o.NodeName, patience: o.RefusalPatience, now: time.Now, events: s.recorder,
		since: map[types.UID]map[string]time.Time{}}
	s.outcomes = newOutcome(s.client, resources, o.NodeName, s.fails)
	s.seats = &cores.Seats{Directory: o.stateFile("cores"), Lend: o.LendCores, Bounded: o.LimiterBytes > 0}
	s.hook = &hook.Hook{
		Resources: resources, Book: s.book, Outcome: s.outcomes, NoCoreLimit: s.config.NoCoreLimit, ForbidControlOff: o.ForbidControlOff,
		Limiter: injection.Limiter{
			Backend: s.backend, Directory: s.limiters, Closed: o.LimiterClosed,
			Containers: o.stateFile("containers"), Accounts: o.stateFile("accounts"), Locks: o.stateFile("container-locks"), Bytes: o.LimiterBytes,
			Oversubscribed: s.config.MemoryScaling > 1, Seats: s.seats,
		},
		SharedGPUs: s.table.SharedGPUs,
		Memory:     s.memory,
		Device:     func(uuid string) string { return s.files.directory.ID(spec, uuid) },
		Instances:  s.made, Capabilities: s.files.capabilities,
	}
}

// followPods watches the node's pods, for shares of pods that end and for containers that are not limited.
func (s *sharing) followPods(ctx context.Context) error {
	o := s.options
	shares := number{hook: s.hook, nri: o.RuntimeSocket != "", refused: &refusals{}, spec: s.files.directory.Path(spec)}
	if !shares.nri {
		var err error
		if shares.given, err = openGiven(ctx, o.stateFile("given")); err != nil {
			return err
		}
	}
	cgroups := &occupancy.Cgroups{Root: o.Cgroups().Path}
	s.hook.Runs = runs(cgroups)
	shares.departed = newDeparted(cgroups, shares.free, s.trouble)
	early := shares // pods may be gone before the watch is known to shares
	watched, err := podwatch.Watch(ctx, s.client, o.NodeName, func(pod *corev1.Pod) { early.gone(ctx, s.outcomes, pod) })
	if err != nil {
		return err
	}
	shares.pods = watched
	s.shares = shares
	s.hook.Pods, s.outcomes.ended = watched, watched.Ended
	s.unheld = newUnlimited(o, s.backend, s.table.processes, &source{pods: watched, resources: s.hook.Resources}, s.fails)
	return nil
}

// reportWithoutEffect reports entries of the configuration that have no effect on this node.
func (s *sharing) reportWithoutEffect(ctx context.Context) {
	for _, entry := range s.table.SharedGPUs().WithoutEffect {
		klog.FromContext(ctx).Info("An entry of the node's configuration has no effect", "entry", entry)
		s.trouble("ConfigWithoutEffect", "config.json: "+entry)
	}
	for _, entry := range s.config.Misnamed {
		klog.FromContext(ctx).Info("An entry of the node configuration has no effect", "entry", entry, "node", s.options.NodeName)
		s.trouble("ConfigWithoutEffect", "config.json: "+entry+" does not name this node, which is "+s.options.NodeName)
	}
	for _, entry := range s.config.Shadowed() {
		klog.FromContext(ctx).Info("An entry of the MIG layouts has no effect", "entry", entry)
		s.trouble("ConfigWithoutEffect", "device-config.yaml: "+entry)
	}
}

// registrar returns the writer of the node's annotations for the scheduler.
func (s *sharing) registrar() *registrar {
	return &registrar{
		client: s.client, node: s.options.NodeName, resource: s.config.MemoryResource, handshake: s.options.Handshake, limits: s.backend,
		now: time.Now, sharedGPUs: s.hook.SharedGPUs, changed: make(chan struct{}, 1), after: time.After,
		pause: cmp.Or(s.options.pause, handshakePause),
		slots: func(card sharedgpus.Card) ([][]int64, error) {
			return instances.Slots(card.GPU, s.config.GeometriesOf(card.GPU.ProductName))
		},
	}
}

// run runs the parts until ctx ends or one of them fails.
func (s *sharing) run(ctx context.Context, plugins *deviceplugin.Host, registers *registrar, drained drained) error {
	return together(ctx,
		plugins.Run, registers.run, s.table.followFaults, s.made.Run, s.hook.Run, s.table.awaitMissing, drained.run, s.files.follow,
		s.shares.departed.run, s.unheld.Run, s.hook.Follow,
		func(ctx context.Context) error { return s.memory.Run(ctx, s.options.Files) },
		func(ctx context.Context) error {
			return s.table.monitor.Run(ctx, &attendant{table: s.table, lib: s.lib})
		},
		func(ctx context.Context) error { return s.table.followUnit(ctx, s.factor) },
		func(ctx context.Context) error { s.outcomes.run(ctx); return nil },
		func(ctx context.Context) error {
			if s.shares.nri {
				return nil // the runtime reports its containers
			}
			return s.shares.follow(ctx)
		},
		func(ctx context.Context) error {
			return figures.Serve(ctx, s.options.stateFile(figures.Socket), func() figures.Figures {
				return withUses(s.table.read(), s.memory, s.seats)
			})
		},
		func(ctx context.Context) error {
			return runtimehook.Run(ctx, runtimehook.Settings{Socket: s.options.RuntimeSocket, Name: "gpufabric-vgpu", Index: "20",
				Without: "no share is given"}, s.hook)
		},
	)
}

// resourcesOf returns the names of the resources by which shares are requested.
func resourcesOf(s settings.Settings) annotation.Resources {
	return annotation.Resources{Number: s.NumberResource, Memory: s.MemoryResource, Cores: s.CoresResource, Percentage: s.PercentageResource}
}
