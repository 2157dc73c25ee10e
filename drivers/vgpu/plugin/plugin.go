// Package plugin is the role vgpu-plugin: it shares a node's GPUs through device plugins with the resources and annotations that Volcano's
// scheduler uses. The GPUs stay the GPU plugin's: it taints them in DRA before they are shared here.
//
// # What a pod of this role needs
//
// Run it on nodes whose GPUs are shared this way, as root, unprivileged, no hostNetwork. Environment: NODE_NAME from spec.nodeName.
// Privileged, it makes MIG instances, and has the driver limit memory. At --cgroup-root it needs the node's cgroups (read only).
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
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/memorylimits"
	nvidia "gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/settings"
	"gpufabric.io/drivers/vgpu/sharedgpus"
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
		Short: "Share a node's GPUs through device plugins, in the form of Volcano's scheduler",
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
	var paused observed.Value[drain.Pause]
	var served atomic.Pointer[deviceplugin.Host]
	r := role{options: o, config: config, lib: lib, client: client, registry: registry, served: &served}
	return together(ctx,
		// The probes are served from the start: the kubelet probes the role while it waits for a driver or for other nodes.
		func(ctx context.Context) error {
			alive := func() error { //nolint:contextcheck,nolintlint // a probe has the plugin's context
				if plugins := served.Load(); plugins != nil {
					return errors.Join(plugins.Answers(), filewatch.Removed(o.CDIRoot), filewatch.Removed(o.StateDir))
				}
				return nil // it waits for a driver or for other nodes, through no fault of its own
			}
			return metrics.Guard(o.MetricsAuth, client).Serve(ctx, o.MetricsAddress, registry, alive)
		},
		func(ctx context.Context) error {
			return drain.WatchPause(ctx, client, o.NodeName, &paused)
		},
		func(ctx context.Context) error {
			drain.AllRoles(o.Drain(), &paused).Run(ctx)
			return nil
		},
		func(ctx context.Context) error {
			member := drain.Member{Directory: o.Drain(), Role: Role}
			return member.Run(ctx, func(ctx context.Context, s *drain.Session) error {
				return withDriver(ctx, s, o, lib, func(ctx context.Context) error {
					for {
						if err := r.share(ctx, s); !errors.Is(err, errGPUReturned) {
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
var errGPUReturned = errors.New("a GPU responds that did not respond at the start")

// withDriver starts NVML, waits for a missing driver, and closes NVML after use. A drain ends the wait.
func withDriver(ctx context.Context, s *drain.Session, o *Options, lib nvml.Interface, use func(context.Context) error) error {
	waiting, stop := s.Interrupted(ctx)
	defer stop()
	err := nvidia.Await(waiting, lib, o.DriverRoot, nvidia.Bound(o.SysfsRoot), func(reason, message string) {
		klog.FromContext(ctx).Info(message, "reason", reason)
	})
	switch {
	case errors.Is(err, drain.ErrDrained):
		return err
	case err != nil:
		return nil // ended while it waited
	}
	defer func() { _ = lib.Shutdown() }()
	return use(ctx)
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

// setTable reads the node's GPUs and computes the set of shared GPUs, with the cluster's factor where the settings have none.
func setTable(ctx context.Context, o *Options, lib nvml.Interface, config settings.Settings, factor agreement) (*table, error) {
	locate, err := inventory.Locator(ctx, o.SysfsRoot)
	if err != nil {
		return nil, err
	}
	node, err := inventory.Reader{NVML: lib, Locate: locate}.Read()
	if err != nil {
		return nil, err
	}
	gpus, err := sharedgpus.Compute(node, config, 0)
	if err != nil {
		return nil, err
	}
	t := &table{node: node, locate: locate, settings: config, returned: make(chan struct{})}
	if config.MemoryFactor == 0 {
		if t.factor, err = factor.Agree(ctx, gpus.Factor); err != nil {
			return nil, err
		}
		if gpus, err = sharedgpus.Compute(node, config, t.factor); err != nil {
			return nil, err
		}
	}
	t.sharedGPUs.Store(gpus)
	for _, problem := range append(node.Problems, gpus.Refused...) {
		klog.FromContext(ctx).Error(problem, "A GPU is not shared")
	}
	for _, card := range gpus.Cards {
		if card.Mode == annotation.ModeMIG {
			for _, promise := range instances.Overstated(card.GPU, config.GeometriesOf(card.GPU.ProductName)) {
				klog.FromContext(ctx).Error(promise, "A MIG instance has less memory than in the configuration")
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
func own(ctx context.Context, o *Options, gpus *sharedgpus.Set) error {
	if o.Handover == "" {
		return nil
	}
	uuids := make([]string, 0, len(gpus.Cards))
	for _, card := range gpus.Cards {
		uuids = append(uuids, card.GPU.UUID)
	}
	directory := handover.Directory(o.Handover)
	if err := directory.Request(owner, uuids...); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Waiting for gpu-plugin to taint the shared GPUs in DRA", "gpus", len(uuids))
	return directory.Await(ctx, o.Files, uuids...)
}
