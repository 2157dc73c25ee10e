package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/monitor"
	"gpufabric.io/drivers/vgpu/podwatch"
	"gpufabric.io/drivers/vgpu/settings"
)

// MonitorRole is the subcommand's name. It is a role of its own, so that what reads tenants' files can neither stop nor be stopped by what
// serves the kubelet. It takes vgpu-plugin's flags, and needs of its rights to get, list and watch pods.
const MonitorRole = "vgpu-monitor"

// monitorAddress is where the public monitor serves.
const monitorAddress = ":9394"

// MonitorCommand is the subcommand vgpu-monitor.
func MonitorCommand(h host.Host) *cobra.Command {
	var o Options
	var byteLabels bool
	cmd := &cobra.Command{
		Use:   MonitorRole,
		Short: "Export what containers may use of shared GPUs, and what they do use",
		Long: `Export what containers may use of shared GPUs, and what they do use. It takes vgpu-plugin's flags, so that a pod gives both the same, and
heeds those by which it finds the GPUs, their units and --state-dir, which is vgpu-plugin's.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil { // before an API server is looked for
				return err
			}
			config, err := h.Kubernetes()
			if err != nil {
				return err
			}
			client, err := host.Client(config, MonitorRole)
			if err != nil {
				return err
			}
			o.Files = h.Watcher()
			return RunMonitor(cmd.Context(), &o, byteLabels, h.Library(o.Driver()), client)
		},
	}
	o.Bind(cmd.Flags(), h.Env)
	cmd.Flags().Lookup("metrics-address").Usage = "host:port that serves /metrics and /healthz; empty: " + monitorAddress
	cmd.Flags().BoolVar(&byteLabels, "byte-labels", false,
		"also export Device_memory_desc_of_container, which has byte counts as labels: each change of use is a new series")
	return cmd
}

// RunMonitor runs the role until ctx ends. --state-dir is vgpu-plugin's, read only.
func RunMonitor(ctx context.Context, o *Options, byteLabels bool, lib nvml.Interface, client kubernetes.Interface) error {
	if err := o.Validate(); err != nil {
		return err
	}
	config, err := o.settings()
	if err != nil {
		return err
	}
	if o.Files == nil {
		o.Files = &filewatch.Watcher{}
	}
	address := o.MetricsAddress
	if address == "" {
		address = monitorAddress
	}
	registry := prometheus.NewRegistry()
	return together(ctx,
		func(ctx context.Context) error { return metrics.Serve(ctx, address, registry, nil) },
		func(ctx context.Context) error {
			member := drain.Member{Directory: o.Drain(), Role: MonitorRole}
			return member.Run(ctx, func(ctx context.Context, s *drain.Session) error {
				return withDriver(ctx, s, o, lib, func(ctx context.Context) error {
					turn, stop := s.Interrupted(ctx) // it gives nothing, so it lets go at once
					defer stop()
					err := export(turn, o, config, byteLabels, lib, client, registry)
					if errors.Is(context.Cause(turn), drain.ErrLetGo) {
						return drain.ErrLetGo
					}
					return err
				})
			})
		})
}

// export shows what the containers use until ctx ends.
func export(ctx context.Context, o *Options, config settings.Settings, byteLabels bool, lib nvml.Interface, client kubernetes.Interface,
	registry *prometheus.Registry) error {
	factor := agreement{Client: client, Namespace: o.Namespace}
	// The plugin agrees with the other nodes; the monitor only follows.
	t, err := setTable(ctx, o, lib, config, agreement{})
	if err != nil {
		return err
	}
	watched, err := podwatch.Watch(ctx, client, o.NodeName, func(*corev1.Pod) {})
	if err != nil {
		return err
	}
	open := &gate{}
	shown := monitor.New(monitor.Options{
		Source: source{
			table: t, pods: watched, nvml: open,
			resources: annotation.Resources{Number: config.NumberResource, Memory: config.MemoryResource, Cores: config.CoresResource},
		},
		Directory: filepath.Join(o.StateDir, "containers"), Factor: func() int { return t.Deck().Factor }, ByteLabels: byteLabels, Now: time.Now,
	})
	registry.MustRegister(shown)
	defer open.close() // before NVML is, which a scrape may be asking
	defer registry.Unregister(shown)
	return factor.Follow(ctx, func(factor int) { t.agreed(ctx, factor) })
}

// source is what the monitor knows of the node.
type source struct {
	nvml      *gate
	table     *table
	pods      *podwatch.Pods
	resources annotation.Resources
}

// gate keeps NVML from being asked after it was closed: a call of a library that is closed ends the process.
type gate struct {
	mu     sync.Mutex
	closed bool
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// GPUs implements monitor.Source.
func (s source) GPUs() []monitor.GPU {
	s.nvml.mu.Lock()
	defer s.nvml.mu.Unlock()
	if s.nvml.closed {
		return nil
	}
	var out []monitor.GPU
	for _, card := range s.table.Deck().Cards {
		memory, ret := card.GPU.Handle.GetMemoryInfo()
		if ret != nvml.SUCCESS {
			continue
		}
		gpu := monitor.GPU{Index: card.GPU.Index, UUID: card.GPU.UUID, MemoryUsed: memory.Used, MemoryTotal: memory.Total}
		// A GPU in MIG mode has no utilisation of its own.
		if rates, ret := card.GPU.Handle.GetUtilizationRates(); ret == nvml.SUCCESS {
			gpu.Utilization = rates.Gpu
		}
		out = append(out, gpu)
	}
	return out
}

// Containers implements monitor.Source.
func (s source) Containers() []monitor.Container {
	all, err := s.pods.All()
	if err != nil {
		return nil
	}
	var out []monitor.Container
	for _, pod := range all {
		if podwatch.Over(pod) {
			continue
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			// What cannot be read was refused when the container was made, with words.
			if shares, err := s.resources.Of(pod, container.Name); err == nil && len(shares) > 0 {
				out = append(out, monitor.Container{Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Name: container.Name,
					Shares: shares})
			}
		}
	}
	return out
}
