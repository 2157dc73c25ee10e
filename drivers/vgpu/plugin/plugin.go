// Package plugin is the role vgpu-plugin: it shares a node's GPUs through device plugins with the resources and annotations that Volcano's
// scheduler knows. The GPUs stay the GPU plugin's: it taints them in DRA before they are shared here.
//
// # What a pod of this role needs
//
// Run it on nodes whose GPUs are shared this way, as root, unprivileged, no hostNetwork. Environment: NODE_NAME from spec.nodeName.
// Privileged, it makes MIG instances, and has the driver limit memory: only then does it see the node's cgroups at --cgroup-root.
//
// Volumes, hostPath at the same path inside as outside: --cdi-root, the kubelet's device-plugins directory, --state-dir
// (/var/lib/gpufabric/vgpu-plugin: the containers' accounting directories are in it, and are mounted into them), --handover-dir, the
// directory of --nri-socket, --dev-root and --driver-root (read only). ConfigMaps, optional: volcano-vgpu-device-config and
// volcano-vgpu-node-config, for --device-config and --node-config.
//
// RBAC: core nodes: get, list, watch, patch; core pods: get, list, watch, patch; core pods/status: patch; events: create, patch;
// in its own namespace the ConfigMap gpufabric-vgpu-unit: create, get, list, watch, update. A ValidatingAdmissionPolicy keeps it to its own
// node and the pods on it.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/memorylimits"
	nvidia "gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/runtimehook"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/decks"
	"gpufabric.io/drivers/vgpu/figures"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/hook"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/podwatch"
	"gpufabric.io/drivers/vgpu/settings"
)

// Role is the subcommand's name.
const Role = "vgpu-plugin"

const (
	driver = "vgpu.gpufabric.io"
	// owner is the requester of GPUs in the handover.
	owner = "vgpu"
	// spec is the name of the single CDI spec of all shared GPUs.
	spec = "gpus"
)

// Command is the subcommand vgpu-plugin.
func Command(h host.Host) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   Role,
		Short: "Share a node's GPUs through device plugins, as Volcano's scheduler knows it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, client, err := h.Connect(Role, &o)
			if err != nil {
				return err
			}
			o.Files = h.Watcher()
			return Run(cmd.Context(), &o, h.Library(o.Driver()), client)
		},
	}
	o.Bind(cmd.Flags(), h.Env)
	return cmd
}

// Run runs the role until ctx ends.
func Run(ctx context.Context, o *Options, lib nvml.Interface, client kubernetes.Interface) error {
	if err := o.Validate(); err != nil {
		return err
	}
	config, err := o.settings(ctx, client)
	if err != nil {
		return err
	}
	if o.Files == nil {
		o.Files = &filewatch.Watcher{}
	}
	registry := metrics.New(driver).Registry
	registry.MustRegister(o.Files)
	var served atomic.Pointer[deviceplugin.Host] // the server for the kubelet, once GPUs are shared
	return together(ctx,
		// The probes are served from the start: the kubelet probes the role while it waits for a driver or for other nodes.
		func(ctx context.Context) error {
			alive := func() error { //nolint:contextcheck,nolintlint // a probe has the plugin's context
				if plugins := served.Load(); plugins != nil {
					return plugins.Answers()
				}
				return nil // it waits for a driver or for other nodes, through no fault of its own
			}
			return metrics.Guard(o.MetricsAuth, client).Serve(ctx, o.MetricsAddress, registry, alive)
		},
		func(ctx context.Context) error {
			// In versions before 0.1.0 the monitor opened NVML and took part in drains.
			if err := o.Drain().Forget(MonitorRole); err != nil {
				klog.FromContext(ctx).Error(err, "A drain may wait for a monitor of an earlier version")
			}
			member := drain.Member{Directory: o.Drain(), Role: Role}
			return member.Run(ctx, func(ctx context.Context, s *drain.Session) error {
				return withDriver(ctx, s, o, lib, func(ctx context.Context) error {
					for {
						if err := share(ctx, s, o, config, lib, client, registry, &served); !errors.Is(err, errGPUReturned) {
							return err
						}
						klog.FromContext(ctx).Info("A GPU answers again: the node's GPUs are read and shared again")
					}
				})
			})
		})
}

// errGPUReturned ends a run that lacks a GPU of the node, so that the next run has it. Containers keep their shares, as in a
// restart of the role.
var errGPUReturned = errors.New("a GPU answers that did not answer at the start")

// withDriver starts NVML, waits for a missing driver, and closes NVML after use. A drain ends the wait.
func withDriver(ctx context.Context, s *drain.Session, o *Options, lib nvml.Interface, use func(context.Context) error) error {
	waiting, stop := s.Interrupted(ctx)
	defer stop()
	err := nvidia.Await(waiting, lib, o.DriverRoot, nvidia.Bound(o.SysfsRoot), func(reason, message string) {
		klog.FromContext(ctx).Info(message, "reason", reason)
	})
	switch {
	case errors.Is(err, drain.ErrLetGo):
		return err
	case err != nil:
		return nil // ended while it waited
	}
	defer func() { _ = lib.Shutdown() }()
	return use(ctx)
}

// share gives out shares until ctx ends, until a missing GPU has appeared, or until it has released the GPUs for a drain.
func share(ctx context.Context, s *drain.Session, o *Options, config settings.Settings, lib nvml.Interface, client kubernetes.Interface,
	registry *prometheus.Registry, served *atomic.Pointer[deviceplugin.Host]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factor := agreement{Client: client, Namespace: o.Namespace}
	t, err := setTable(ctx, o, lib, config, factor)
	if err != nil {
		return err
	}
	if err := own(ctx, o, t.Deck()); err != nil {
		return err
	}
	files, err := openDevices(o, lib, t)
	if err != nil {
		return err
	}
	if err := files.find(ctx); err != nil {
		return err
	}
	t.divide(ctx)
	t.follow(ctx, o, lib)
	t.lay(ctx)
	memory, err := o.openMemory(ctx, lib)
	if err != nil {
		return err
	}
	backend, limiters, err := o.limiter(ctx, o.native(memory, config, t.Deck()))
	if err != nil {
		return err
	}
	made, err := openInstances(ctx, o, t)
	if err != nil {
		return err
	}
	book := &holdings.Book{}
	lists := deviceplugin.NewMetrics()
	defer count(registry, book, made, memory, lists.Collectors()...)()
	drained := drained{session: s, table: t, book: book, made: made}
	defer drained.leave(ctx)
	resources := resourcesOf(config)
	recorder, stop := host.Recorder(ctx, client, Role, o.NodeName)
	defer stop()
	told := newOutcome(client, resources, o.NodeName, &failing{client: client, node: o.NodeName, patience: o.RefusalPatience, now: time.Now,
		events: recorder, since: map[types.UID]map[string]time.Time{}})
	turns := &cores.Arbiter{Directory: o.stateFile("turns"), Lend: o.LendCores}
	defer turns.Stop()
	h := &hook.Hook{
		Resources: resources, Book: book, Outcome: told, NoCoreLimit: config.NoCoreLimit, ForbidControlOff: o.ForbidControlOff,
		Limiter: injection.Limiter{
			Backend: backend, Directory: limiters, Closed: o.LimiterClosed,
			Containers: o.stateFile("containers"), Locks: o.stateFile("container-locks"), Bytes: o.LimiterBytes,
			Oversubscribed: config.MemoryScaling > 1, Turns: turns,
		},
		Deck:      t.Deck,
		Memory:    memory,
		Device:    func(uuid string) string { return files.directory.ID(spec, uuid) },
		Instances: made, Capabilities: files.capabilities,
	}
	h.Limiter.Resume(ctx)
	nri := o.RuntimeSocket != ""
	running, err := podwatch.Watch(ctx, client, o.NodeName, func(pod *corev1.Pod) { podGone(ctx, h, told, pod, nri) })
	if err != nil {
		return err
	}
	h.Pods, told.ended = running, running.Ended
	shares := number{hook: h, pods: running, nri: nri, refused: &refusals{}, spec: files.directory.Path(spec)}
	if !shares.nri {
		if err := shares.recover(ctx); err != nil {
			return err
		}
	}
	plugins := deviceplugin.NewHost(o.KubeletRoot, o.Files, lists)
	served.Store(plugins)
	defer served.Store(nil)
	plugins.Trouble = host.NodeTrouble(recorder, o.NodeName)
	if err := t.serve(plugins, shares); err != nil {
		return err
	}
	registers := &registrar{
		client: client, node: o.NodeName, resource: config.MemoryResource, handshake: o.Handshake, limits: backend, now: time.Now,
		deck: h.Deck, changed: make(chan struct{}, 1), after: time.After, pause: cmp.Or(o.pause, handshakePause),
		slots: func(card decks.Card) ([][]int64, error) {
			return instances.Slots(card.GPU, config.GeometriesOf(card.GPU.ProductName))
		},
	}
	t.onChange(func(*decks.Deck) { registers.wake() })
	klog.FromContext(ctx).Info("Sharing GPUs", "gpus", len(t.Deck().Cards), "memoryFactorMiB", t.Deck().Factor)
	return together(ctx,
		plugins.Run, registers.run, t.followFaults, made.Run, h.Run, t.awaitMissing, drained.run, files.follow,
		func(ctx context.Context) error { return memory.Run(ctx, o.Files) },
		func(ctx context.Context) error { return t.monitor.Run(ctx, &attendant{table: t, lib: lib}) },
		func(ctx context.Context) error { return t.followUnit(ctx, factor) },
		func(ctx context.Context) error { told.run(ctx); return nil },
		func(ctx context.Context) error {
			if nri {
				return nil // the runtime reports what runs
			}
			return shares.follow(ctx)
		},
		func(ctx context.Context) error {
			return figures.Serve(ctx, o.stateFile(figures.Socket), func() figures.Figures { return withUses(t.read(), memory, turns) })
		},
		func(ctx context.Context) error {
			return runtimehook.Run(ctx, runtimehook.Settings{Socket: o.RuntimeSocket, Name: "gpufabric-vgpu", Index: "20",
				Without: "no share is given"}, h)
		},
	)
}

// resourcesOf returns the names of the resources by which shares are requested.
func resourcesOf(s settings.Settings) annotation.Resources {
	return annotation.Resources{Number: s.NumberResource, Memory: s.MemoryResource, Cores: s.CoresResource, Percentage: s.PercentageResource}
}

// podGone takes back the shares of a pod that has ended or was deleted; nri says that the container runtime reports when its
// sandbox is gone.
func podGone(ctx context.Context, h *hook.Hook, told *outcome, pod *corev1.Pod, nri bool) {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		h.Book.Release(heldID(string(pod.UID), container.Name))
	}
	told.Gone(pod)
	// With NRI the instances of a deleted pod are removed when its sandbox is gone: after a forced deletion the pod may still run. The
	// sandbox of a pod that ended by itself stays until the pod is deleted, and schedulers give its instances away long before that.
	if !nri || podwatch.Over(pod) {
		h.Instances.End(string(pod.UID))
	}
	// With NRI the directories go with the sandbox, too. Without NRI, the containers of a pod that was deleted by force may still run:
	// its directories are removed at the next start.
	if !nri && podwatch.Over(pod) {
		h.RemoveDirectories(ctx, string(pod.UID))
	}
}

// count makes the registry export how many containers the ledger and the state of MIG instances have, and others' metrics, until the
// returned function is called.
func count(registry *prometheus.Registry, book *holdings.Book, made *instances.Manager, memory *memorylimits.Keeper,
	others ...prometheus.Collector) (end func()) {
	gauges := slices.Concat(others, []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpufabric_vgpu_containers", Help: "Containers that hold shares of GPUs."},
			func() float64 { return float64(book.Len()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpufabric_vgpu_mig_containers",
			Help: "Containers that have MIG instances, or had and whose instances still stand."},
			func() float64 { return float64(made.Len()) }),
		made.Collector(), newLimited(book), memory,
	})
	registry.MustRegister(gauges...)
	return func() {
		for _, gauge := range gauges {
			registry.Unregister(gauge)
		}
	}
}

// together runs all jobs until ctx ends or one of them fails, and waits for all of them to end.
func together(ctx context.Context, jobs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for _, job := range jobs {
		group.Go(func() {
			if err := job(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// setTable reads the node's GPUs and computes the deck, with the cluster's factor where the settings have none.
func setTable(ctx context.Context, o *Options, lib nvml.Interface, config settings.Settings, factor agreement) (*table, error) {
	locate, err := inventory.Locator(ctx, o.SysfsRoot)
	if err != nil {
		return nil, err
	}
	node, err := inventory.Reader{NVML: lib, Locate: locate}.Read()
	if err != nil {
		return nil, err
	}
	deck, err := decks.Lay(node, config, 0)
	if err != nil {
		return nil, err
	}
	t := &table{node: node, locate: locate, settings: config, returned: make(chan struct{})}
	if config.MemoryFactor == 0 {
		if t.factor, err = factor.Agree(ctx, deck.Factor); err != nil {
			return nil, err
		}
		if deck, err = decks.Lay(node, config, t.factor); err != nil {
			return nil, err
		}
	}
	t.deck.Store(deck)
	for _, problem := range append(node.Problems, deck.Refused...) {
		klog.FromContext(ctx).Error(problem, "A GPU is not shared")
	}
	for _, card := range deck.Cards {
		if card.Mode == annotation.ModeMIG {
			for _, promise := range instances.Overstated(card.GPU, config.GeometriesOf(card.GPU.ProductName)) {
				klog.FromContext(ctx).Error(promise, "A MIG instance has less memory than the configuration says")
			}
		}
	}
	return t, nil
}

// openInstances makes the manager of MIG instances, with its stored records.
func openInstances(ctx context.Context, o *Options, t *table) (*instances.Manager, error) {
	made, unreadable, err := instances.New(instances.Options{
		Directory: o.stateFile("mig"), Boot: o.BootID(), GPU: t.node.ByUUID, Geometries: t.settings.GeometriesOf, Faulty: t.faulty,
	})
	for _, file := range unreadable {
		klog.FromContext(ctx).Error(file.Err, "State of MIG instances is lost", "what", file.String())
	}
	return made, err
}

// own waits until this role may share the GPUs: until the GPU plugin has tainted them in DRA.
func own(ctx context.Context, o *Options, deck *decks.Deck) error {
	if o.Handover == "" {
		return nil
	}
	uuids := make([]string, 0, len(deck.Cards))
	for _, card := range deck.Cards {
		uuids = append(uuids, card.GPU.UUID)
	}
	directory := handover.Directory(o.Handover)
	if err := directory.Ask(owner, uuids...); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Waiting for gpu-plugin to taint the shared GPUs in DRA", "gpus", len(uuids))
	return directory.Await(ctx, o.Files, uuids...)
}
