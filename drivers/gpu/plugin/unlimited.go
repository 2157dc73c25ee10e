package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/limiter/unlimited"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/host"
)

// shareNotLimited is the reason of the Event about a pod whose container nothing holds to its share.
const shareNotLimited = "ShareNotLimited"

// mostMounts is the most that is read of a process's list of mounts, in bytes.
const mostMounts = 1 << 20

// unlimitedShares finds containers that use a claim's share without the library. A container with a share has the share's file of limits
// mounted, by which its processes are recognised.
type unlimitedShares struct {
	proc     string
	accounts string
	// shares are the claims' shares that the library limits, records the claims.
	shares  func() []claims.Share
	records func() []claimstate.Record
	node    func() *inventory.Node
	client  kubernetes.Interface
	events  record.EventRecorder
	// closed has the pods failed.
	closed bool
}

// watch returns the watch, which its caller runs.
func (u *unlimitedShares) watch() *unlimited.Watch {
	return &unlimited.Watch{Proc: u.proc, Accounts: u.accounts, GPUs: u.gpus, Containers: u.containers, Inside: u.inside, Report: u.report}
}

// containers returns a container for each share and each pod of its claim.
func (u *unlimitedShares) containers() []unlimited.Container {
	shares := u.shares()
	var out []unlimited.Container
	for _, record := range u.records() {
		for _, share := range shares {
			if share.Claim != record.UID {
				continue
			}
			for _, pod := range record.Pods {
				out = append(out, unlimited.Container{Namespace: record.Namespace, Pod: pod.Name, PodUID: string(pod.UID),
					UUIDs: []string{share.GPU}, Account: share.Name})
			}
		}
	}
	return out
}

// inside reports whether a process's container has a share, and no other of the same GPU: with several it counts in a file of its own.
func (u *unlimitedShares) inside(_ context.Context, pid uint32, _ string, c unlimited.Container) bool {
	has, err := u.mounted(pid)
	if err != nil || !slices.Contains(has, c.Account) {
		return false
	}
	return !slices.ContainsFunc(u.shares(), func(s claims.Share) bool {
		return s.Name != c.Account && slices.Contains(c.UUIDs, s.GPU) && slices.Contains(has, s.Name)
	})
}

// mounted returns the names of the shares whose limits are mounted where a process is (proc_pid_mountinfo(5): the fifth field is the mount
// point).
func (u *unlimitedShares) mounted(pid uint32) ([]string, error) {
	file, err := os.Open(filepath.Join(u.proc, strconv.FormatUint(uint64(pid), 10), "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(file, mostMounts))
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && filepath.Dir(fields[4]) == limiter.Directory {
			names = append(names, filepath.Base(fields[4]))
		}
	}
	return names, nil
}

func (u *unlimitedShares) gpus() []unlimited.GPU {
	var out []unlimited.GPU
	for _, g := range u.node().GPUs {
		out = append(out, unlimited.GPU{UUID: g.UUID, Processes: func() ([]uint32, error) {
			listed, ret := g.Handle.GetComputeRunningProcesses()
			if ret != nvml.SUCCESS {
				return nil, fmt.Errorf("list the processes of GPU %s: %w", g.UUID, errors.New(nvml.ErrorString(ret)))
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

func (u *unlimitedShares) report(ctx context.Context, f unlimited.Finding) {
	pod := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: f.Container.Namespace, Name: f.Container.Pod,
		UID: types.UID(f.Container.PodUID)}
	message := f.Message()
	klog.FromContext(ctx).Info("A container is not limited to its share", "pod", klog.KRef(pod.Namespace, pod.Name), "container",
		f.Container.Name, "gpu", f.UUID)
	u.events.Event(pod, corev1.EventTypeWarning, shareNotLimited, message)
	if !u.closed {
		return
	}
	failed, err := host.FailPod(ctx, u.client, pod.Namespace, pod.Name, pod.UID, message+" (gpus.limiterClosed)")
	if err != nil {
		klog.FromContext(ctx).Error(err, "A pod continues without a limit", "pod", klog.KRef(pod.Namespace, pod.Name))
	} else if failed {
		u.events.Event(pod, corev1.EventTypeWarning, host.ReasonSharesRefused, message)
	}
}

func unlimitedGauge(w *unlimited.Watch) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpufabric_gpu_unlimited_containers",
		Help: "Running containers that use a GPU of which their claim has a share, and that nothing holds to it: their library did not open " +
			"the share's account."},
		func() float64 { return float64(w.Found()) })
}
