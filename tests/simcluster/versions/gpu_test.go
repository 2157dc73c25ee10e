package versions

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

var (
	wholeGPU = regexp.MustCompile(`^/dev/nvidia\d+$`)
	instance = regexp.MustCompile(`^/dev/nvidia-caps/nvidia-cap\d+$`)
)

const small = `device.attributes['gpu.nvidia.com'].profile == '1g.23gb'`

// unschedulable reports whether the scheduler has found no node for the pod.
func unschedulable(pod *corev1.Pod) bool {
	return pod != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
	})
}

// fill has pods take that many whole GPUs of a node, and returns these. The next pod must find none.
func fill(t *testing.T, n *fixture.Namespace, node string, count int) []string {
	t.Helper()
	n.Template("gpu", "gpu.nvidia.com", "")
	var given []string
	for i := range count {
		name := fmt.Sprintf("whole-%d", i)
		n.ClaimPod(name, node, "gpu")
		n.AwaitPod(name, fixture.Running)
		got := n.Devices(name, wholeGPU)
		if len(got) != 1 || slices.Contains(given, got[0]) {
			t.Fatalf("%s received the GPUs %v; given before were %v", name, got, given)
		}
		given = append(given, got...)
	}
	n.ClaimPod("late", node, "gpu")
	n.AwaitPod("late", unschedulable)
	return given
}

func TestGPUIsGivenToOnePodAndTheNextWaits(t *testing.T) {
	n := shared.Namespace(t)
	given := fill(t, n, cluster.NodeName(formsNode), gpusPerNode)
	n.DeletePod("whole-1")
	n.AwaitPod("late", fixture.Running)
	if got := n.Devices("late", wholeGPU); len(got) != 1 || got[0] != given[1] {
		t.Errorf("the pod that waited received %v; want the GPU of the pod that ended, %s", got, given[1])
	}
}

// A server without shared counters would have a MIG placement and its whole GPU allocated at once.
func TestMIGPlacementAndItsWholeGPUAreNotAllocatedBoth(t *testing.T) {
	n := shared.Namespace(t)
	node := cluster.NodeName(formsNode)
	n.Template("small", "mig.nvidia.com", small)
	n.ClaimPod("part", node, "small")
	if !gates(t)[counters] || version(t) == "34" { // 1.34 wants counters and devices in one slice
		n.AwaitPod("part", unschedulable)
		fill(t, n, node, gpusPerNode)
		return
	}
	n.AwaitPod("part", fixture.Running)
	part := n.Devices("part", wholeGPU)
	if caps := n.Devices("part", instance); len(part) != 1 || len(caps) != 2 {
		t.Fatalf("the pod received the GPUs %v and capabilities %v, want those of an instance", part, caps)
	}
	if given := fill(t, n, node, gpusPerNode-1); slices.Contains(given, part[0]) {
		t.Errorf("GPU %s is given out whole beside an instance of it: %v", part[0], given)
	}
}

// A server without taints would have a broken GPU allocated.
func TestBrokenGPUIsNotAllocated(t *testing.T) {
	const broken = 2
	if err := fault.Apply(fabric.HardwareOf(cluster.NodeDir(shared.Dir, faultNode)), "xid",
		fault.Arguments{"gpu": fmt.Sprint(broken), "code": "119"}); err != nil {
		t.Fatal(err)
	}
	tainted := gates(t)[taints]
	name := fmt.Sprintf("gpu-%d", broken)
	awaitDevices(t, faultNode, func(devices map[string]resourceapi.Device) bool {
		d, offered := devices[name]
		return len(devices) >= gpusPerNode-1 && offered == tainted && len(d.Taints) > 0 == tainted
	})
	n := shared.Namespace(t)
	fill(t, n, cluster.NodeName(faultNode), gpusPerNode-1)
	for i := range gpusPerNode - 1 {
		for _, result := range n.Allocated(fmt.Sprintf("whole-%d", i)) {
			if result.Device == name {
				t.Errorf("the broken GPU %s is allocated", name)
			}
		}
	}
	if !tainted {
		awaitNodeEvent(t, faultNode, "NeedsKubernetesFeature", name, taints)
	}
}

// A server without consumable capacity would give a claim for 8Gi the whole GPU, or drop the 8Gi.
func TestShareHasTheMemoryThatItsClaimRequests(t *testing.T) {
	n := shared.Namespace(t)
	n.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: share}
spec:
  spec:
    devices:
      requests: [{name: share, exactly: {deviceClassName: gpu-share.gpufabric.io, capacity: {requests: {memory: 8Gi}}}}]
`)
	for _, name := range []string{"one", "two"} {
		n.ClaimPod(name, cluster.NodeName(formsNode), "share")
		if on := gates(t); !on[shares] || !on[counters] || version(t) == "34" { // beside other forms of the GPU
			n.AwaitPod(name, unschedulable)
			if got := n.Allocated(name); len(got) > 0 {
				t.Errorf("%s is allocated %+v", name, got)
			}
			continue
		}
		n.AwaitPod(name, fixture.Running)
		for _, result := range n.Allocated(name) {
			if memory := result.ConsumedCapacity["memory"]; memory.String() != "8Gi" {
				t.Errorf("%s consumes %v, want 8Gi", name, result.ConsumedCapacity)
			}
		}
	}
}

func TestNodeNamesTheGatesThatItsFormsNeed(t *testing.T) {
	on := gates(t)
	var off []string
	for _, gate := range []string{counters, shares} {
		if !on[gate] || gate == counters && version(t) == "34" {
			off = append(off, gate)
		}
	}
	condition := awaitNode(t, formsNode, func(node *corev1.Node) *corev1.NodeCondition {
		for i, c := range node.Status.Conditions {
			if c.Type == "GPUForms" && (len(off) > 0) == (c.Reason == "NeedsKubernetesFeature") {
				return &node.Status.Conditions[i]
			}
		}
		return nil
	})
	for _, gate := range off {
		if !strings.Contains(condition.Message, gate) {
			t.Errorf("the condition GPUForms does not name %s: %s", gate, condition.Message)
		}
	}
}

func TestInstanceOfAnAdministratorIsGivenToAPod(t *testing.T) {
	makeInstance(t, staticNode, 0, "1g.23gb")
	awaitDevices(t, staticNode, func(devices map[string]resourceapi.Device) bool {
		_, whole := devices["gpu-0"]
		return !whole && len(devices) >= gpusPerNode
	})
	n := shared.Namespace(t)
	n.Template("small", "mig.nvidia.com", fmt.Sprintf("%s && device.attributes['gpu.nvidia.com'].parentUUID == '%s'", small,
		machine.Node(staticNode).GPUs[0].UUID))
	n.ClaimPod("part", cluster.NodeName(staticNode), "small")
	n.AwaitPod("part", fixture.Running)
	if caps := n.Devices("part", instance); len(caps) != 2 {
		t.Errorf("the pod received the capabilities %v, want the two of an instance", caps)
	}
	fill(t, n, cluster.NodeName(staticNode), gpusPerNode-1)
}

func TestGPUServesTheSeedsTrainingPod(t *testing.T) {
	n := shared.Namespace(t)
	n.AwaitAllocatable(cluster.NodeName(pluginNode), "nvidia.com/gpu", 1)
	n.ApplyFile("examples/manifests/cuda-training-pod.yaml")
	n.AwaitPod("cuda-training", fixture.Running)
	if got := n.Devices("cuda-training", wholeGPU); len(got) != 1 {
		t.Errorf("received the GPUs %v; want one", got)
	}
	n.LimitPod("two", cluster.NodeName(formsNode), "nvidia.com/gpu: 2")
	if !gates(t)[extended] {
		n.AwaitPod("two", unschedulable)
		return
	}
	n.AwaitPod("two", fixture.Running)
	if got := n.Devices("two", wholeGPU); len(got) != 2 {
		t.Errorf("received the GPUs %v by DRA; want two", got)
	}
}

// makeInstance makes a MIG instance of a profile on a GPU of a node, as nvidia-smi does.
func makeInstance(t *testing.T, node, gpu int, name string) {
	t.Helper()
	library := nvmlstate.New(fabric.HardwareOf(cluster.NodeDir(shared.Dir, node)))
	must := func(step string, result nvml.Return) {
		t.Helper()
		if result != nvml.SUCCESS {
			t.Fatalf("%s: %s", step, result)
		}
	}
	must("init", library.Init())
	defer library.Shutdown() //nolint:errcheck // a fake's
	device, result := library.DeviceGetHandleByIndex(gpu)
	must("GPU", result)
	result, activation := device.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	must("MIG mode", result)
	must("MIG mode's activation", activation)
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		profile, result := device.GetGpuInstanceProfileInfoV(id).V2()
		if result != nvml.SUCCESS || !strings.Contains(nameOf(profile.Name[:]), name) {
			continue
		}
		info, result := device.GetGpuInstanceProfileInfo(id)
		must("profile", result)
		gi, result := device.CreateGpuInstance(&info)
		must("GPU instance", result)
		compute, result := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		must("compute profile", result)
		_, result = gi.CreateComputeInstance(&compute)
		must("compute instance", result)
		return
	}
	t.Fatalf("GPU %d has no profile %s", gpu, name)
}

// nameOf is the text of a C string.
func nameOf[T int8 | uint8](text []T) string {
	var b strings.Builder
	for _, c := range text {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// awaitDevices waits until done returns true of the devices of gpu.nvidia.com that a node offers.
func awaitDevices(t *testing.T, node int, done func(map[string]resourceapi.Device) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(shared.Client.ResourceV1().RESTClient(), "resourceslices", metav1.NamespaceAll,
		fields.Set{resourceapi.ResourceSliceSelectorDriver: "gpu.nvidia.com",
			resourceapi.ResourceSliceSelectorNodeName: cluster.NodeName(node)}.AsSelector())
	slices := map[string]resourceapi.ResourceSliceSpec{}
	if _, err := watchtools.UntilWithSync(ctx, list, &resourceapi.ResourceSlice{}, nil, func(event watch.Event) (bool, error) {
		slice, ok := event.Object.(*resourceapi.ResourceSlice)
		if !ok {
			return false, nil
		}
		slices[slice.Name] = slice.Spec
		if event.Type == watch.Deleted {
			delete(slices, slice.Name)
		}
		return done(devicesOf(slices)), nil
	}); err != nil {
		t.Fatalf("wait for the devices of %s: %v; it offers %v", cluster.NodeName(node), err, devicesOf(slices))
	}
}

func devicesOf(slices map[string]resourceapi.ResourceSliceSpec) map[string]resourceapi.Device {
	devices := map[string]resourceapi.Device{}
	for _, slice := range slices {
		for _, d := range slice.Devices {
			devices[d.Name] = d
		}
	}
	return devices
}

// awaitNode waits for a condition of a node.
func awaitNode(t *testing.T, node int, find func(*corev1.Node) *corev1.NodeCondition) (found *corev1.NodeCondition) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(shared.Client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll,
		fields.OneTermEqualSelector("metadata.name", cluster.NodeName(node)))
	var last []corev1.NodeCondition
	if _, err := watchtools.UntilWithSync(ctx, list, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		if object, ok := event.Object.(*corev1.Node); ok {
			last, found = object.Status.Conditions, find(object)
		}
		return found != nil, nil
	}); err != nil {
		t.Fatalf("wait for a condition of %s: %v; its conditions are %v", cluster.NodeName(node), err, last)
	}
	return found
}

// awaitNodeEvent waits for an Event about a node whose reason and message contain all the given words.
func awaitNodeEvent(t *testing.T, node int, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(shared.Client.CoreV1().RESTClient(), "events", metav1.NamespaceAll,
		fields.OneTermEqualSelector("involvedObject.name", cluster.NodeName(node)))
	var seen []string
	if _, err := watchtools.UntilWithSync(ctx, list, &corev1.Event{}, nil, func(event watch.Event) (bool, error) {
		e, ok := event.Object.(*corev1.Event)
		if !ok {
			return false, nil
		}
		text := e.Reason + ": " + e.Message
		seen = append(seen, text)
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }), nil
	}); err != nil {
		t.Fatalf("no event on %s with %q; there are:\n%s", cluster.NodeName(node), words, strings.Join(seen, "\n"))
	}
}
