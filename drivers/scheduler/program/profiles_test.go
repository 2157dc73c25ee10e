package program_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// cut publishes a node's GPUs of 40 GiB with VGPUProfiles of 10 GiB: one slice per GPU, all forms using its counter set.
func (c *cluster) cut(t *testing.T, node string, gpus int, profiles ...string) {
	t.Helper()
	offer := func(name string, spec resourceapi.ResourceSliceSpec) {
		spec.Driver, spec.NodeName = "gpu.nvidia.com", &node
		spec.Pool = resourceapi.ResourcePool{Name: node + "-gpu", ResourceSliceCount: int64(gpus) + 1}
		_, err := c.admin.ResourceV1().ResourceSlices().Create(t.Context(),
			&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + name}, Spec: spec}, metav1.CreateOptions{})
		must(t, err)
	}
	one, all := resource.MustParse("10Gi"), resource.MustParse("40Gi")
	var sets []resourceapi.CounterSet
	for i := range gpus {
		set := fmt.Sprintf("gpu-%d", i)
		counters := map[string]resourceapi.Counter{"memory": {Value: all}}
		sets = append(sets, resourceapi.CounterSet{Name: set, Counters: counters})
		var devices []resourceapi.Device
		for _, profile := range profiles {
			devices = append(devices, resourceapi.Device{Name: set + "-shared-" + profile, AllowMultipleAllocations: ptr.To(true),
				Attributes:       map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"vgpuProfile": {StringValue: &profile}},
				ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: counters}},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: all,
					RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &one,
						ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &one, Max: &all}}}}})
		}
		offer(set, resourceapi.ResourceSliceSpec{Devices: devices})
	}
	offer("counters", resourceapi.ResourceSliceSpec{SharedCounters: sets})
}

// profile makes the DeviceClass that the controller makes for a VGPUProfile; its policy is empty where it has none.
func (c *cluster) profile(t *testing.T, name, policy string) {
	t.Helper()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: "gpufabric.io/v1alpha1", Kind: "VGPUProfile", Name: name, UID: "uid", Controller: ptr.To(true)}}}}
	if policy != "" {
		class.Annotations = map[string]string{"gpufabric.io/vgpu-policy": policy}
	}
	class.Spec.ExtendedResourceName = ptr.To("gpufabric.io/" + name)
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf(`device.driver == "gpu.nvidia.com" && "vgpuProfile" in device.attributes["gpu.nvidia.com"] && `+
			`device.attributes["gpu.nvidia.com"].vgpuProfile == %q`, name)}}}
	_, err := c.admin.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{})
	must(t, err)
}

// anywhere lets a pod go to any node with a label.
func anywhere(p *corev1.Pod, label string) *corev1.Pod {
	p.Spec.NodeSelector = map[string]string{label: "yes"}
	return p
}

// slice makes a pod request a slice of a profile in a single line.
func slice(p *corev1.Pod, profile string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName("gpufabric.io/" + profile): resource.MustParse("1")}
	return p
}

// device is the node and the device of a bound pod, by a claim of its own or by the one that the scheduler made for it.
func (c *cluster) device(t *testing.T, name string) string {
	t.Helper()
	p := c.bound(t, name)
	claim := ""
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		claim = s.ResourceClaimName
	} else if len(p.Status.ResourceClaimStatuses) == 1 {
		claim = *p.Status.ResourceClaimStatuses[0].ResourceClaimName
	}
	got, err := c.admin.ResourceV1().ResourceClaims("default").Get(t.Context(), claim, metav1.GetOptions{})
	must(t, err)
	return p.Spec.NodeName + "/" + got.Status.Allocation.Devices.Results[0].Device
}

// drained waits until no claim has a device of the profiles' nodes any more.
func (c *cluster) drained(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch, err := c.admin.ResourceV1().ResourceClaims("default").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	must(t, err)
	defer watch.Stop()
	held := func() (n int) {
		claims, err := c.admin.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, claim := range claims.Items {
			if a := claim.Status.Allocation; a != nil && strings.HasPrefix(a.Devices.Results[0].Pool, "p") {
				n++
			}
		}
		return n
	}
	for held() > 0 {
		if _, more := <-watch.ResultChan(); !more {
			t.Fatalf("%d claims still have devices after %s", held(), patience)
		}
	}
}

// testProfilePolicy places slices on two nodes of two GPUs each. The slices' names are in the GPUs' order, so without a policy the
// first node's first GPU would be filled before any other is used.
func testProfilePolicy(t *testing.T, c *cluster) {
	for _, node := range []string{"p1", "p2"} {
		c.node(t, node)
		_, err := c.admin.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"labels":{"profiles":"yes"}}}`),
			metav1.PatchOptions{})
		must(t, err)
		c.cut(t, node, 2, "spread-10g", "pack-10g", "plain-10g")
	}
	c.profile(t, "spread-10g", "Spread")
	c.profile(t, "pack-10g", "Binpack")
	c.profile(t, "plain-10g", "")

	t.Run("spread goes to every node and GPU before it shares one", func(t *testing.T) {
		gpus, first := map[string]int{}, map[string]bool{}
		for i := range 8 {
			name := fmt.Sprintf("spread-%d", i)
			c.create(t, slice(anywhere(pod(name, "low", ""), "profiles"), "spread-10g"))
			got := c.device(t, name)
			gpus[got]++
			if i < 2 {
				first[strings.Split(got, "/")[0]] = true
			}
			if i == 3 && len(gpus) != 4 || i == 7 && (gpus["p1/gpu-0-shared-spread-10g"] != 2 || gpus["p2/gpu-1-shared-spread-10g"] != 2) {
				t.Errorf("after %d pods: %v", i+1, gpus)
			}
		}
		if len(first) != 2 {
			t.Errorf("the first two pods are both on %v", first)
		}
		for i := range 8 {
			c.delete(t, fmt.Sprintf("spread-%d", i))
		}
		c.drained(t)
	})
	t.Run("binpack fills what is fullest", func(t *testing.T) {
		// A claim holds a share of the second node's second GPU, so that the first GPU that fits is not the fullest.
		c.create(t, slice(pod("seed-pack", "low", "p2"), "pack-10g"), slice(pod("filler", "low", "p2"), "pack-10g"))
		full := c.device(t, "seed-pack")
		if other := c.device(t, "filler"); other != full {
			t.Fatalf("two slices of a binpack profile are on %s and %s", full, other)
		}
		c.create(t, slice(anywhere(pod("third", "low", ""), "profiles"), "pack-10g"))
		if got := c.device(t, "third"); got != full {
			t.Errorf("the third slice is on %s, want %s, the fullest GPU of all", got, full)
		}
		for _, name := range []string{"seed-pack", "filler", "third"} {
			c.delete(t, name)
		}
		c.drained(t)
	})
	t.Run("a claim template follows the policy as a single line does", func(t *testing.T) {
		c.create(t, slice(pod("line", "low", "p1"), "spread-10g"))
		line := c.device(t, "line")
		c.create(t, c.claimingOf(t, pod("template", "low", "p1"), "spread-10g", 1))
		if got := c.device(t, "template"); got == line {
			t.Errorf("both slices are on %s, and the node's other GPU is empty", got)
		}
		c.delete(t, "line")
		c.delete(t, "template")
		c.drained(t)
	})
	t.Run("a pod's own policy comes before the profile's", func(t *testing.T) {
		c.create(t, slice(pod("one", "low", "p1"), "spread-10g"))
		one := c.device(t, "one")
		own := slice(pod("own", "low", "p1"), "spread-10g")
		own.Annotations = map[string]string{"gpufabric.io/vgpu-card-policy": "binpack"}
		c.create(t, own)
		if got := c.device(t, "own"); got != one {
			t.Errorf("a pod that asks for binpack is on %s, want %s", got, one)
		}
		wrong := slice(pod("wrong", "low", "p1"), "spread-10g")
		wrong.Annotations = map[string]string{"gpufabric.io/vgpu-node-policy": "tight"}
		c.create(t, wrong)
		if words := c.refused(t, "wrong"); !strings.Contains(words, `node policy "tight", where binpack and spread are allowed`) {
			t.Errorf("the refusal reads %q", words)
		}
		for _, name := range []string{"one", "own", "wrong"} {
			c.delete(t, name)
		}
		c.drained(t)
	})
	t.Run("without a policy the scheduler's own holds", func(t *testing.T) {
		c.create(t, slice(pod("low-of-p2", "low", "p2"), "plain-10g"))
		first := c.device(t, "low-of-p2")
		for _, name := range []string{"plain-1", "plain-2", "plain-3"} {
			c.create(t, slice(anywhere(pod(name, "low", ""), "profiles"), "plain-10g"))
			if got := c.device(t, name); got != first {
				t.Errorf("%s is on %s, want %s: the chart's default is binpack", name, got, first)
			}
		}
	})
}
