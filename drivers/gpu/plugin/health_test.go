package plugin

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
)

// taints waits until the published taints of a device are as wanted ("key=value:effect", space-separated).
func (b *bench) taints(name, want string) {
	b.Helper()
	w, err := b.client.ResourceV1().ResourceSlices().Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	timeout := time.After(time.Minute)
	got := "not published"
	for {
		for _, s := range b.slices() {
			for _, d := range s.Spec.Devices {
				if d.Name == name {
					got = describe(d.Taints)
				}
			}
		}
		if got == want {
			return
		}
		select {
		case <-w.ResultChan():
		case <-timeout:
			b.Fatalf("%s has taints %q, want %q", name, got, want)
		}
	}
}

func describe(taints []resourceapi.DeviceTaint) string {
	var out []string
	for _, t := range taints {
		out = append(out, t.Key+"="+t.Value+":"+string(t.Effect))
	}
	return strings.Join(sorted(out), " ")
}

// event waits until an Event with a reason was written for an object of a kind, and returns its message.
func (b *bench) event(kind, reason string) string {
	b.Helper()
	w, err := b.client.CoreV1().Events("").Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	timeout := time.After(time.Minute)
	for {
		list, err := b.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == kind && e.Reason == reason {
				return e.Message
			}
		}
		select {
		case <-w.ResultChan():
		case <-timeout:
			b.Fatalf("no Event %s on a %s", reason, kind)
		}
	}
}

// faults is how many faults the role's metrics count on a GPU.
func (b *bench) faults(uuid string) (n float64) {
	b.Helper()
	families, err := b.running().metrics.Registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "gpufabric_gpu_faults" {
			continue
		}
		for _, metric := range family.Metric {
			for _, label := range metric.Label {
				if label.GetName() == "uuid" && label.GetValue() == uuid {
					n += metric.Gauge.GetValue()
				}
			}
		}
	}
	return n
}

func TestHealthTaintsGPUAfterXIDUntilItIsHealthy(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	b.slices()
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-1"}))
	m.GPUs[1].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
	m.Event(1, nvml.EventTypeXidCriticalError, 119)
	for _, name := range []string{"gpu-1", "gpu-1-shared", "gpu-1-mig-1g5gb-19-3"} {
		b.taints(name, "gpu.nvidia.com/xid=119:NoSchedule")
	}
	b.taints("gpu-0", "")
	b.event("ResourceClaim", "GPUUnhealthy")
	b.event("Node", "GPUUnhealthy")

	// A restart keeps the fault, and does not remove the taint even for a moment.
	b.stop()
	b.start()
	b.taints("gpu-1", "gpu.nvidia.com/xid=119:NoSchedule")
	if n := b.faults(m.GPUs[1].UUID); n != 1 {
		t.Errorf("after the restart %v faults are counted", n)
	}

	// It is healthy again: the GPU was reset, and after a reboot it needs no further action.
	b.stop()
	m.GPUs[1].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_NONE))
	m.Boot(t, "boot-2")
	b.start()
	b.taints("gpu-1", "")
	b.event("Node", "GPUHealthy")
}

// slowAPI is an API server that, once it has a gate, answers no read of a claim before the gate is closed.
type slowAPI struct {
	*fake.Clientset // client-go watches through its other methods
	gate            *atomic.Pointer[chan struct{}]
}

func (s slowAPI) ResourceV1() resourcev1.ResourceV1Interface {
	return slowResources{s.Clientset.ResourceV1(), s.gate}
}

type slowResources struct {
	resourcev1.ResourceV1Interface
	gate *atomic.Pointer[chan struct{}]
}

func (s slowResources) ResourceClaims(namespace string) resourcev1.ResourceClaimInterface {
	return slowClaims{s.ResourceV1Interface.ResourceClaims(namespace), s.gate}
}

type slowClaims struct {
	resourcev1.ResourceClaimInterface
	gate *atomic.Pointer[chan struct{}]
}

func (s slowClaims) Get(ctx context.Context, name string, o metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	if gate := s.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.ResourceClaimInterface.Get(ctx, name, o)
}

func TestHealthDetectsFaultsWhenAPIServerIsSlow(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	b.stop()
	var gate atomic.Pointer[chan struct{}]
	b.wrap = func(client *fake.Clientset) kubernetes.Interface { return slowAPI{client, &gate} }
	b.start()
	b.taints("gpu-1", "")
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0"}))
	slow := make(chan struct{})
	gate.Store(&slow)
	m.GPUs[1].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
	m.Event(0, nvml.EventTypeXidCriticalError, 119)
	m.Event(1, nvml.EventTypeXidCriticalError, 119)
	b.taints("gpu-1", "gpu.nvidia.com/xid=119:NoSchedule")
	close(slow)
	b.event("ResourceClaim", "GPUUnhealthy")
}

func TestHealthDoesNotTaintForApplicationErrors(t *testing.T) {
	m := gputest.New(t, 1)
	b := newBench(t, m)
	b.slices()
	m.Event(0, nvml.EventTypeXidCriticalError, 31)
	b.event("Node", "GPUUnhealthy")
	b.taints("gpu-0", "")
}

func TestHealthShowsWarningWithoutBlockingClaims(t *testing.T) {
	m := gputest.New(t, 1)
	b := newBench(t, m)
	b.slices()
	m.Event(0, nvml.EventTypeXidCriticalError, 63)
	b.taints("gpu-0", "gpu.nvidia.com/ecc=63:None")
}

func TestLostGPUEvictsItsPods(t *testing.T) {
	m := gputest.New(t, 1)
	b := newBench(t, m)
	b.slices()
	m.GPUs[0].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_NODE_REBOOT))
	m.Event(0, nvml.EventTypeXidCriticalError, 79)
	b.taints("gpu-0", "gpu.nvidia.com/lost=79:NoExecute")
}

// A lost GPU's pods are evicted. The eviction ends only when their claims are released. A reset undoes what cannot be undone on the
// lost GPU.
func TestClaimsOnALostGPUAreGivenBack(t *testing.T) {
	m := gputest.New(t, 3)
	mpsControl(t, m)
	smi(t, m)
	b := newBench(t, m)
	b.stop()
	b.enter = plainly
	b.start()
	held := []*resourceapi.ResourceClaim{
		b.claim("u0", nil, device{name: "gpu-0-mig-1g5gb-19-3"}),
		b.claim("u1", []string{gpuConfig(`{"strategy":"MPS"}`)}, device{name: "gpu-1"}),
		b.claim("u2", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)}, device{name: "gpu-2"}),
	}
	for i, c := range held {
		b.mustPrepare(c)
		m.GPUs[i].SetLost(true)
	}
	if err := os.WriteFile(m.Path("driver/usr/bin/nvidia-smi"), []byte("#!/bin/sh\necho the GPU is lost\nexit 15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range held {
		if problem := b.unprepare(c); problem != "" {
			t.Errorf("%s: %s", c.Name, problem)
		}
	}
	if t.Failed() {
		return // a claim that was not released would be waited for
	}
	for _, g := range m.GPUs {
		g.SetLost(false)
	}
	for i, c := range []*resourceapi.ResourceClaim{
		b.claim("u3", nil, device{name: "gpu-0"}), b.claim("u4", nil, device{name: "gpu-1"}), b.claim("u5", nil, device{name: "gpu-2"}),
	} {
		if _, problem := b.prepare(c); problem != "" {
			t.Errorf("GPU %d after it is back: %s", i, problem)
		}
	}
}

func TestLostGPUIsOfferedWhenItIsBack(t *testing.T) {
	root := renderFake(t, "h100-hgx")
	inject := func(event string, args fault.Arguments) {
		t.Helper()
		if err := fault.Apply(root, event, args); err != nil {
			t.Fatal(err)
		}
	}
	inject("gpu-lost", fault.Arguments{"gpu": "3"})
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	b.stop()
	b.recheck = 50 * time.Millisecond
	b.start()
	b.taints("gpu-0", "")
	for _, s := range b.slices() {
		for _, d := range s.Spec.Devices {
			if strings.HasPrefix(d.Name, "gpu-3") {
				t.Fatalf("%s is published while the GPU is lost", d.Name)
			}
		}
	}
	inject("gpu-back", fault.Arguments{"gpu": "3"})
	b.taints("gpu-3", "")
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-3"}))
}

// deviceLike returns a known device whose name has that prefix, or nil.
func (b *bench) deviceLike(prefix string) *devices.Device {
	role := b.running().serving.Load()
	if role == nil {
		return nil
	}
	for _, d := range role.kind.Hardware().Pool.Devices() {
		if strings.HasPrefix(d.Name(), prefix) {
			return d
		}
	}
	return nil
}

func TestLostGPUStaysWithItsClaimWhenItIsBack(t *testing.T) {
	root := renderFake(t, "h100-hgx")
	inject := func(event string) {
		t.Helper()
		if err := fault.Apply(root, event, fault.Arguments{"gpu": "3"}); err != nil {
			t.Fatal(err)
		}
	}
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	b.taints("gpu-3", "")
	held := b.claim("u1", nil, device{name: "gpu-3-shared", share: "s1"})
	b.mustPrepare(held)
	b.stop()
	inject("gpu-lost")
	b.recheck = 50 * time.Millisecond
	b.start()
	inject("gpu-back")
	var slice *devices.Device
	b.await(func() bool { // the published slices are from before the restart
		slice = b.deviceLike("gpu-3-mig-")
		return slice != nil
	}, "the GPU is known again")
	for _, c := range []*resourceapi.ResourceClaim{
		b.claim("u2", nil, device{name: "gpu-3"}),
		b.claim("u3", nil, device{name: slice.Name()}),
		b.claimFrom(resourceapi.AllocationConfigSourceClass, "u4",
			[]string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)},
			device{name: "gpu-3-shared", share: "s4"}),
	} {
		b.refused(c, "is held by claim", "is shared by")
	}
	b.mustPrepare(b.claim("u5", nil, device{name: "gpu-3-shared", share: "s5"}))
	for _, c := range []*resourceapi.ResourceClaim{held, b.get("u5")} {
		if problem := b.unprepare(c); problem != "" {
			t.Error(problem)
		}
	}
	b.mustPrepare(b.claim("u6", nil, device{name: "gpu-3"}))
}

func TestHealthTaintsGPUWhileNVLinkIsDown(t *testing.T) {
	root := renderFake(t, "h100-hgx")
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	b.stop()
	b.recheck = 50 * time.Millisecond
	b.start()
	b.taints("gpu-2", "")
	if err := fault.Apply(root, "nvlink-down", fault.Arguments{"gpu": "2", "link": "5"}); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-2", "gpu.nvidia.com/nvlink=link-5:NoSchedule")
	// After a restart the role still knows it.
	b.stop()
	b.start()
	b.taints("gpu-2", "gpu.nvidia.com/nvlink=link-5:NoSchedule")
	if err := fault.Apply(root, "nvlink-up", fault.Arguments{"gpu": "2", "link": "5"}); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-2", "")
}

// The file may have held a fault of any GPU.
func TestHealthTaintsGPUsWhileFaultFileIsUnreadable(t *testing.T) {
	m := gputest.New(t, 1)
	b := newBench(t, m)
	b.stop()
	path := b.options.StateDir + "/faults.json"
	if err := os.WriteFile(path, []byte("{\"version\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.event("Node", "GPUFaultsUnreadable")
	b.taints("gpu-0", "gpu.nvidia.com/record=:NoSchedule")
	if err := os.Remove(b.options.StateDir + "/unreadable/faults.json"); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-0", "")
}
