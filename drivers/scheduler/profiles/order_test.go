package profiles

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/scheduler/cards"
)

const gib = 1 << 30

// published are the GPU driver's slices of a node: one slice per GPU of 40 GiB, as a whole and as shares. The names are not
// in the GPUs' order, since the API server generates them.
func published(node string, gpus ...string) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for i, name := range gpus {
		draws := []resourceapi.DeviceCounterConsumption{{CounterSet: fmt.Sprintf("gpu-%d", i)}}
		capacity := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: *resource.NewQuantity(40*gib, resource.BinarySI)}}
		out = append(out, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: gpuDriver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node + "-gpu"}, Devices: []resourceapi.Device{
				{Name: fmt.Sprintf("gpu-%d", i), Capacity: capacity, ConsumesCounters: draws},
				{Name: fmt.Sprintf("gpu-%d-shared", i), Capacity: capacity, ConsumesCounters: draws, AllowMultipleAllocations: ptr.To(true)},
			}}})
	}
	return out
}

// allocated allocates shared devices by GiB, and whole ones where that is 0.
func allocated(pool string, given map[string]int64) *structured.AllocatedState {
	state := &structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	for device, amount := range given {
		id := structured.MakeDeviceID(gpuDriver, pool, device)
		if amount == 0 {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id,
			map[resourceapi.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(amount*gib, resource.BinarySI)}))
	}
	return state
}

// gpus returns the GPUs, as letters, in the order in which the allocator sees them.
func gpus(slices []*resourceapi.ResourceSlice) string {
	var out []string
	for _, slice := range slices {
		for _, d := range slice.Spec.Devices {
			if letter := string("abc"[d.Name[len("gpu-")]-'0']); len(out) == 0 || out[len(out)-1] != letter {
				out = append(out, letter)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestGPUsAreInThePolicysOrder(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy cards.Policy
		given  map[string]int64
		want   string // the GPUs, as the allocator sees them
	}{
		{"nothing is given away", cards.Spread, nil, "a b c"},
		{"binpack goes where most is", cards.Binpack, map[string]int64{"gpu-1-shared": 10, "gpu-2-shared": 20}, "c b a"},
		{"spread goes where least is", cards.Spread, map[string]int64{"gpu-0-shared": 30, "gpu-1-shared": 10, "gpu-2-shared": 20}, "b c a"},
		{"a whole GPU is all of its memory", cards.Spread, map[string]int64{"gpu-0": 0, "gpu-1-shared": 20}, "c b a"},
		{"numa and nvlink are binpack", cards.NVLink, map[string]int64{"gpu-1-shared": 1}, "b a c"},
		{"equals keep their order", cards.Spread, map[string]int64{"gpu-0-shared": 5, "gpu-1-shared": 5, "gpu-2-shared": 5}, "a b c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := published("n", "a", "b", "c")
			other := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "other"},
				Spec: resourceapi.ResourceSliceSpec{Driver: "other.example", Pool: resourceapi.ResourcePool{Name: "n-gpu"},
					Devices: []resourceapi.Device{{Name: "gpu-0"}}}}
			all = append(all, other)
			shown, _ := order(all, allocated("n-gpu", test.given), test.policy)
			if shown[3] != other {
				t.Error("another driver's slice is changed")
			}
			sorted := slices.Clone(shown[:3])
			slices.SortFunc(sorted, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
			if s := gpus(sorted); s != test.want {
				t.Errorf("the allocator comes to %s, want %s", s, test.want)
			}
			if s := gpus(all[:3]); s != "a b c" {
				t.Errorf("the informer's slices have the GPUs %s now", s)
			}
			// The same with all GPUs in one slice, as the driver publishes them now.
			one := all[0].DeepCopy()
			for _, slice := range all[1:3] {
				one.Spec.Devices = append(one.Spec.Devices, slice.Spec.Devices...)
			}
			shown, _ = order([]*resourceapi.ResourceSlice{one}, allocated("n-gpu", test.given), test.policy)
			if s := gpus(shown); s != test.want {
				t.Errorf("in one slice the allocator comes to %s, want %s", s, test.want)
			}
		})
	}
}

func TestScoreIsTheAllocatedPartOfTheGPUs(t *testing.T) {
	all := append(published("n", "a", "b"), published("m", "c")...)
	all[1].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	state := allocated("n-gpu", map[string]int64{"gpu-0-shared": 10, "gpu-1-shared": 20})
	for _, test := range []struct {
		policy cards.Policy
		node   string
		want   int64
	}{
		{cards.Binpack, "n", 38}, // (10 + 20) of (40 + 40) GiB
		{cards.Spread, "n", 62},
		{cards.Binpack, "m", 0},
		{cards.Spread, "m", 100},
		{cards.Spread, "without GPUs", 100},
	} {
		_, u := order(all, state, test.policy)
		cycle := framework.NewCycleState()
		cycle.Write(placementKey, placement{test.policy, u})
		if got := Score(cycle, test.node); got != test.want {
			t.Errorf("%s on %s: score %d, want %d", test.policy, test.node, got, test.want)
		}
	}
	for i := range all[1].Spec.Devices {
		all[1].Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoExecute}}
	}
	_, u := order(all, state, cards.Binpack)
	if got := u.percent("n"); got != 25 {
		t.Errorf("with a GPU that is tainted in every form: %d percent, want 25 of the other", got)
	}
	if got := Score(framework.NewCycleState(), "n"); got != 0 {
		t.Errorf("without a policy: score %d, want 0", got)
	}
}

func TestPolicyComesFromTheClass(t *testing.T) {
	owned := []metav1.OwnerReference{{APIVersion: "gpufabric.io/v1alpha1", Kind: "VGPUProfile", Name: "p", Controller: ptr.To(true)}}
	for _, test := range []struct {
		name    string
		class   metav1.ObjectMeta
		want    cards.Policy
		said    bool
		refusal string
	}{
		{"of a profile with a policy", metav1.ObjectMeta{OwnerReferences: owned,
			Annotations: map[string]string{"gpufabric.io/vgpu-policy": "Spread"}}, cards.Spread, true, ""},
		{"of a profile without one", metav1.ObjectMeta{OwnerReferences: owned}, "", true, ""},
		{"an administrator's with a policy", metav1.ObjectMeta{Annotations: map[string]string{"gpufabric.io/vgpu-policy": "Binpack"}},
			cards.Binpack, true, ""},
		{"anybody's", metav1.ObjectMeta{}, "", false, ""},
		{"with a mistake", metav1.ObjectMeta{Name: "c", Annotations: map[string]string{"gpufabric.io/vgpu-policy": "spread"}}, "", false,
			`DeviceClass c: annotation gpufabric.io/vgpu-policy is "spread", where Binpack and Spread are allowed`},
	} {
		got, said, err := ofClass(&resourceapi.DeviceClass{ObjectMeta: test.class})
		if got != test.want || said != test.said || (err == nil) != (test.refusal == "") || err != nil && err.Error() != test.refusal {
			t.Errorf("%s: %q, %t, %v", test.name, got, said, err)
		}
	}
}

func TestPolicyOfThePodTakesPrecedence(t *testing.T) {
	defaults := cards.Policies{Node: cards.Binpack, Card: cards.Binpack}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{cards.CardPolicyAnnotation: "spread"}}}
	if got, err := defaults.Of(pod); err != nil || got != (cards.Policies{Node: cards.Binpack, Card: cards.Spread}) {
		t.Errorf("%+v, %v", got, err)
	}
	pod.Annotations[cards.NodePolicyAnnotation] = "numa"
	if _, err := defaults.Of(pod); err == nil || !strings.Contains(err.Error(), "binpack and spread are allowed") {
		t.Errorf("a policy that nodes do not know: error %v", err)
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	for raw, part := range map[string]string{`{"nodePolicy":"numa"}`: "binpack and spread are allowed", `{"policy":"spread"}`: "policy"} {
		if _, err := New(t.Context(), &runtime.Unknown{Raw: []byte(raw)}, nil); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: error %v, want one with %q", raw, err, part)
		}
	}
}

// BenchmarkOrderOf1000Nodes measures what a pod with a policy adds to its PreFilter in a cluster of 1,000 nodes of 8 GPUs, each
// with one slice in use and with 30 devices, as many as a GPU with MIG has.
func BenchmarkOrderOf1000Nodes(b *testing.B) {
	var all []*resourceapi.ResourceSlice
	state := allocated("", nil)
	for i := range 1000 {
		node := fmt.Sprint("node-", i)
		slices := published(node, "a", "b", "c", "d", "e", "f", "g", "h")
		for _, slice := range slices {
			for j := range 28 {
				device := slice.Spec.Devices[0]
				device.Name += fmt.Sprint("-mig-", j)
				slice.Spec.Devices = append(slice.Spec.Devices, device)
			}
		}
		all = append(all, slices...)
		for id, consumed := range allocated(node+"-gpu", map[string]int64{"gpu-3-shared": 10}).AggregatedCapacity {
			state.AggregatedCapacity[id] = consumed
		}
	}
	for b.Loop() {
		order(all, state, cards.Spread)
	}
}
