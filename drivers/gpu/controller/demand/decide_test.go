package demand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/planner"
)

// cluster is an API server with nodes of one H100 each, whose plugins do what their MIGLayouts order when react is called.
type cluster struct {
	testing.TB
	client.Client
	events *record.FakeRecorder
	clock  time.Time
	orders []planner.Order // of the next round; nil: the real planner decides
	real   bool
	made   int
	down   bool        // writes of layouts fail
	index  *claimIndex // follow keeps it, which a fake client's watch would do later
	*decider
	planned planner.State // of the last call of the policy
}

const ns = "team"

func newCluster(t testing.TB, nodes ...string) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{TB: t, events: record.NewFakeRecorder(100), clock: time.Unix(1_800_000_000, 0)}
	c.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.MIGLayout{}).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.CreateOption) error {
			c.made++
			o.SetUID(types.UID(fmt.Sprintf("%s-uid-%d", o.GetName(), c.made)))
			if o.GetName() == "auto" {
				o.SetUID("auto-uid")
			}
			o.SetGeneration(1)
			return w.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if _, layout := o.(*v1alpha1.MIGLayout); layout && c.down {
				return errors.New("the API server is away")
			}
			o.SetGeneration(o.GetGeneration() + 1)
			return w.Update(ctx, o, options...)
		},
	}).Build()
	c.decider = c.fresh()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "mig.nvidia.com"}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'`}}}
	whole := class.DeepCopy()
	whole.Name, whole.Spec.ExtendedResourceName = "gpu.nvidia.com", new(string)
	*whole.Spec.ExtendedResourceName = "nvidia.com/gpu"
	whole.Spec.Selectors[0].CEL.Expression = `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`
	c.make(class, whole)
	auto := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "auto"}}
	auto.Spec.Auto = &v1alpha1.MIGAuto{Shapes: []v1alpha1.MIGAutoShape{{Profile: "whole"}, {Profile: "1g.10gb"}, {Profile: "3g.40gb"}}}
	c.make(auto)
	for _, name := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("1Ti")}
		c.make(n)
		c.publish(name, nil)
	}
	return c
}

// fresh is a controller that has just started.
func (c *cluster) fresh() *decider {
	c.index = newClaimIndex()
	d := newDecider(c.Client, c.Client, c.Client, c.index, c.events, func() time.Time { return c.clock })
	d.policy = func() policy {
		if c.real {
			return planner.New(planner.Options{})
		}
		return ordered{c}
	}
	return d
}

// ordered is a policy that gives the test's orders, once.
type ordered struct{ c *cluster }

func (o ordered) Plan(s planner.State) []planner.Order {
	o.c.planned = s
	out := o.c.orders
	o.c.orders = nil
	return out
}

func (c *cluster) make(objects ...client.Object) {
	c.Helper()
	for _, o := range objects {
		if err := c.Create(c.Context(), o); err != nil {
			c.Fatal(err)
		}
	}
}

func uuid(node string) string { return "GPU-" + node }

func idOf(node string) string { return node + "/" + uuid(node) }

// h100 is the GPU of a node.
func h100(node string) *inventory.GPU {
	profile := func(name string, id, slices, size, most int, starts ...int) inventory.Profile {
		p := inventory.Profile{Name: name, ID: id, Slices: slices, MaxInstances: most, MemoryBytes: uint64(size) * 10 << 30,
			Multiprocessors: 16 * slices}
		for _, start := range starts {
			p.Placements = append(p.Placements, inventory.Placement{Start: start, Size: size})
		}
		return p
	}
	return &inventory.GPU{UUID: uuid(node), ProductName: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30, MIG: &inventory.MIG{
		MemorySlices: 8, Profiles: []inventory.Profile{profile("1g.10gb", 19, 1, 1, 7, 0, 1, 2, 3, 4, 5, 6),
			profile("3g.40gb", 9, 3, 4, 2, 0, 4)}}}
}

// publish writes a node's slice as its plugin does for a layout.
func (c *cluster) publish(node string, l *v1alpha1.MIGLayoutGPU) {
	c.Helper()
	g := h100(node)
	options := devices.Options{}
	if l != nil {
		planned := devices.Layout{Withdrawn: l.Withdrawn}
		options.Static = map[string][]devices.Instance{}
		for _, i := range l.Instances {
			planned.Instances = append(planned.Instances, devices.Placed{Profile: i.Profile, Start: int(i.Start)})
			at := slices.IndexFunc(g.MIG.Profiles, func(p inventory.Profile) bool { return p.Name == i.Profile })
			options.Static[g.UUID] = append(options.Static[g.UUID],
				devices.Instance{ProfileID: g.MIG.Profiles[at].ID, Start: int(i.Start)})
		}
		options.ByDemand = map[string]devices.Layout{g.UUID: planned}
	}
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := client.IgnoreNotFound(c.Delete(c.Context(), s)); err != nil {
		c.Fatal(err)
	}
	s = &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}}
	s.Spec = resourceapi.ResourceSliceSpec{Driver: devices.Driver, NodeName: &node,
		Pool: resourceapi.ResourcePool{Name: devices.PoolName(node)}}
	for _, slice := range devices.NewPool(&inventory.Node{GPUs: []*inventory.GPU{g}}, options).Slices(nil) {
		s.Spec.Devices = append(s.Spec.Devices, slice.Devices...)
	}
	c.make(s)
}

func (c *cluster) child(node string) *v1alpha1.MIGLayout {
	c.Helper()
	l := &v1alpha1.MIGLayout{}
	if err := c.Get(c.Context(), client.ObjectKey{Name: childName("auto", node)}, l); err != nil {
		c.Fatal(err)
	}
	return l
}

// react has a node's plugin do what its layout orders, and report a state.
func (c *cluster) react(node string, state v1alpha1.MIGLayoutState) {
	c.Helper()
	l := c.child(node)
	g := h100(node)
	entry := v1alpha1.MIGLayoutNode{Name: node, ObservedGeneration: l.Generation, State: state}
	status := v1alpha1.MIGNodeGPU{UUID: g.UUID, Device: "gpu-0", ProductName: g.ProductName, MemoryBytes: 80 << 30, Multiprocessors: 112,
		Whole: true, MIG: true, State: state}
	if state == v1alpha1.MIGLayoutApplied {
		status.Instances = l.Spec.GPUs[0].Instances
		c.publish(node, &l.Spec.GPUs[0])
	}
	entry.GPUs = []v1alpha1.MIGNodeGPU{status}
	for _, p := range g.MIG.Profiles {
		d := v1alpha1.MIGNodeProfile{ProductName: g.ProductName, Name: p.Name, ID: int32(p.ID), ComputeSlices: int32(p.Slices),
			Size: int32(p.Placements[0].Size), Max: int32(p.MaxInstances), MemoryBytes: int64(p.MemoryBytes),
			Multiprocessors: int32(p.Multiprocessors)}
		for _, at := range p.Placements {
			d.Starts = append(d.Starts, int32(at.Start))
		}
		entry.Profiles = append(entry.Profiles, d)
	}
	l.Status.Nodes = []v1alpha1.MIGLayoutNode{entry}
	if err := c.Status().Update(c.Context(), l); err != nil {
		c.Fatal(err)
	}
}

// round is one decision, half a second after the last.
func (c *cluster) round() {
	c.Helper()
	c.clock = c.clock.Add(period)
	c.follow()
	if _, err := c.decide(c.Context()); err != nil {
		c.Fatal(err)
	}
}

// follow brings the index up to date.
func (c *cluster) follow() {
	c.Helper()
	list := &resourceapi.ResourceClaimList{}
	if err := c.List(c.Context(), list); err != nil {
		c.Fatal(err)
	}
	there := map[types.NamespacedName]bool{}
	for i := range list.Items {
		there[client.ObjectKeyFromObject(&list.Items[i])] = true
		c.index.set(&list.Items[i])
	}
	for name := range c.index.byName {
		if !there[name] {
			c.index.remove(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}})
		}
	}
}

// begin makes the child of a node and has its plugin report.
func (c *cluster) begin(nodes ...string) {
	c.Helper()
	c.round()
	for _, node := range nodes {
		c.react(node, v1alpha1.MIGLayoutApplied)
	}
	c.round()
}

func (c *cluster) claim(name, device string) *resourceapi.ResourceClaim {
	c.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "mig.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`}}}}}}
	if device != "" {
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		claim.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: devices.Driver,
			Pool: devices.PoolName("n1"), Device: device}}
	}
	c.make(claim)
	return claim
}

func (c *cluster) pod(name, claim string, change ...func(*corev1.Pod)) *corev1.Pod {
	c.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns, CreationTimestamp: metav1.NewTime(c.clock)}}
	if claim != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	}
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(c.clock)}}
	for _, f := range change {
		f(pod)
	}
	c.make(pod)
	return pod
}

// cut orders the GPU of n1 to have one 3g.40gb and a 1g.10gb, which are shapes 1 and 0.
func (c *cluster) cut() {
	c.orders = []planner.Order{{GPU: idOf("n1"), Layout: []planner.Device{{Shape: 1, Start: 0}, {Shape: 0, Start: 4}},
		Reason: "a test wants it", Namespace: ns}}
}

func (c *cluster) layout(node string) string {
	c.Helper()
	g := c.child(node).Spec.GPUs[0]
	return fmt.Sprintf("%s withdrawn %v", v1alpha1.DescribeInstances(g.Instances), g.Withdrawn)
}

func (c *cluster) wantLayout(node, want string) {
	c.Helper()
	if got := c.layout(node); got != want {
		c.Errorf("the layout of %s is %s, want %s", node, got, want)
	}
}

func (c *cluster) wantEvent(word string) {
	c.Helper()
	for {
		select {
		case e := <-c.events.Events:
			if strings.Contains(e, word) {
				return
			}
		default:
			c.Errorf("no Event says %s", word)
			return
		}
	}
}

func TestDeciderCutsOnceDevicesAreWithdrawnAndFree(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	c.wantLayout("n1", "whole withdrawn []")
	c.cut()
	c.round()
	c.wantLayout("n1", "whole withdrawn [gpu-0]")
	if text := c.child("n1").Annotations[v1alpha1.MIGDecisionAnnotation]; !strings.Contains(text, "a test wants it") {
		t.Errorf("the layout's decision is %q", text)
	}
	c.wantEvent("LayoutOrdered")
	c.round() // the node has not answered yet
	c.wantLayout("n1", "whole withdrawn [gpu-0]")
	c.react("n1", v1alpha1.MIGLayoutApplied)
	c.round()
	c.round() // within the fence
	c.wantLayout("n1", "whole withdrawn [gpu-0]")
	c.round()
	c.wantLayout("n1", "3g.40gb@0 1g.10gb@4 withdrawn []")
	c.react("n1", v1alpha1.MIGLayoutWaiting)
	c.round()
	c.react("n1", v1alpha1.MIGLayoutApplied)
	c.round()
	c.wantEvent("LayoutChanged")
	if len(c.changes) > 0 {
		t.Errorf("changes %v are left", c.changes)
	}
}

func TestDeciderTakesBackCutWhenClaimGotDoomedDevice(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	c.cut()
	c.round()
	c.react("n1", v1alpha1.MIGLayoutApplied)
	c.round()
	c.claim("late", "gpu-0") // allocated by a scheduler with an older view
	c.round()
	c.round()
	c.wantLayout("n1", "whole withdrawn []")
	c.wantEvent("LayoutTakenBack")
	c.react("n1", v1alpha1.MIGLayoutApplied)
	c.cut()
	c.round()
	c.wantLayout("n1", "whole withdrawn []") // left alone for a while
}

func TestDeciderTakesBackCutWhenNodeDoesNotAnswer(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	c.cut()
	c.round()
	c.clock = c.clock.Add(answer)
	c.round()
	c.wantLayout("n1", "whole withdrawn []")
	c.wantEvent("has not withdrawn")
}

func TestDeciderContinuesAfterRestartAtEachStep(t *testing.T) {
	for step := range 6 {
		t.Run(fmt.Sprintf("step %d", step), func(t *testing.T) {
			c := newCluster(t, "n1")
			c.begin("n1")
			for i := range 30 {
				if l := c.child("n1"); c.layout("n1") == "3g.40gb@0 1g.10gb@4 withdrawn []" &&
					l.Status.Nodes[0].ObservedGeneration == l.Generation {
					return
				}
				c.cut()
				if i == step {
					c.decider = c.fresh()
				}
				c.round()
				c.react("n1", v1alpha1.MIGLayoutApplied)
			}
			t.Errorf("the layout is %s", c.layout("n1"))
		})
	}
}

func TestDeciderIgnoresFailedGPUUntilNodeReportsSuccess(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	c.cut()
	for range 4 {
		c.round()
		c.react("n1", v1alpha1.MIGLayoutApplied)
	}
	c.wantLayout("n1", "3g.40gb@0 1g.10gb@4 withdrawn []")
	c.react("n1", v1alpha1.MIGLayoutFailed)
	c.round()
	c.wantEvent("LayoutFailed")
	c.orders = []planner.Order{{GPU: idOf("n1"), Layout: []planner.Device{{Shape: 2}}}}
	c.round()
	c.wantLayout("n1", "3g.40gb@0 1g.10gb@4 withdrawn []")
}

func TestDeciderYieldsToLayoutByHand(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	c.begin("n1", "n2")
	hand := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "hand"}}
	hand.Spec = v1alpha1.MIGLayoutSpec{NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "n1"}},
		Layout: "a", Config: v1alpha1.MIGPartedConfig{Version: "v1", Layouts: map[string][]v1alpha1.MIGPartedEntry{"a": {}}}}
	c.make(hand)
	c.round()
	list := &v1alpha1.MIGLayoutList{}
	if err := c.List(t.Context(), list); err != nil || len(list.Items) != 3 {
		t.Errorf("%d layouts: %v", len(list.Items), err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: childName("auto", "n1")}, &v1alpha1.MIGLayout{}); err == nil {
		t.Error("the layout by demand of n1 is still there")
	}
}

func TestPlannerCutsGPUForPodThatWaits(t *testing.T) {
	for name, test := range map[string]struct {
		pod  func(*corev1.Pod)
		want string
	}{
		"of a MIG shape": {func(*corev1.Pod) {}, "1g.10gb@"},
		"with a gate": {func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}}
		}, "whole withdrawn []"},
		"that no node of the layout admits": {func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"pool": "other"}
		}, "whole withdrawn []"},
		"whose claim does not exist": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0].ResourceClaimName = new("quota-refused-it")
		}, "whole withdrawn []"},
		"that no node has the CPUs for": {func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("65")}}}}
		}, "whole withdrawn []"},
		"whose first container needs memory that no node has": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Ti")}}}}
		}, "whole withdrawn []"},
		"that wants a resource that no node has": {func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"example.com/fpga": resource.MustParse("1")}}}}
		}, "whole withdrawn []"},
		"that the scheduler has not tried": {func(p *corev1.Pod) { p.Status.Conditions = nil }, "whole withdrawn []"},
		"that is being deleted":            {func(p *corev1.Pod) { p.Finalizers = []string{"test/keep"} }, "whole withdrawn []"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "n1")
			c.real = true
			c.begin("n1")
			c.claim("one", "")
			if pod := c.pod("p", "one", test.pod); len(pod.Finalizers) > 0 {
				if err := c.Delete(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
			for range 8 {
				c.round()
				c.react("n1", v1alpha1.MIGLayoutApplied)
			}
			if got := c.layout("n1"); !strings.Contains(got, test.want) {
				t.Errorf("the layout is %s, want %s", got, test.want)
			}
		})
	}
}

func TestDeciderPassesDeviceThatClaimHadSinceLastRound(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	held := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "short", Namespace: ns}}
	held.Status.Allocation = &resourceapi.AllocationResult{}
	held.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: devices.Driver,
		Pool: devices.PoolName("n1"), Device: "gpu-0"}}
	c.index.set(held)
	c.index.remove(held)
	c.round()
	if d := c.planned.GPUs[0].Devices[0]; !d.Taken || d.Busy {
		t.Errorf("a device that a claim had since the last round is %+v", d)
	}
	c.round()
	if d := c.planned.GPUs[0].Devices[0]; d.Taken {
		t.Errorf("a round later it is %+v", d)
	}
}
