package plugin

import (
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
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/memorylimits"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/figures"
	"gpufabric.io/drivers/vgpu/monitor"
	"gpufabric.io/drivers/vgpu/podwatch"
)

// MonitorRole is the subcommand's name. It is a separate role, so that reading tenants' files can neither stop nor be stopped by
// serving the kubelet, and does not need privileges. It takes vgpu-plugin's flags, and needs of its rights only get, list and watch of
// pods.
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
		Long: `Export what containers may use of shared GPUs, and what they do use. It takes vgpu-plugin's flags, so that a pod gives ` +
			`both the same, and
heeds the files of settings and --state-dir, which is vgpu-plugin's. What it says of the GPUs themselves it hears from vgpu-plugin.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, client, err := h.Connect(MonitorRole, &o)
			if err != nil {
				return err
			}
			return RunMonitor(cmd.Context(), &o, byteLabels, client)
		},
	}
	o.Bind(cmd.Flags(), h.Env)
	cmd.Flags().Lookup("metrics-address").Usage = "host:port that serves /metrics and /healthz; empty: " + monitorAddress
	cmd.Flags().BoolVar(&byteLabels, "byte-labels", false,
		"also export Device_memory_desc_of_container, which has byte counts as labels: each change of use is a new series")
	return cmd
}

// RunMonitor runs the role until ctx ends. --state-dir is vgpu-plugin's, read only. It does not open a device or a part of the driver:
// vgpu-plugin sends it NVML's figures of the GPUs.
func RunMonitor(ctx context.Context, o *Options, byteLabels bool, client kubernetes.Interface) error {
	if err := o.Validate(); err != nil {
		return err
	}
	config, err := o.settings(ctx, client)
	if err != nil {
		return err
	}
	address := o.MetricsAddress
	if address == "" {
		address = monitorAddress
	}
	registry := prometheus.NewRegistry()
	var reads atomic.Pointer[monitor.Collector]
	alive := func() error {
		if collector := reads.Load(); collector != nil {
			return collector.Alive()
		}
		return nil
	}
	ready := func() error {
		if reads.Load() == nil {
			return errors.New("the pods of this node have not been read yet: does the API server answer?")
		}
		return nil
	}
	return together(ctx,
		func(ctx context.Context) error {
			return metrics.Guard(o.MetricsAuth, client).Serve(ctx, address, registry, alive, ready)
		},
		func(ctx context.Context) error {
			watched, err := podwatch.Watch(ctx, client, o.NodeName, func(*corev1.Pod) {})
			if err != nil {
				return err
			}
			collector := monitor.New(monitor.Options{
				Source: &source{
					ask:       func() (figures.Figures, error) { return figures.Read(ctx, o.stateFile(figures.Socket)) },
					pods:      watched,
					resources: resourcesOf(config),
				},
				Directory: o.stateFile("containers"), Accounts: o.stateFile("accounts"), ByteLabels: byteLabels, Now: time.Now,
			})
			registry.MustRegister(collector)
			reads.Store(collector)
			<-ctx.Done()
			return nil
		})
}

// source is the monitor's view of the node.
type source struct {
	ask       func() (figures.Figures, error)
	pods      *podwatch.Pods
	resources annotation.Resources

	mu    sync.Mutex
	known figures.Figures
}

// Figures implements monitor.Source. While vgpu-plugin is away, its last units and sizes of memory remain valid.
func (s *source) Figures() (figures.Figures, bool) {
	now, err := s.ask()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return s.known, false
	}
	s.known = now
	return now, true
}

// read reads the figures of the shared GPUs from NVML. It omits containers that cannot be read.
func (t *table) read() figures.Figures {
	gpus := t.SharedGPUs()
	out := figures.Figures{Factor: gpus.Factor}
	for _, card := range gpus.Cards {
		memory, ret := card.GPU.Handle.GetMemoryInfo()
		if ret != nvml.SUCCESS {
			continue
		}
		gpu := figures.GPU{Index: card.GPU.Index, UUID: card.GPU.UUID, MemoryUsed: memory.Used, MemoryTotal: memory.Total}
		// A GPU in MIG mode has no utilisation of its own.
		if rates, ret := card.GPU.Handle.GetUtilizationRates(); ret == nvml.SUCCESS {
			gpu.Utilization = rates.Gpu
		}
		out.GPUs = append(out.GPUs, gpu)
	}
	return out
}

// withUses adds the driver's figures of the containers that it limits, and those of the library of the containers with seats.
func withUses(of figures.Figures, memory *memorylimits.Keeper, seats *cores.Seats) figures.Figures {
	for _, use := range seats.Used() {
		of.Cores = append(of.Cores, figures.CoreUse(use))
	}
	for _, use := range memory.Used() {
		of.Used = append(of.Used, figures.Use(use))
	}
	return of
}

// Containers implements monitor.Source.
func (s *source) Containers() []monitor.Container {
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
			// An unreadable share was refused with an error when the container was made.
			if shares, err := s.resources.Of(pod, container.Name); err == nil && len(shares) > 0 {
				out = append(out, monitor.Container{Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Name: container.Name,
					Shares: shares})
			}
		}
	}
	return out
}
