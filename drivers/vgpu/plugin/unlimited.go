package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/limiter/unlimited"
	"gpufabric.io/drivers/vgpu/injection"
)

// shareNotLimited is the reason of the Event about a container that nothing holds to its share.
const shareNotLimited = "ShareNotLimited"

// newUnlimited watches for containers that use a GPU and whose library did not open their account. With LimiterClosed their pods are
// failed.
func newUnlimited(o *Options, backend injection.Backend, gpus func() []unlimited.GPU, s *source, failing *failing) *unlimited.Watch {
	pods := s.pods
	return &unlimited.Watch{
		Proc: o.HostProc, Accounts: o.stateFile("accounts"),
		GPUs: gpus,
		Containers: func() []unlimited.Container {
			if backend != injection.Library {
				return nil // another program counts
			}
			return withMemory(s)
		},
		Inside: func(ctx context.Context, _ uint32, id string, c unlimited.Container) bool {
			pod, err := pods.Pod(ctx, c.Namespace, c.Pod, c.PodUID, true)
			return err == nil && runtimeID(pod, c.Name) == id
		},
		Report: func(ctx context.Context, f unlimited.Finding) {
			pod, err := pods.Pod(ctx, f.Container.Namespace, f.Container.Pod, f.Container.PodUID, false)
			if err != nil {
				return // it is gone
			}
			message := f.Message()
			klog.FromContext(ctx).Info("A container is not limited to its "+
				"share", "pod", klog.KObj(pod), "container", f.Container.Name, "gpu", f.UUID)
			failing.events.Event(pod, corev1.EventTypeWarning, shareNotLimited, message)
			if !o.LimiterClosed {
				return
			}
			if err := failing.fail(ctx, pod, message+" (vgpu.limiterClosed)"); err != nil {
				klog.FromContext(ctx).Error(err, "A pod continues without a limit", "pod", klog.KObj(pod))
			}
		},
	}
}

// withMemory are the containers with a limit of memory.
func withMemory(s *source) []unlimited.Container {
	var out []unlimited.Container
	for _, c := range s.Containers() {
		one := unlimited.Container{Namespace: c.Namespace, Pod: c.Pod, PodUID: c.PodUID, Name: c.Name, Account: c.PodUID + "_" + c.Name}
		for _, share := range c.Shares {
			if share.Memory > 0 {
				one.UUIDs = append(one.UUIDs, share.UUID)
			}
		}
		if len(one.UUIDs) > 0 {
			out = append(out, one)
		}
	}
	return out
}

// runtimeID is the container runtime's identifier of a container, without the runtime's name; empty: it does not run.
func runtimeID(pod *corev1.Pod, container string) string {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if _, id, _ := strings.Cut(status.ContainerID, "://"); status.Name == container {
			return id
		}
	}
	return ""
}

// processes are the shared GPUs with the PIDs of their processes.
func (t *table) processes() []unlimited.GPU {
	var out []unlimited.GPU
	for _, card := range t.SharedGPUs().Cards {
		out = append(out, unlimited.GPU{UUID: card.GPU.UUID, Processes: func() ([]uint32, error) {
			listed, ret := card.GPU.Handle.GetComputeRunningProcesses()
			if ret != nvml.SUCCESS {
				return nil, fmt.Errorf("list the processes of GPU %s: %w", card.GPU.UUID, errors.New(nvml.ErrorString(ret)))
			}
			pids := make([]uint32, 0, len(listed))
			for _, p := range listed {
				pids = append(pids, p.Pid)
			}
			return pids, nil
		}})
	}
	return out
}

func unlimitedGauge(w *unlimited.Watch) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpufabric_vgpu_unlimited_containers",
		Help: "Running containers that use a GPU of which they have a share, and that nothing holds to it: their library did not open their " +
			"account."},
		func() float64 { return float64(w.Found()) })
}
