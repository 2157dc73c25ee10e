package plugin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
)

const taken = "gpufabric.io/device-plugin=volcano:NoSchedule"

func TestHandoverTaintsAndFreesGPUFirst(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	holder := b.claim("u1", nil, device{name: "gpu-1-mig-1g5gb-19-0"})
	b.mustPrepare(holder)
	directory := handover.Directory(b.options.HandoverDir)
	if err := directory.Request("volcano", m.GPUs[1].UUID); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpu-1", "gpu-1-shared", "gpu-1-mig-3g20gb-9-4"} {
		b.taints(name, taken)
	}
	b.taints("gpu-0", "")
	confirmed := filepath.Join(b.options.HandoverDir, m.GPUs[1].UUID+".tainted")
	if _, err := os.Stat(confirmed); err == nil {
		t.Fatal("the GPU was handed over while a claim held a part of it")
	}
	if problem := b.unprepare(holder); problem != "" {
		t.Fatal(problem)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := directory.Await(ctx, &filewatch.Watcher{}, m.GPUs[1].UUID); err != nil {
		t.Fatal(err)
	}
	// A claim that slipped through is refused by name. The kubelet waits 45 s.
	b.refused(b.claim("u2", nil, device{name: "gpu-1"}), "the device plugin volcano")
	// After it was returned, it is handed over again.
	if err := directory.Request("volcano"); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-1", "")
	b.mustPrepare(b.claim("u3", nil, device{name: "gpu-1"}))
}

// A claim may hold a GPU for weeks, on every node of a cluster.
func TestHandoverDoesNotQueryAPIServerWhileItWaits(t *testing.T) {
	t.Parallel() // it waits
	m := gputest.New(t, 1)
	b := newBench(t, m)
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0"}))
	if err := handover.Directory(b.options.HandoverDir).Request("volcano", m.GPUs[0].UUID); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-0", taken)
	lists := func() (n int) {
		for _, action := range b.client.Actions() {
			if action.Matches("list", "resourceslices") {
				n++
			}
		}
		return n
	}
	last, since := lists(), time.Now()
	b.await(func() bool { // until the taints were seen published, lists are right
		if now := lists(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 3*retryHold
	}, "ResourceSlices are not listed for three tries of the GPU")
}

// This happens where a disk goes away for a moment. Pods that have nothing to do with a device plugin must not notice.
func TestHandoverSurvivesUnreadableDirectory(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	directory := handover.Directory(b.options.HandoverDir)
	if err := directory.Request("volcano", m.GPUs[1].UUID); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-1", taken)
	aside := b.options.HandoverDir + ".aside"
	if err := os.WriteFile(aside, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	exchange := func() { // atomically, since the role makes a missing directory
		if err := unix.Renameat2(unix.AT_FDCWD, b.options.HandoverDir, unix.AT_FDCWD, aside, unix.RENAME_EXCHANGE); err != nil {
			t.Fatal(err)
		}
	}
	exchange()
	b.event("Node", "HandoverUnreadable")
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0"}))
	b.taints("gpu-1", taken)
	exchange()
	if err := directory.Request("volcano"); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-1", "")
}

func TestHandoverKeepsGPUsAfterRestart(t *testing.T) {
	m := gputest.New(t, 1)
	b := newBench(t, m)
	directory := handover.Directory(b.options.HandoverDir)
	if err := directory.Request("volcano", m.GPUs[0].UUID); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-0", taken)
	b.stop()
	b.client.ClearActions()
	b.start()
	b.taints("gpu-0", taken)
	for _, action := range b.client.Actions() {
		if action.GetResource().Resource == "resourceslices" && action.GetVerb() == "update" {
			t.Errorf("the restart changed what is published: %v", action)
		}
	}
}

func TestHandoverReturnsIdleGPUWhenDevicePluginIsGone(t *testing.T) {
	m := gputest.New(t, 3)
	m.GPUs[1].SetProcesses(1)
	b := newBench(t, m)
	directory := handover.Directory(b.options.HandoverDir)
	if err := directory.Request("volcano", m.GPUs[0].UUID, m.GPUs[1].UUID, m.GPUs[2].UUID); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpu-0", "gpu-1", "gpu-2"} {
		b.taints(name, taken)
	}
	b.stop()
	b.options.HandoverTo = nil
	b.start()
	b.taints("gpu-0", "")
	b.taints("gpu-2", "")
	b.taints("gpu-1", taken)
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0"}))
	m.GPUs[1].SetProcesses(0)
	b.taints("gpu-1", "")
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1"}))
}

func TestNvidiaComGPUIsCountedOnTheNodeAfterTheTaint(t *testing.T) {
	m := gputest.New(t, 2)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := newBench(t, m, func(o *Options) { o.KubeletRoot = kubelet.Root() })
	holder := b.claim("u1", nil, device{name: "gpu-1"})
	b.mustPrepare(holder)
	b.stop()
	b.options.DevicePlugin = []string{"all"}
	b.start()
	for _, name := range []string{"gpu-0", "gpu-1"} {
		b.taints(name, "gpufabric.io/device-plugin=nvidia-com-gpu:NoSchedule")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// the one without a holder
	if err := handover.Directory(b.options.HandoverDir).Await(ctx, &filewatch.Watcher{}, m.GPUs[0].UUID); err != nil {
		t.Fatal(err)
	}
	if counted := kubelet.View("nvidia.com/gpu"); counted.Registrations > 0 {
		t.Errorf("the node counts %+v while a claim holds a GPU", counted)
	}
	if problem := b.unprepare(holder); problem != "" {
		t.Fatal(problem)
	}
	kubelet.AwaitAllocatable("nvidia.com/gpu", 2)
	ids, response, err := kubelet.Allocate(t.Context(), "nvidia.com/gpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	want := "k8s.gpu.nvidia.com/gpu=" + ids[0]
	if len(response.CdiDevices) != 1 || response.CdiDevices[0].Name != want {
		t.Errorf("CDI devices %v, want %s", response.CdiDevices, want)
	}
	spec, err := os.ReadFile(filepath.Join(b.options.CDIRoot, "k8s.gpu.nvidia.com-gpu.json"))
	if err != nil || !strings.Contains(string(spec), ids[0]) {
		t.Errorf("CDI spec %s, %v", spec, err)
	}
	// An unhealthy GPU is no longer counted.
	m.GPUs[1].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
	m.Event(1, nvml.EventTypeXidCriticalError, 48)
	kubelet.AwaitAllocatable("nvidia.com/gpu", 1)
}

func TestHandoverReturnsIdleGPUWhenNodeStopsCountingIt(t *testing.T) {
	const counted = "gpufabric.io/device-plugin=nvidia-com-gpu:NoSchedule"
	m := gputest.New(t, 2)
	m.GPUs[1].SetProcesses(1)
	b := newBench(t, m, func(o *Options) { o.DevicePlugin = []string{"all"} })
	b.taints("gpu-0", counted)
	b.taints("gpu-1", counted)
	b.stop()
	b.options.DevicePlugin = nil
	b.start()
	b.taints("gpu-0", "")
	b.event("Node", "HandoverStillInUse")
	b.taints("gpu-1", counted)
	m.GPUs[1].SetProcesses(0)
	b.taints("gpu-1", "")
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-1"}))
}

func TestHandoverCountsIdleGPUWhenDevicePluginIsGone(t *testing.T) {
	m := gputest.New(t, 2)
	m.GPUs[1].SetProcesses(1)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := newBench(t, m, func(o *Options) { o.KubeletRoot = kubelet.Root() })
	if err := handover.Directory(b.options.HandoverDir).Request("volcano", m.GPUs[1].UUID); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-1", taken)
	b.stop()
	b.options.HandoverTo, b.options.DevicePlugin = nil, []string{"all"}
	b.start()
	b.event("Node", "HandoverStillInUse")
	b.taints("gpu-1", taken)
	m.GPUs[1].SetProcesses(0)
	b.taints("gpu-1", "gpufabric.io/device-plugin=nvidia-com-gpu:NoSchedule")
	kubelet.AwaitAllocatable("nvidia.com/gpu", 2)
}

func TestHandoverKeepsLostGPUThatNodeCounts(t *testing.T) {
	const counted = "gpufabric.io/device-plugin=nvidia-com-gpu:NoSchedule"
	m := gputest.New(t, 2)
	m.GPUs[1].SetLost(true)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := newBench(t, m, func(o *Options) { o.KubeletRoot, o.DevicePlugin = kubelet.Root(), []string{"all"} })
	b.stop()
	b.recheck = 50 * time.Millisecond
	b.start()
	kubelet.AwaitAllocatable("nvidia.com/gpu", 1)
	m.GPUs[1].SetLost(false)
	kubelet.AwaitAllocatable("nvidia.com/gpu", 2)
	b.taints("gpu-1", counted)
	// A GPU that is lost when the role starts still belongs to the pod that has it.
	b.stop()
	m.GPUs[1].SetLost(true)
	b.start()
	kubelet.AwaitAllocatable("nvidia.com/gpu", 1)
	if _, err := os.Stat(filepath.Join(b.options.HandoverDir, m.GPUs[1].UUID+".requested")); err != nil {
		t.Errorf("the GPU is not asked for any more: %v", err)
	}
}

// A pod that was deleted by force has the GPU open, and no CUDA context: NVML shows no process. It got the GPU through a device plugin.
func TestHandoverKeepsGPUWhileAForgottenPodOfTheDevicePluginRuns(t *testing.T) {
	m := gputest.New(t, 2)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := newBench(t, m, func(o *Options) { o.KubeletRoot = kubelet.Root() })
	pods := occupancytest.New(t, b.options.Cgroups().Path)
	directory := handover.Directory(b.options.HandoverDir)
	if err := directory.Request("volcano", m.GPUs[0].UUID, m.GPUs[1].UUID); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-0", taken)
	b.taints("gpu-1", taken)
	if err := directory.Await(t.Context(), &filewatch.Watcher{}, m.GPUs[0].UUID, m.GPUs[1].UUID); err != nil {
		t.Fatal(err)
	}
	kubelet.Record("volcano.sh/vgpu-number", map[string][]string{"pod-a": {m.GPUs[1].UUID + "-3"}})
	pods.Run("pod-a")
	if err := directory.Request("volcano"); err != nil { // it is to give both GPUs back
		t.Fatal(err)
	}
	b.taints("gpu-0", "")
	b.taints("gpu-1", taken)
	kubelet.Record("volcano.sh/vgpu-number", nil) // the kubelet forgets the pod
	b.stop()
	b.start()
	b.taints("gpu-1", "gpufabric.io/device-plugin=withdrawn:NoSchedule")
	b.refused(b.claim("u1", nil, device{name: "gpu-1"}), "the device plugin withdrawn") // a pod uses it
	pods.End("pod-a")
	b.taints("gpu-1", "")
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1"}))
}

func TestNvidiaComGPUIsNotCountedWhileAForgottenPodUsesIt(t *testing.T) {
	m := gputest.New(t, 2)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := newBench(t, m, func(o *Options) { o.KubeletRoot, o.DevicePlugin = kubelet.Root(), []string{"all"} })
	pods := occupancytest.New(t, b.options.Cgroups().Path)
	kubelet.AwaitAllocatable("nvidia.com/gpu", 2)
	pods.Run("pod-a")
	kubelet.Record("nvidia.com/gpu", map[string][]string{"pod-a": {m.GPUs[0].UUID}})
	if _, err := kubelet.AllocateIDs(t.Context(), "nvidia.com/gpu", m.GPUs[0].UUID); err == nil || !strings.Contains(err.Error(), "pod-a") {
		t.Errorf("a GPU was allocated under a running container: %v", err)
	}
	kubelet.Record("nvidia.com/gpu", nil)
	kubelet.AwaitAllocatable("nvidia.com/gpu", 1)
	pods.End("pod-a")
	kubelet.AwaitAllocatable("nvidia.com/gpu", 2)
}
