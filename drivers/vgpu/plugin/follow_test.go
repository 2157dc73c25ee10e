package plugin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/occupancy"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/hook"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/podwatch"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

func TestPluginReportsABrokenGPUToKubeletAndScheduler(t *testing.T) {
	n := start(t, "--gpu-memory-factor=10")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	uuid := n.machine.GPUs[0].UUID
	n.annotation(annotation.NodeRegister, func(got string) bool {
		return strings.Contains(got, uuid+",10,4096,NVIDIA-A100-SXM4-40GB,true,")
	})
	n.machine.GPUs[0].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
	n.machine.Event(0, nvml.EventTypeXidCriticalError, 79)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 10)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-memory", 4096)
	n.annotation(annotation.NodeRegister, func(got string) bool {
		return strings.Contains(got, uuid+",0,4096,NVIDIA-A100-SXM4-40GB,false,") && strings.Contains(got, ",true,")
	})
	n.schedule("train", uuid+",NVIDIA,1024,0:;", "main")
	if _, err := n.tryAllocate("volcano.sh/vgpu-number", 1); err == nil || !strings.Contains(err.Error(), "XID 79") {
		t.Errorf("got %v, want a refusal that names the fault", err)
	}
	failed := n.phase("train", annotation.BindFailed)
	if failed.Annotations[annotation.PodPending] != failed.Annotations[annotation.PodDevices] {
		t.Errorf("annotations %v, want the devices restored", failed.Annotations)
	}
}

func TestPluginSharesAGPUThatAnswersLate(t *testing.T) {
	machine := gputest.New(t, 2)
	var back atomic.Bool
	answers := machine.DeviceGetHandleByIndexFunc
	machine.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 1 && !back.Load() {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return answers(i)
	}
	n := startOn(t, machine, &Options{recheck: time.Millisecond}, "--gpu-memory-factor=10")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 10)
	n.schedule("before", machine.GPUs[0].UUID+",NVIDIA,4096,0:;", "main")
	n.allocate("volcano.sh/vgpu-number", 1)
	n.phase("before", annotation.BindSuccess)
	back.Store(true)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	n.annotation(annotation.NodeRegister, func(got string) bool { return strings.Contains(got, machine.GPUs[1].UUID+",10,4096,") })
	n.schedule("after", machine.GPUs[1].UUID+",NVIDIA,4096,0:;", "main")
	n.allocate("volcano.sh/vgpu-number", 1)
	n.phase("after", annotation.BindSuccess)
	n.schedule("greedy", machine.GPUs[0].UUID+",NVIDIA,4096,0:;", "main")
	if _, err := n.tryAllocate("volcano.sh/vgpu-number", 1); err == nil || !strings.Contains(err.Error(), "held by default/before") {
		t.Errorf("got %v, want a refusal that names who had its share before", err)
	}
}

// modes writes a node configuration and returns its flag.
func modes(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--node-config=" + path
}

func TestModesMixOnOneNodeAndAnInstanceGoesWithItsPod(t *testing.T) {
	var uuids []string // the same on every such machine
	for _, gpu := range gputest.New(t, 2).GPUs {
		uuids = append(uuids, gpu.UUID)
	}
	n := start(t, "--gpu-memory-factor=1", "--scheduler=gpufabric", modes(t,
		fmt.Sprintf(`{"nodeconfig": [{"name": %q, "operatingmode": "mig", "gpumodes": {%q: "hami-core"}}]}`, nodeName, uuids[1])))
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 17)
	n.annotation(annotation.NodeRegister, func(got string) bool {
		return got == uuids[0]+",7,40960,NVIDIA-A100-SXM4-40GB,true,mig:"+uuids[1]+",10,40960,NVIDIA-A100-SXM4-40GB,true,hami-core:"
	})
	// An A100-40's kinds of instance, smallest first: 1g.5gb, with media engines, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb.
	n.annotation(annotation.NodeMIGSlots, func(got string) bool {
		return got == `{"`+uuids[0]+`":[[4864,4864,4864,4864,4864,4864,4864],[4864],[9856,9856,9856,9856],[9856,9856,9856],[19968,19968],`+
			`[19968],[40448]]}`
	})
	n.schedule("small", uuids[0]+",NVIDIA,3000,0:;", "main")
	_, response := n.allocate("volcano.sh/vgpu-number", 1)
	if len(response.Devices) != 2 || !strings.HasPrefix(response.Envs["NVIDIA_VISIBLE_DEVICES"], "MIG-") ||
		response.Envs["CUDA_DEVICE_MEMORY_LIMIT_0"] != "" {
		t.Errorf("devices %v, environment %v; want an instance's two capabilities and no limiter", response.Devices, response.Envs)
	}
	pod := n.phase("small", annotation.BindSuccess)
	var shown map[string][]instances.Instance
	if err := json.Unmarshal([]byte(pod.Annotations[instancesAnnotation]), &shown); err != nil || len(shown["main"]) != 1 ||
		shown["main"][0].Profile != "1g.5gb" {
		t.Errorf("annotation %q (%v), want a 1g.5gb for 3000 MiB", pod.Annotations[instancesAnnotation], err)
	}
	n.schedule("absent", uuids[1]+"[0-0],NVIDIA,3000,0:;", "main")
	if _, err := n.tryAllocate("volcano.sh/vgpu-number", 1); err == nil || !strings.Contains(err.Error(), "not shared in mode mig") {
		t.Errorf("got %v, want a refusal of the slot", err)
	}
	if err := n.api.CoreV1().Pods("default").Delete(t.Context(), "small", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for len(n.machine.GPUs[0].Instances()) > 0 { // its removal runs in the background; the test's deadline bounds the wait
		time.Sleep(time.Millisecond)
	}
}

func TestNodesCountInTheLargestUnitThatOneOfThemNeeds(t *testing.T) {
	api := fake.NewClientset()
	factor := agreement{Client: api, Namespace: "gpufabric-system"}
	for _, step := range []struct{ needed, want int }{{2, 2}, {1, 2}, {16, 16}, {4, 16}} {
		if got, err := factor.Agree(t.Context(), step.needed); err != nil || got != step.want {
			t.Errorf("needing %d: %d (%v), want %d", step.needed, got, err, step.want)
		}
	}
	written := func() (count int) {
		for _, action := range api.Actions() {
			if action.GetVerb() != "get" {
				count++
			}
		}
		return count
	}
	if got := written(); got != 2 {
		t.Errorf("%d writes, want one for each new unit", got)
	}
}

func TestPluginFollowsTheClustersUnit(t *testing.T) {
	n := start(t, "--namespace=gpufabric-system")
	n.annotation(unitAnnotation, func(got string) bool { return got == "1 volcano.sh/vgpu-memory = 1 MiB" })
	if _, err := (agreement{Client: n.api, Namespace: "gpufabric-system"}).Agree(t.Context(), 16); err != nil {
		t.Fatal(err)
	}
	n.annotation(unitAnnotation, func(got string) bool { return got == "1 volcano.sh/vgpu-memory = 16 MiB" })
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-memory", 2*2560)
}

func TestPluginRepairsAMalformedUnit(t *testing.T) {
	api := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: agreementName},
		Data: map[string]string{agreementKey: "-3 bananas"}})
	if got, err := (agreement{Client: api, Namespace: "n"}).Agree(t.Context(), 8); err != nil || got != 8 {
		t.Errorf("got %d (%v), want 8", got, err)
	}
}

func TestPluginFreesSharesAfterTwoHundredPods(t *testing.T) {
	n := start(t, "--gpu-memory-factor=10")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	whole := n.machine.GPUs[0].UUID + ",NVIDIA,4096,0:;"
	for i := range 200 {
		name := fmt.Sprint("churn-", i)
		n.schedule(name, whole, "main") // the whole GPU: if one were not released, the next would be refused
		ids, err := n.tryAllocate("volcano.sh/vgpu-number", 1)
		if err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
		n.kubelet.Free("volcano.sh/vgpu-number", ids...)
		if err := n.api.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// silent receives results for containers and does nothing.
type silent struct{}

func (silent) Served(*corev1.Pod, string, injection.Backend)         {}
func (silent) Failed(*corev1.Pod, string, error)                     {}
func (silent) Partitioned(*corev1.Pod, string, []instances.Instance) {}

// withoutNRI gives shares of one GPU of 48 GiB to the API's pods, in units of 10 MiB, and writes nothing to them.
func withoutNRI(t testing.TB, api kubernetes.Interface, uuid string) number {
	t.Helper()
	watched, err := podwatch.Watch(t.Context(), api, nodeName, func(*corev1.Pod) {})
	if err != nil {
		t.Fatal(err)
	}
	gpus := &sharedgpus.Set{Factor: 10, Cards: []sharedgpus.Card{{GPU: &inventory.GPU{UUID: uuid}, Slots: 600, Units: 4914, Cores: 100,
		Healthy: true}}}
	records, err := openGiven(t.Context(), filepath.Join(t.TempDir(), "given"))
	if err != nil {
		t.Fatal(err)
	}
	none, _, err := instances.New(instances.Options{Directory: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	cgroups := t.TempDir()
	occupancytest.New(t, cgroups)
	n := number{pods: watched, refused: &refusals{}, given: records, hook: &hook.Hook{Instances: none,
		Resources: annotation.Resources{Number: "volcano.sh/vgpu-number", Memory: "volcano.sh/vgpu-memory", Cores: "volcano.sh/vgpu-cores"},
		Pods:      watched, Outcome: silent{}, Book: &holdings.Book{}, SharedGPUs: func() *sharedgpus.Set { return gpus },
		Device:  func(uuid string) string { return uuid },
		Limiter: injection.Limiter{Containers: filepath.Join(t.TempDir(), "containers"), Locks: t.TempDir(), Accounts: t.TempDir()},
	}}
	n.departed = newDeparted(&occupancy.Cgroups{Root: cgroups}, n.free, nil)
	return n
}

// A variable of ours would be the second of its name where the pod sets NVIDIA_VISIBLE_DEVICES itself, and the pod's own would win.
func TestAllocateWithNRIReturnsOnlyTheStopDevice(t *testing.T) {
	n := withoutNRI(t, fake.NewClientset(), "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9")
	n.nri = true
	ofMemory, err := memory{n}.Allocate(t.Context(), []string{"0"})
	if err != nil {
		t.Fatal(err)
	}
	want := &pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: hook.Unshared}}}
	for resource, answer := range map[string]*pluginapi.ContainerAllocateResponse{"memory": ofMemory, "number": n.nothing()} {
		if !proto.Equal(answer, want) {
			t.Errorf("%s: got %v, want %v", resource, answer, want)
		}
	}
}

// The list of pods does not show the first pod's refusal yet when the kubelet allocates for the second.
func TestAllocateIgnoresRefusedPods(t *testing.T) {
	const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	api := fake.NewClientset()
	waits := func(name string, units int) {
		t.Helper()
		if _, err := api.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
				Annotations: map[string]string{annotation.PodDevices: fmt.Sprintf("%s,NVIDIA,%d,0:;", uuid, units)}},
			Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	shares := withoutNRI(t, api, uuid)
	waits("too-large", 5000)
	if _, err := shares.Allocate(t.Context(), []string{uuid + "-0"}); err == nil || !strings.Contains(err.Error(), "default/too-large") {
		t.Fatalf("got %v, want the pod refused by name", err)
	}
	waits("fits", 8)
	if _, err := shares.Allocate(t.Context(), []string{uuid + "-0"}); err != nil {
		t.Fatal(err)
	}
	if !shares.hook.Book.Holds(heldID("uid-fits", "main")) {
		t.Error("the second pod has no share")
	}
}

// BenchmarkAllocateAmong500Pods is an allocation without NRI, which has to find its pod: 500 are on the API server, all on this
// node, and one of them waits.
func BenchmarkAllocateAmong500Pods(b *testing.B) {
	const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	api := fake.NewClientset()
	for i := range 500 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint("uid-", i)),
				Annotations: map[string]string{annotation.PodDevices: uuid + ",NVIDIA,8,0:;"}},
			Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		if i == 250 {
			pod.Status.Phase = corev1.PodPending
		}
		if _, err := api.CoreV1().Pods("default").Create(b.Context(), pod, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	shares := withoutNRI(b, api, uuid)
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := shares.Allocate(b.Context(), []string{uuid + "-0"}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		shares.hook.Book.Release(heldID("uid-250", "main"))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
