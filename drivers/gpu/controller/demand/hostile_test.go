package demand

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/planner"
)

// report changes what a node reports.
func (c *cluster) report(node string, change func(*v1alpha1.MIGLayoutNode)) {
	c.Helper()
	l := c.child(node)
	change(&l.Status.Nodes[0])
	if err := c.Status().Update(c.Context(), l); err != nil {
		c.Fatal(err)
	}
}

func TestDeciderKeepsNodesApartWhenOneReportsAnothersGPU(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	c.begin("n1", "n2")
	c.report("n2", func(n *v1alpha1.MIGLayoutNode) { n.GPUs[0].UUID = uuid("n1") })
	c.cut()
	for range 6 {
		c.round()
		c.react("n1", v1alpha1.MIGLayoutApplied)
	}
	c.wantLayout("n1", "3g.40gb@0 1g.10gb@4 withdrawn []")
	c.wantEvent("LayoutChanged")
}

func TestDeciderDoesNotOrderCutsWhenNodeReportsWrongPlacements(t *testing.T) {
	starts := make([]int32, 16)
	for i := range starts {
		starts[i] = int32(i)
	}
	for name, lie := range map[string]func(*v1alpha1.MIGNodeProfile){
		"a size of 0":             func(p *v1alpha1.MIGNodeProfile) { p.Size = 0 },
		"a negative size":         func(p *v1alpha1.MIGNodeProfile) { p.Size = -1 << 31 },
		"no compute slices":       func(p *v1alpha1.MIGNodeProfile) { p.ComputeSlices = 0 },
		"a start beyond the GPU":  func(p *v1alpha1.MIGNodeProfile) { p.Starts = []int32{1<<31 - 1} },
		"a negative start":        func(p *v1alpha1.MIGNodeProfile) { p.Starts = []int32{-4} },
		"more starts than slices": func(p *v1alpha1.MIGNodeProfile) { p.Starts = slices.Repeat([]int32{0}, 1000) },
		"no starts":               func(p *v1alpha1.MIGNodeProfile) { p.Starts = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "n1")
			c.real = true
			c.begin("n1")
			c.report("n1", func(n *v1alpha1.MIGLayoutNode) {
				for i := range n.Profiles {
					lie(&n.Profiles[i])
				}
			})
			c.claim("one", "")
			c.pod("p", "one")
			for range 4 {
				c.round()
			}
			c.wantLayout("n1", "whole withdrawn []")
		})
	}
	t.Run("every placement for every profile", func(t *testing.T) {
		c := newCluster(t, "n1")
		c.real = true
		c.begin("n1")
		c.report("n1", func(n *v1alpha1.MIGLayoutNode) {
			for i := range n.Profiles {
				n.Profiles[i].Starts, n.Profiles[i].Size, n.Profiles[i].ComputeSlices, n.Profiles[i].Max = starts, 1, 1, 1<<31-1
			}
		})
		c.claim("one", "")
		c.pod("p", "one")
		for range 20 {
			c.round()
			if len(c.child("n1").Spec.GPUs[0].Instances) > 0 {
				c.report("n1", func(n *v1alpha1.MIGLayoutNode) { // it refuses what its hardware cannot have
					n.ObservedGeneration, n.GPUs[0].State = c.child("n1").Generation, v1alpha1.MIGLayoutFailed
				})
				continue
			}
			c.publish("n1", &c.child("n1").Spec.GPUs[0])
			c.report("n1", func(n *v1alpha1.MIGLayoutNode) { n.ObservedGeneration = c.child("n1").Generation })
		}
		c.wantEvent("LayoutFailed")
		if len(c.changes) > 0 {
			t.Errorf("changes %v are left", c.changes)
		}
	})
}

func TestDeciderDoesNotOrderCutsWhenGPUIsNeitherWholeNorCut(t *testing.T) {
	c := newCluster(t, "n1")
	c.real = true
	c.begin("n1")
	c.report("n1", func(n *v1alpha1.MIGLayoutNode) { // Ampere: its MIG mode changes with the next reset
		n.GPUs[0].Whole, n.GPUs[0].MIG, n.GPUs[0].Message = false, false, "a change of its MIG mode is pending"
	})
	c.claim("one", "")
	c.pod("p", "one")
	for range 4 {
		c.round()
	}
	c.wantLayout("n1", "whole withdrawn []")
	if len(c.changes) > 0 {
		t.Errorf("changes %v", c.changes)
	}
}

// The API server is away for 90 seconds, and the caches still have all that was before.
func TestDeciderCutsAtOnceWhenItsWritesFailedBefore(t *testing.T) {
	c := newCluster(t, "n1")
	c.real = true
	c.begin("n1")
	c.claim("one", "")
	c.pod("p", "one")
	c.down = true
	for range int(90 * time.Second / period) {
		c.clock = c.clock.Add(period)
		c.follow()
		_, _ = c.decide(t.Context()) // the error is that of the write
	}
	c.wantLayout("n1", "whole withdrawn []")
	c.down = false
	for range 5 {
		c.round()
		c.react("n1", v1alpha1.MIGLayoutApplied)
	}
	c.wantLayout("n1", "1g.10gb@0 1g.10gb@1 1g.10gb@2 withdrawn []")
}

func TestDeciderDropsCutWhenLayoutByHandComesMeanwhile(t *testing.T) {
	for step := range 4 {
		t.Run(fmt.Sprintf("step %d", step), func(t *testing.T) {
			c := newCluster(t, "n1")
			c.begin("n1")
			c.cut()
			for range step + 1 {
				c.round()
				c.react("n1", v1alpha1.MIGLayoutApplied)
			}
			hand := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "hand"}}
			hand.Spec = v1alpha1.MIGLayoutSpec{Layout: "a", Config: v1alpha1.MIGPartedConfig{Version: "v1",
				Layouts: map[string][]v1alpha1.MIGPartedEntry{"a": {}}}}
			c.make(hand)
			c.round()
			c.round()
			if len(c.changes) > 0 {
				t.Errorf("changes %v are left", c.changes)
			}
			if err := c.Get(t.Context(), client.ObjectKey{Name: childName("auto", "n1")}, &v1alpha1.MIGLayout{}); err == nil {
				t.Error("the layout by demand of n1 is still there")
			}
			// The layout by hand goes again.
			if err := c.Delete(t.Context(), hand); err != nil {
				t.Fatal(err)
			}
			c.publish("n1", nil) // its node offers what exists
			c.begin("n1")
			c.cut()
			for range 6 {
				c.round()
				c.react("n1", v1alpha1.MIGLayoutApplied)
			}
			c.wantLayout("n1", "3g.40gb@0 1g.10gb@4 withdrawn []")
		})
	}
}

// Two controllers decide by turns, each without knowing the other, while claims get every device that is published.
func TestDecideNeverCutsAClaimedDeviceWithTwoDeciders(t *testing.T) {
	for first := range 8 {
		t.Run(fmt.Sprintf("the second begins after %d rounds", first), func(t *testing.T) {
			c := newCluster(t, "n1")
			c.real = true
			c.begin("n1")
			one, index := c.decider, c.index
			two := c.fresh()
			c.claim("one", "")
			c.pod("p", "one")
			for i := range 24 {
				c.decider = one
				if i >= first && i%2 == 1 {
					c.decider = two
				}
				c.index = index
				c.follow()
				index, c.index = c.index, two.claims
				c.follow()
				c.clock = c.clock.Add(period)
				if _, err := c.decide(t.Context()); err != nil {
					t.Fatal(err)
				}
				c.react("n1", v1alpha1.MIGLayoutApplied)
				c.wantHeldDevicesThere("n1")
				if i == first+2 {
					c.takePublished("n1", fmt.Sprintf("taken-%d", i))
				}
			}
		})
	}
}

// takePublished gives the first published device of a node to a claim, as the scheduler would.
func (c *cluster) takePublished(node, name string) {
	c.Helper()
	slice := &resourceapi.ResourceSlice{}
	if err := c.Get(c.Context(), client.ObjectKey{Name: node}, slice); err != nil {
		c.Fatal(err)
	}
	if len(slice.Spec.Devices) > 0 {
		c.claim(name, slice.Spec.Devices[0].Name)
	}
}

// wantHeldDevicesThere checks that the devices of claims are in the layout of their node.
func (c *cluster) wantHeldDevicesThere(node string) {
	c.Helper()
	claims := &resourceapi.ResourceClaimList{}
	if err := c.List(c.Context(), claims); err != nil {
		c.Fatal(err)
	}
	there := []string{"gpu-0"}
	if instances := c.child(node).Spec.GPUs[0].Instances; len(instances) > 0 {
		there = nil
		for _, i := range instances {
			there = append(there, fmt.Sprintf("-%d", i.Start))
		}
	}
	for i := range claims.Items {
		for _, device := range held(&claims.Items[i]) {
			if !slices.ContainsFunc(there, func(end string) bool { return strings.HasSuffix(device.name, end) }) {
				c.Errorf("claim %s has %s, and the layout is %s", claims.Items[i].Name, device.name, c.layout(node))
			}
		}
	}
}

func TestDeciderCutsOneGPUWhenClaimWantsOneParent(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	c.real = true
	c.begin("n1", "n2")
	claim := c.claim("two", "")
	claim.Spec.Devices.Requests[0].Exactly.Count = 3
	parent := resourceapi.FullyQualifiedName(devices.Driver + "/" + string(devices.AttrParentUUID))
	claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &parent}}
	if err := c.Client.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	c.pod("p", "two")
	for range 8 {
		c.round()
		c.react("n1", v1alpha1.MIGLayoutApplied)
		c.react("n2", v1alpha1.MIGLayoutApplied)
	}
	cut := 0
	for _, node := range []string{"n1", "n2"} {
		if strings.Contains(c.child(node).Annotations[v1alpha1.MIGDecisionAnnotation], "devices of one GPU: 3 1g.10gb") {
			cut++
			c.wantLayout(node, "1g.10gb@0 1g.10gb@1 1g.10gb@2 withdrawn []")
		}
	}
	if cut != 1 {
		t.Errorf("%d GPUs are cut for one claim: %s, %s", cut, c.layout("n1"), c.layout("n2"))
	}
}

func TestDeciderPassesPriorityOfPods(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	c.claim("one", "")
	c.pod("p", "one", func(p *corev1.Pod) { p.Spec.Priority = new(int32(7)) })
	if all := c.waiting(); len(all) != 1 || all[0].Priority != 7 {
		t.Errorf("the pods that wait are %+v", all)
	}
}

// waiting are the pods that the next decision counts.
func (c *cluster) waiting() []planner.Waiting {
	c.Helper()
	c.follow()
	w, err := c.look(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	for i := range w.layouts {
		if l := &w.layouts[i]; l.Spec.Auto != nil {
			all, _ := c.resolve(w, c.decider.pool(w, l, Assignment{Parents: map[string]string{"n1": l.Name}}, map[string]*edit{}))
			return all
		}
	}
	return nil
}

func TestDeciderLooksAtOtherNamespacesWhenOneHasManySelectors(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	const many = 3 * maxRead
	for i := range many {
		claim := c.claim(fmt.Sprintf("a-%03d", i), "")
		claim.Spec.Devices.Requests[0].Exactly.Selectors[0].CEL.Expression += fmt.Sprintf(" || %d == 0", i+1)
		if err := c.Client.Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		c.pod(fmt.Sprintf("a-%03d", i), claim.Name)
	}
	other := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "zz"}, Spec: c.claim("model", "").Spec}
	c.make(other)
	c.pod("z", "one", func(p *corev1.Pod) { p.Namespace = "zz" })
	count := func() map[string]int {
		n := map[string]int{}
		for _, w := range c.waiting() {
			n[w.Namespace]++
		}
		return n
	}
	if n := count(); n["zz"] != 1 || n[ns] > maxRead {
		t.Errorf("the first decision counts %v", n)
	}
	for range many / maxRead {
		count()
	}
	if n := count(); n[ns] != many || n["zz"] != 1 {
		t.Errorf("the later decisions count %v, want %d and 1", n, many)
	}
}

func TestDeciderForgetsPodsAndLayoutsThatAreGone(t *testing.T) {
	c := newCluster(t, "n1")
	c.real = true
	c.begin("n1")
	for i := range 100 {
		c.claim(fmt.Sprint(i), "")
		c.pod(fmt.Sprint(i), fmt.Sprint(i), func(p *corev1.Pod) { p.UID = types.UID(fmt.Sprint(i)) })
	}
	c.round()
	if n := len(c.resolved["auto-uid"]); n != 100 {
		t.Fatalf("%d pods are remembered, want 100", n)
	}
	for _, object := range []client.Object{&corev1.Pod{}, &resourceapi.ResourceClaim{}} {
		if err := c.DeleteAllOf(t.Context(), object, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
	}
	c.round()
	if len(c.resolved["auto-uid"]) > 0 || len(c.index.byName) > 0 {
		t.Errorf("%d pods and %d claims are remembered", len(c.resolved["auto-uid"]), len(c.index.byName))
	}
	if err := c.Delete(t.Context(), &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "auto"}}); err != nil {
		t.Fatal(err)
	}
	c.round()
	c.clock = c.clock.Add(2 * remember)
	c.round()
	if n := len(c.policies) + len(c.wants) + len(c.resolved) + len(c.blocked) + len(c.changed) + len(c.changes); n > 0 {
		t.Errorf("%d entries about a layout that is gone", n)
	}
}

func TestLayoutNamesCutsInProgress(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	c.cut()
	ordered := c.clock.Add(period)
	for range 4 {
		c.round()
		cuts := c.child("n1").Cuts()
		if len(cuts) != 1 || cuts[0].Device != "gpu-0" || !cuts[0].Since.Equal(ordered) || cuts[0].Reason != "a test wants it" ||
			v1alpha1.DescribeInstances(cuts[0].Instances) != "3g.40gb@0 1g.10gb@4" {
			t.Fatalf("the cuts in progress are %+v", cuts)
		}
		c.react("n1", v1alpha1.MIGLayoutApplied)
	}
	c.round()
	c.react("n1", v1alpha1.MIGLayoutApplied)
	if cuts := c.child("n1").Cuts(); len(cuts) > 0 {
		t.Errorf("cuts %+v are in progress after the end", cuts)
	}
	// A controller that starts takes no order for its own that was only begun.
	c.orders = []planner.Order{{GPU: idOf("n1"), Layout: []planner.Device{{Shape: 2}}}}
	c.round()
	if cuts := c.child("n1").Cuts(); len(cuts) != 1 {
		t.Fatalf("the cuts in progress are %+v", cuts)
	}
	c.decider = c.fresh()
	c.round()
	c.round()
	if cuts := c.child("n1").Cuts(); len(cuts) > 0 {
		t.Errorf("cuts %+v of an earlier controller are in progress", cuts)
	}
}

// listed is a cache of pods: the fake client copies all of them for each list.
type listed struct {
	client.Reader
	pods []corev1.Pod
}

func (l *listed) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if pods, is := list.(*corev1.PodList); is {
		pods.Items = l.pods
		return nil
	}
	return l.Reader.List(ctx, list, options...) //nolint:wrapcheck // a test's
}

// BenchmarkDecideWhenOneTenantHasManyPendingPods is one decision with 10,000 pods of one tenant that wait, each with a claim.
func BenchmarkDecideWhenOneTenantHasManyPendingPods(b *testing.B) {
	c := newCluster(b, "n1")
	c.real = true
	c.begin("n1")
	model := c.claim("model", "")
	pods := &listed{Reader: c.Client}
	c.decider.watched = pods
	for i := range 10_000 {
		name := fmt.Sprint(i)
		claim := model.DeepCopy()
		claim.Name = name
		c.index.set(claim)
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns, UID: types.UID(name), ResourceVersion: "1"}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(c.clock)}}
		pods.pods = append(pods.pods, pod)
	}
	decide := func() {
		c.clock = c.clock.Add(period)
		if _, err := c.decide(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	decide()
	b.Logf("the first decision: %s", time.Since(start))
	for b.Loop() {
		decide()
	}
}

func TestShortagesNameClaimThatKeepsPodWaiting(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	c.orders = []planner.Order{{GPU: idOf("n1"), Layout: []planner.Device{{Shape: 0, Start: 1}, {Shape: 0, Start: 4}}}}
	for range 6 {
		c.round()
		c.react("n1", v1alpha1.MIGLayoutApplied)
	}
	c.wantLayout("n1", "1g.10gb@1 1g.10gb@4 withdrawn []")
	first := c.claim("first", "gpu-0-mig-1g10gb-19-1")
	first.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "user"}}
	if err := c.Client.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	wanted := c.claim("wanted", "")
	wanted.Spec.Devices.Requests[0].Exactly.Selectors[0].CEL.Expression = `device.attributes["gpu.nvidia.com"].profile == "3g.40gb"`
	if err := c.Client.Update(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	c.pod("p", "wanted")
	c.report("n1", func(n *v1alpha1.MIGLayoutNode) { n.Profiles[0].ComputeSlices, n.Profiles[1].ComputeSlices = 1, 3 })
	before := c.layout("n1")
	found, err := Shortages(t.Context(), c.Client, c.clock)
	if err != nil {
		t.Fatal(err)
	}
	want := "gpu-0 of node n1, memory slice 0: in use by claim team/first (gpu-0-mig-1g10gb-19-1), pod user"
	if len(found) != 1 || found[0].Shape != "3g.40gb" || len(found[0].Reliefs) != 1 || found[0].Reliefs[0].String() != want {
		t.Errorf("found %v, want %s", found, want)
	}
	c.wantLayout("n1", before)
}
