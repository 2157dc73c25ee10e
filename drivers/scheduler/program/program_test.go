package program_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/vgpu/annotation"
)

func gpu(n int) string { return fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", n) }

// TestAgainstAControlPlane runs the scheduler with the chart's configuration and rights against a real API server and controllers.
func TestAgainstAControlPlane(t *testing.T) {
	c := start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"a pod is bound with the annotations that Volcano writes", testAnnotations},
		{"the example's pod gets its share", testExample},
		{"pods that come at once never overbook a GPU", testConcurrentPods},
		{"pods of a PodGroup that is spread share no GPU", testPodGroup},
		{"after a restart what was given away stays given away", testRestart},
		{"a share is preempted from the pod of lowest priority", testPreemptsShares},
		{"a disruption budget chooses the other victim", testBudget},
		{"a claim is preempted from the pod of lowest priority", testPreemptsClaims},
		{"no more claims are preempted than are needed", testPreemptsOnce},
		{"slices asked for in a single line are preempted", testPreemptsExtendedResources},
		{"slices of a VGPUProfile are placed by its policy", testProfilePolicy},
		{"MIG instances are chosen by the slots that a node tells", testMIGSlots},
		{"a quota counts slices and not their memory", testQuota},
		{"with the lock of nodes pods go to a node one after another", testNodeLock},
		{"a process of its own elects itself with the chart's rights", testElection},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, c) }) {
			return // the later ones would wait for a scheduler that has ended, or on a full node
		}
	}
}

func testAnnotations(t *testing.T, c *cluster) {
	c.node(t, "a", gpu(1), gpu(2))
	p := shares(pod("two", "low", "a"), 2, 1024, 30)
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side", Image: "none"})
	c.create(t, p)
	got := c.bound(t, "two").Annotations
	devices := gpu(1) + ",NVIDIA,1024,30:" + gpu(2) + ",NVIDIA,1024,30:;;"
	for key, want := range map[string]string{"volcano.sh/vgpu-node": "a", "volcano.sh/vgpu-ids-new": devices,
		"volcano.sh/devices-to-allocate": devices, "volcano.sh/bind-phase": "allocating"} {
		if got[key] != want {
			t.Errorf("annotation %s is %q, want %q", key, got[key], want)
		}
	}
	for _, key := range []string{"volcano.sh/vgpu-time", "volcano.sh/bind-time"} {
		if len(got[key]) != len("1763000000") {
			t.Errorf("annotation %s is %q, want Unix seconds", key, got[key])
		}
	}
	c.create(t, shares(pod("greedy", "low", "a"), 1, 4000, 0))
	if words := c.refused(t, "greedy"); !strings.Contains(words, "requests 1 GPUs, and 0 of 2 are suitable: 2 without the memory left") {
		t.Errorf("the refusal reads %q", words)
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	must(t, err)
	series := map[string]int{}
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "volcano_vgpu_") {
			series[family.GetName()] = len(family.GetMetric())
		}
	}
	for _, name := range []string{"shared_number", "allocated_memory", "allocated_cores", "memory_limit",
		"memory_allocation_for_a_certain_pod", "core_allocation_for_a_certain_pod"} {
		if n := series["volcano_vgpu_device_"+name]; n != 2 {
			t.Errorf("%d series of volcano_vgpu_device_%s, want one a GPU", n, name)
		}
	}
	// The waiting pod gets its share when the other one goes.
	c.delete(t, "two")
	c.bound(t, "greedy")
	c.delete(t, "greedy")
}

// testExample runs the manifest that README.md names. It only adds tolerations, since no kubelet renews the nodes' leases.
func testExample(t *testing.T, c *cluster) {
	content, err := os.ReadFile("../../../examples/manifests/vgpu-scheduler.yaml")
	must(t, err)
	p := &corev1.Pod{}
	must(t, yaml.UnmarshalStrict(content, p))
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	c.create(t, p)
	if devices := c.bound(t, p.Name).Annotations["volcano.sh/vgpu-ids-new"]; !strings.Contains(devices, ",NVIDIA,1024,30:") {
		t.Errorf("it was given %q", devices)
	}
	c.delete(t, p.Name)
}

func testConcurrentPods(t *testing.T, c *cluster) {
	c.node(t, "b", gpu(11), gpu(12))
	// a GPU of 4914 units has space for three shares of 1400; the kubelet, which only counts sums, would admit a seventh
	const fitting, all = 2 * 3, 10
	var wanted []*corev1.Pod
	for i := range all {
		wanted = append(wanted, shares(pod(fmt.Sprintf("many-%d", i), "low", "b"), 1, 1400, 0))
	}
	c.create(t, wanted...)
	used, placed := map[string]int64{}, 0
	for i := range all {
		// Each is either bound or refused; one may only be refused because the node is full.
		p := c.await(t, fmt.Sprintf("many-%d", i), "bound or refused", func(p *corev1.Pod) bool {
			return p.Spec.NodeName != "" || len(p.Status.Conditions) > 0
		})
		if p.Spec.NodeName == "" {
			continue
		}
		placed++
		lists, err := annotation.ParseShares(p.Annotations["volcano.sh/vgpu-ids-new"])
		must(t, err)
		for _, share := range lists[0] {
			used[share.UUID] += share.Memory
		}
	}
	for uuid, memory := range used {
		if memory > 4914 {
			t.Errorf("%s has given %d of 4914 units away", uuid, memory)
		}
	}
	if placed != fitting {
		t.Errorf("%d pods were placed, want %d: %v", placed, fitting, used)
	}
}

func testPodGroup(t *testing.T, c *cluster) {
	c.node(t, "g", gpu(61), gpu(62))
	seen := map[string]bool{}
	for i := range 3 {
		p := shares(pod(fmt.Sprintf("worker-%d", i), "low", "g"), 1, 100, 0)
		p.Annotations = map[string]string{"scheduling.k8s.io/group-name": "job", "volcano.sh/vgpu-podgroup-policy": "spread"}
		c.create(t, p)
		if i == 2 {
			continue
		}
		devices := c.bound(t, p.Name).Annotations["volcano.sh/vgpu-ids-new"]
		seen[devices] = true
	}
	if len(seen) != 2 {
		t.Errorf("binpack put two pods of the group on one GPU: %v", seen)
	}
	if words := c.refused(t, "worker-2"); !strings.Contains(words, "2 of another pod of its PodGroup") {
		t.Errorf("the refusal reads %q", words)
	}
}

func testRestart(t *testing.T, c *cluster) {
	c.stop()
	c.run()
	c.create(t, shares(pod("late", "low", "b"), 1, 1400, 0))
	if words := c.refused(t, "late"); !strings.Contains(words, "2 without the memory left") {
		t.Errorf("the refusal reads %q", words)
	}
}

func testPreemptsShares(t *testing.T, c *cluster) {
	c.node(t, "c", gpu(21))
	c.create(t, shares(pod("cheap", "low", "c"), 1, 2000, 0), shares(pod("dear", "middle", "c"), 1, 2000, 0))
	c.bound(t, "cheap")
	c.bound(t, "dear")
	c.create(t, shares(pod("first", "high", "c"), 1, 2500, 0))
	c.await(t, "cheap", "evicted", func(p *corev1.Pod) bool { return p == nil })
	c.bound(t, "first")
	if !c.exists(t, "dear") {
		t.Error("a pod of higher priority was evicted too, and one was enough")
	}
}

func testBudget(t *testing.T, c *cluster) {
	c.node(t, "d", gpu(31))
	_, err := c.admin.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(),
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "guarded"},
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}}}, metav1.CreateOptions{})
	must(t, err)
	c.create(t, shares(pod("guarded", "low", "d"), 1, 2000, 0), shares(pod("free", "middle", "d"), 1, 2000, 0))
	c.bound(t, "guarded")
	c.bound(t, "free")
	c.create(t, shares(pod("second", "high", "d"), 1, 2500, 0))
	c.await(t, "free", "evicted", func(p *corev1.Pod) bool { return p == nil })
	c.bound(t, "second")
	if !c.exists(t, "guarded") {
		t.Error("the pod that a budget guards was evicted, and another would have done")
	}
}

// publish offers devices of a node by DRA.
func (c *cluster) publish(t *testing.T, node string, devices int) {
	t.Helper()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.nvidia.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node + "-gpu", ResourceSliceCount: 1}}}
	for i := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i)})
	}
	_, err := c.admin.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
	must(t, err)
}

// claiming makes a pod request count devices by a claim of its own.
func (c *cluster) claiming(t *testing.T, p *corev1.Pod, count int64) *corev1.Pod {
	t.Helper()
	return c.claimingOf(t, p, "gpu.nvidia.com", count)
}

// claimingOf makes a pod request count devices of a class by a claim of its own.
func (c *cluster) claimingOf(t *testing.T, p *corev1.Pod, class string, count int64) *corev1.Pod {
	t.Helper()
	_, err := c.admin.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(),
		&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: p.Name},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
				Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
					Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class,
						AllocationMode: resourceapi.DeviceAllocationModeExactCount,
						Count:          count}}}}}}}, metav1.CreateOptions{})
	must(t, err)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &p.Name}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return p
}

func testPreemptsClaims(t *testing.T, c *cluster) {
	_, err := c.admin.ResourceV1().DeviceClasses().Create(t.Context(),
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"},
			Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
				{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com"`}}}}}, metav1.CreateOptions{})
	must(t, err)
	c.node(t, "e", gpu(41))
	c.publish(t, "e", 2)
	c.create(t, c.claiming(t, pod("claims-low", "low", "e"), 1), c.claiming(t, pod("claims-middle", "middle", "e"), 1),
		pod("claims-none", "low", "e"))
	c.bound(t, "claims-low")
	c.bound(t, "claims-middle")
	c.bound(t, "claims-none")
	c.create(t, c.claiming(t, pod("claims-first", "high", "e"), 1))
	c.await(t, "claims-low", "evicted", func(p *corev1.Pod) bool { return p == nil })
	c.bound(t, "claims-first")
	for _, name := range []string{"claims-middle", "claims-none"} {
		if !c.exists(t, name) {
			t.Errorf("%s was evicted, and its going frees nothing that is needed", name)
		}
	}
	c.create(t, c.claiming(t, pod("claims-equal", "low", "e"), 1))
	c.refused(t, "claims-equal")
	if !c.exists(t, "claims-middle") || !c.exists(t, "claims-first") {
		t.Error("a pod of lower priority evicted another")
	}
}

// testPreemptsExtendedResources makes pods request slices of one GPU as an extended resource, for which the scheduler creates the
// claims.
func testPreemptsExtendedResources(t *testing.T, c *cluster) {
	c.node(t, "x", gpu(71))
	c.cut(t, "x", 1, "line-10g")
	c.profile(t, "line-10g", "")
	for name, priority := range map[string]string{"line-low-0": "low", "line-low-1": "low", "line-low-2": "low", "line-middle": "middle"} {
		c.create(t, slice(pod(name, priority, "x"), "line-10g"))
		c.bound(t, name)
	}
	c.create(t, slice(pod("line-equal", "low", "x"), "line-10g"))
	c.refused(t, "line-equal")
	c.delete(t, "line-equal")
	left := func() (n int) {
		for i := range 3 {
			if c.exists(t, fmt.Sprintf("line-low-%d", i)) {
				n++
			}
		}
		return n
	}
	if n := left(); n != 3 {
		t.Fatalf("%d of the 3 pods are left, and nobody of higher priority came", n)
	}
	two := slice(pod("line-two", "high", "x"), "line-10g")
	two.Spec.Containers = append(two.Spec.Containers, *two.Spec.Containers[0].DeepCopy())
	two.Spec.Containers[1].Name = "side"
	c.create(t, two)
	c.bound(t, "line-two")
	if n := left(); n != 1 || !c.exists(t, "line-middle") {
		t.Errorf("%d of the 3 pods of low priority are left, want 1; the middle one is there: %v, want it spared", n, c.exists(t, "line-middle"))
	}
	// A claim also preempts what was requested in a single line.
	c.create(t, c.claimingOf(t, pod("line-claims", "middle", "x"), "line-10g", 1))
	c.bound(t, "line-claims")
	if n := left(); n != 0 {
		t.Errorf("%d pods of low priority are left, want their slice to go to a claim", n)
	}
	// On a node whose device plugin has the resource, DRA has nothing to free.
	c.node(t, "y")
	_, err := c.admin.CoreV1().Nodes().Patch(t.Context(), "y", types.MergePatchType,
		[]byte(`{"status":{"capacity":{"gpufabric.io/line-10g":"1"},"allocatable":{"gpufabric.io/line-10g":"1"}}}`),
		metav1.PatchOptions{}, "status")
	must(t, err)
	c.create(t, slice(pod("plugin-low", "low", "y"), "line-10g"))
	if p := c.bound(t, "plugin-low"); p.Status.ExtendedResourceClaimStatus != nil {
		t.Error("the scheduler made a claim for what a device plugin serves")
	}
	c.create(t, slice(pod("plugin-high", "high", "y"), "line-10g"))
	c.await(t, "plugin-low", "evicted", func(p *corev1.Pod) bool { return p == nil })
	c.bound(t, "plugin-high")
	c.delete(t, "plugin-high")
	c.delete(t, "line-two")
	c.delete(t, "line-middle")
	c.delete(t, "line-claims")
}

// testPreemptsOnce makes a pod wait for two devices at once, whose claims are released one after another.
func testPreemptsOnce(t *testing.T, c *cluster) {
	c.node(t, "f", gpu(51))
	c.publish(t, "f", 4)
	for i := range 4 {
		c.create(t, c.claiming(t, pod(fmt.Sprintf("single-%d", i), "low", "f"), 1))
		c.bound(t, fmt.Sprintf("single-%d", i))
	}
	c.create(t, c.claiming(t, pod("pair", "high", "f"), 2))
	c.bound(t, "pair")
	left := 0
	for i := range 4 {
		if c.exists(t, fmt.Sprintf("single-%d", i)) {
			left++
		}
	}
	if left != 2 {
		t.Errorf("%d of the 4 pods are left, want 2", left)
	}
}

// testMIGSlots makes pods request instances of an A100-40 by their memory, in units of 1 MiB.
func testMIGSlots(t *testing.T, c *cluster) {
	c.node(t, "m")
	_, err := c.admin.CoreV1().Nodes().Patch(t.Context(), "m", types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{"volcano.sh/node-vgpu-register":"%s,7,40960,NVIDIA-A100-SXM4-40GB,true,mig:",
		"vgpu.gpufabric.io/mig-slots":"{\"%s\":[[4864,4864],[9856,9856,9856,4864]]}"}}}`, gpu(91), gpu(91)), metav1.PatchOptions{})
	must(t, err)
	resources := []byte(`{"volcano.sh/vgpu-number":"7","volcano.sh/vgpu-memory":"40960","volcano.sh/vgpu-cores":"100"}`)
	_, err = c.admin.CoreV1().Nodes().Patch(t.Context(), "m", types.MergePatchType,
		fmt.Appendf(nil, `{"status":{"capacity":%s,"allocatable":%s}}`, resources, resources), metav1.PatchOptions{}, "status")
	must(t, err)
	instance := func(name, priority string, memory int64) *corev1.Pod {
		p := shares(pod(name, priority, "m"), 1, memory, 0)
		delete(p.Spec.Containers[0].Resources.Limits, "volcano.sh/vgpu-cores")
		p.Annotations = map[string]string{"volcano.sh/vgpu-mode": "mig"}
		return p
	}
	slot := func(name, want string) {
		t.Helper()
		if got := c.bound(t, name).Annotations["volcano.sh/vgpu-ids-new"]; got != gpu(91)+want {
			t.Errorf("%s has %s, want %s", name, got, gpu(91)+want)
		}
	}
	for i, want := range []string{"[0-0],NVIDIA,4864,0:;", "[0-1],NVIDIA,4864,0:;"} {
		c.create(t, instance(fmt.Sprint("mig-", i), "low", 3000))
		slot(fmt.Sprint("mig-", i), want)
	}
	c.create(t, instance("mig-full", "low", 3000))
	if words := c.refused(t, "mig-full"); !strings.Contains(words, "1 without a MIG instance that large left") {
		t.Errorf("the refusal reads %q", words)
	}
	c.delete(t, "mig-full")
	// A larger one belongs to the other layout, for which both must go.
	c.create(t, instance("mig-large", "high", 9000))
	slot("mig-large", "[1-0],NVIDIA,9856,0:;")
	c.create(t, instance("mig-small", "low", 3000))
	slot("mig-small", "[1-3],NVIDIA,4864,0:;")
	// A pod whose annotation is corrected is tried again at once.
	typo := instance("mig-typo", "low", 9000)
	typo.Annotations["volcano.sh/vgpu-mode"] = "mgi"
	c.create(t, typo)
	if words := c.refused(t, "mig-typo"); !strings.Contains(words,
		`annotation volcano.sh/vgpu-mode is "mgi", where hami-core and mig are allowed`) {
		t.Errorf("the refusal reads %q", words)
	}
	_, err = c.admin.CoreV1().Pods("default").Patch(t.Context(), "mig-typo", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"volcano.sh/vgpu-mode":"mig"}}}`), metav1.PatchOptions{})
	must(t, err)
	slot("mig-typo", "[1-1],NVIDIA,9856,0:;")
}

// testNodeLock plays the node's plugin, which removes the lock when it has served a pod, and another scheduler that locks the node.
func testNodeLock(t *testing.T, c *cluster) {
	c.stop()
	c.lockNodes(t, true)
	c.run()
	c.node(t, "l", gpu(81))
	lock := func(value string) { // null takes it away
		t.Helper()
		_, err := c.admin.CoreV1().Nodes().Patch(t.Context(), "l", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{"hamivgpu":%s}}}`, value), metav1.PatchOptions{})
		must(t, err)
	}
	quoted := func(at time.Time) string { return `"` + at.UTC().Format(time.RFC3339) + `"` }
	waits := func(name string) {
		t.Helper()
		c.create(t, shares(pod(name, "low", "l"), 1, 100, 0))
		if words := c.refused(t, name); !strings.Contains(words,
			"the node is locked (annotation hamivgpu) until a pod before this one has its shares") {
			t.Errorf("the refusal of %s reads %q", name, words)
		}
	}
	c.create(t, shares(pod("lock-first", "low", "l"), 1, 100, 0))
	first := c.bound(t, "lock-first")
	node, err := c.admin.CoreV1().Nodes().Get(t.Context(), "l", metav1.GetOptions{})
	must(t, err)
	if at, err := time.Parse(time.RFC3339, node.Annotations["hamivgpu"]); err != nil || time.Since(at) > patience {
		t.Errorf("the node's lock is %q (%v), want the time at which it was taken", node.Annotations["hamivgpu"], err)
	}
	if !annotation.Locks(node.Annotations["hamivgpu"], first) {
		t.Errorf("the node's plugin does not know the lock %q as that of a pod bound at %q, and would leave it", node.Annotations["hamivgpu"],
			first.Annotations["volcano.sh/bind-time"])
	}
	waits("lock-second")
	lock("null")
	c.bound(t, "lock-second")
	// A pod that was deleted before it was served does not delay others.
	waits("lock-third")
	c.delete(t, "lock-second")
	c.bound(t, "lock-third")
	// Another scheduler's lock is respected, and is not removed with our pod; an expired lock does not count.
	lock(quoted(time.Now()))
	c.delete(t, "lock-third")
	waits("lock-fourth")
	lock(quoted(time.Now().Add(-6 * time.Minute)))
	c.bound(t, "lock-fourth")
	// A lock that a scheduler left when it died before binding the pod is removed by the next scheduler.
	c.delete(t, "lock-first")
	c.delete(t, "lock-fourth")
	left := time.Now().Add(-time.Minute).Truncate(time.Second).Add(time.Millisecond)
	lock(`"` + left.UTC().Format(time.RFC3339Nano) + `"`)
	c.create(t, shares(pod("lock-fifth", "low", "l"), 1, 100, 0))
	c.bound(t, "lock-fifth")
	c.stop()
	c.lockNodes(t, false)
	c.run()
}
