package fabric

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/rdma/dra"
)

const gib = 1 << 30

type attributes map[resourceapi.QualifiedName]any

func device(name string, a attributes, edit ...func(*resourceapi.Device)) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}}
	for name, value := range a {
		switch v := value.(type) {
		case string:
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &v}
		case int:
			d.Attributes[name] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(v))}
		}
	}
	for _, e := range edit {
		e(&d)
	}
	return d
}

func multiple(d *resourceapi.Device) { d.AllowMultipleAllocations = ptr.To(true) }

func has(name resourceapi.QualifiedName, n int64) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		d.Capacity[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(n, resource.BinarySI)}
	}
}

func tainted(key, effect string) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffect(effect)})
	}
}

func takes(start, size int) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		counters := map[string]resourceapi.Counter{"multiprocessors": {}}
		for i := range size {
			counters[fmt.Sprintf("memory-slice-%d", start+i)] = resourceapi.Counter{}
		}
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: devices.GPUOf(d.Name), Counters: counters}}
	}
}

func whole(n int, edit ...func(*resourceapi.Device)) resourceapi.Device {
	return device(fmt.Sprintf("gpu-%d", n), attributes{devices.AttrType: "gpu", devices.AttrUUID: fmt.Sprintf("GPU-%d", n),
		devices.AttrIndex: n, devices.AttrNUMANode: n / 2}, append([]func(*resourceapi.Device){has(devices.CapMemory, 80*gib)}, edit...)...)
}

func mig(n, start, size int, edit ...func(*resourceapi.Device)) resourceapi.Device {
	return device(fmt.Sprintf("gpu-%d-mig-%dg10gb-19-%d", n, size, start), attributes{devices.AttrType: "mig",
		devices.AttrProfile: fmt.Sprintf("%dg.10gb", size), devices.AttrParentUUID: fmt.Sprintf("GPU-%d", n)},
		append([]func(*resourceapi.Device){has(devices.CapMemory, int64(size)*10*gib), takes(start, size)}, edit...)...)
}

func slice(node, driver, pool string, generation int64, all ...resourceapi.Device) *Slice {
	return OfSlice(&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", node, pool, generation)},
		Spec: resourceapi.ResourceSliceSpec{NodeName: &node, Driver: driver, Devices: all,
			Pool: resourceapi.ResourcePool{Name: pool, Generation: generation}}})
}

func gpuSlice(node string, all ...resourceapi.Device) *Slice {
	return slice(node, devices.Driver, devices.PoolName(node), 1, all...)
}

func claim(name, driver, pool, dev string, consumed map[resourceapi.QualifiedName]int64, pods ...string) *Claim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name}}
	result := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: driver, Pool: pool, Device: dev}
	for name, n := range consumed {
		if result.ConsumedCapacity == nil {
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		result.ConsumedCapacity[name] = *resource.NewQuantity(n, resource.BinarySI)
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{result}}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p})
	}
	return OfClaim(c)
}

func onGPU(name, dev string, consumed map[resourceapi.QualifiedName]int64) *Claim {
	return claim(name, devices.Driver, "n-gpu", dev, consumed)
}

type used = map[resourceapi.QualifiedName]int64

func TestDrawStateOfAGPU(t *testing.T) {
	for _, c := range []struct {
		name    string
		devices []resourceapi.Device
		claims  []*Claim
		want    State
		forms   []string // of the holds
	}{
		{"whole and free", []resourceapi.Device{whole(0)}, nil, Free, nil},
		{"whole and held", []resourceapi.Device{whole(0)}, []*Claim{onGPU("a", "gpu-0", nil)}, Held, []string{"whole"}},
		{"looked at by an administrator", []resourceapi.Device{whole(0)}, []*Claim{func() *Claim {
			c := onGPU("a", "gpu-0", nil)
			c.Results[0].Admin = true
			return c
		}()}, Free, []string{"whole"}},
		{"shareable, had whole", []resourceapi.Device{whole(0, multiple)},
			[]*Claim{onGPU("a", "gpu-0", used{devices.CapMemory: 80 * gib, devices.CapCores: 10})}, Held, []string{"whole"}},
		{"shareable, a part of it held", []resourceapi.Device{whole(0, multiple)},
			[]*Claim{onGPU("a", "gpu-0", used{devices.CapMemory: 8 * gib, devices.CapCores: 10})}, Partly, []string{"share"}},
		{"shareable, all memory in shares", []resourceapi.Device{whole(0, multiple)},
			[]*Claim{onGPU("a", "gpu-0", used{devices.CapMemory: 40 * gib}),
				onGPU("b", "gpu-0", used{devices.CapMemory: 40 * gib})}, Held, []string{"share", "share"}},
		{"shareable, all cores in shares", []resourceapi.Device{whole(0, multiple, has(devices.CapCores, 100))},
			[]*Claim{onGPU("a", "gpu-0", used{devices.CapMemory: 8 * gib, devices.CapCores: 100})}, Held, []string{"share"}},
		{"shareable, full and not published", nil, []*Claim{func() *Claim {
			c := onGPU("a", "gpu-0", used{devices.CapMemory: 80 * gib, devices.CapCores: 100})
			c.Results[0].ShareID = "s"
			return c
		}()}, Held, []string{"share"}},
		{"one of two counted shares", []resourceapi.Device{whole(0, multiple, has(devices.CapShares, 2))},
			[]*Claim{onGPU("a", "gpu-0", used{devices.CapShares: 1})}, Partly, []string{"share"}},
		{"both counted shares", []resourceapi.Device{whole(0, multiple, has(devices.CapShares, 2))},
			[]*Claim{onGPU("a", "gpu-0", used{devices.CapShares: 1}), onGPU("b", "gpu-0", used{devices.CapShares: 1})}, Held,
			[]string{"share", "share"}},
		{"MIG with a free place", []resourceapi.Device{whole(0), mig(0, 0, 1), mig(0, 1, 1), mig(0, 0, 2)},
			[]*Claim{onGPU("a", "gpu-0-mig-1g10gb-19-0", nil)}, Partly, []string{"MIG 1g.10gb"}},
		{"MIG without one", []resourceapi.Device{whole(0), mig(0, 0, 1), mig(0, 1, 1), mig(0, 0, 2)},
			[]*Claim{onGPU("a", "gpu-0-mig-2g10gb-19-0", nil)}, Held, []string{"MIG 2g.10gb"}},
		{"MIG without counters", []resourceapi.Device{mig(0, 0, 1, func(d *resourceapi.Device) { d.ConsumesCounters = nil })},
			[]*Claim{onGPU("a", "gpu-0-mig-1g10gb-19-0", nil)}, Held, []string{"MIG 1g.10gb"}},
		{"a fault", []resourceapi.Device{whole(0, tainted("gpu.nvidia.com/xid", "NoSchedule"))}, nil, Broken, nil},
		{"a fault that keeps nobody away", []resourceapi.Device{whole(0, tainted("gpu.nvidia.com/xid", "None"))}, nil, Free, nil},
		{"a fault of every placement", []resourceapi.Device{mig(0, 0, 1, tainted("gpu.nvidia.com/lost", "NoExecute")),
			mig(0, 1, 1, tainted("gpu.nvidia.com/lost", "NoExecute"))}, nil, Broken, nil},
		{"a fault of one placement", []resourceapi.Device{mig(0, 0, 1, tainted("gpu.nvidia.com/xid", "NoSchedule")), mig(0, 1, 1)},
			nil, Free, nil},
		{"handed to a device plugin", []resourceapi.Device{whole(0, tainted(handover.Taint, "NoSchedule"))}, nil, Tainted, nil},
		{"drained while held", []resourceapi.Device{whole(0, tainted("gpufabric.io/drained", "NoSchedule"))},
			[]*Claim{onGPU("a", "gpu-0", nil)}, Tainted, []string{"whole"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Draw(&Facts{Slices: []*Slice{gpuSlice("n", c.devices...)}, Claims: c.claims})
			if len(p.Racks) != 1 || len(p.Racks[0].Nodes) != 1 || len(p.Racks[0].Nodes[0].GPUs) != 1 {
				t.Fatalf("want one GPU, got %+v", p.Racks)
			}
			g := p.Racks[0].Nodes[0].GPUs[0]
			var forms []string
			for _, h := range g.Holds {
				forms = append(forms, h.Form)
			}
			if g.State != c.want || !slices.Equal(forms, c.forms) {
				t.Errorf("state %s with holds %q, want %s with %q", g.State, forms, c.want, c.forms)
			}
		})
	}
}

func TestDrawNotesGPUsThatAreFullAndNotPublished(t *testing.T) {
	var claims []*Claim
	for _, gpu := range []string{"gpu-10", "gpu-2"} {
		c := onGPU(gpu, gpu, used{devices.CapMemory: 80 * gib})
		c.Results[0].ShareID = "s"
		claims = append(claims, c)
	}
	p := Draw(&Facts{Slices: []*Slice{gpuSlice("n", whole(0, multiple))}, Claims: claims})
	n := p.Racks[0].Nodes[0]
	if len(n.GPUs) != 3 || p.Totals.Held != 2 || len(n.Gone) > 0 || len(n.Notes) != 1 ||
		!strings.HasPrefix(n.Notes[0], "claims have shares of gpu-2, gpu-10, which no ResourceSlice has") {
		t.Errorf("%d GPUs, %d held, gone %v, notes %q", len(n.GPUs), p.Totals.Held, n.Gone, n.Notes)
	}
}

func port(name string, slots int64, edit ...func(*resourceapi.Device)) resourceapi.Device {
	return device(name, attributes{dra.AttrRDMADevice: "mlx5_" + name, dra.AttrPort: 1, dra.AttrRate: 400, dra.AttrNUMANode: 1},
		append([]func(*resourceapi.Device){has(dra.CapSlots, slots)}, edit...)...)
}

func TestDrawStateOfAPort(t *testing.T) {
	on := func(name string, slots int64) *Claim {
		return claim(name, dra.Driver, "n-rdma", "p", used{dra.CapSlots: slots})
	}
	for _, c := range []struct {
		name   string
		port   resourceapi.Device
		claims []*Claim
		want   State
	}{
		{"free", port("p", 4, multiple), nil, Free},
		{"one slot of four held", port("p", 4, multiple), []*Claim{on("a", 1)}, Partly},
		{"all slots held", port("p", 2, multiple), []*Claim{on("a", 1), on("b", 1)}, Held},
		{"held whole", port("p", 1), []*Claim{claim("a", dra.Driver, "n-rdma", "p", nil)}, Held},
		{"down", port("p", 4, multiple, tainted(dra.TaintPortDown, "NoSchedule")), nil, Broken},
		{"of the device plugin", port("p", 4, multiple, tainted(dra.TaintDevicePlugin, "NoSchedule")), nil, Tainted},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Draw(&Facts{Slices: []*Slice{slice("n", dra.Driver, "n-rdma", 1, c.port)}, Claims: c.claims})
			if got := p.Racks[0].Nodes[0].Ports[0].State; got != c.want {
				t.Errorf("state %s, want %s", got, c.want)
			}
		})
	}
}

func TestDrawTakesTheNewestGenerationOfAPool(t *testing.T) {
	p := Draw(&Facts{Slices: []*Slice{
		slice("n", devices.Driver, "n-gpu", 1, whole(0), whole(1)),
		slice("n", devices.Driver, "n-gpu", 2, whole(0)),
	}, Claims: []*Claim{onGPU("a", "gpu-1", nil)}})
	n := p.Racks[0].Nodes[0]
	if len(n.GPUs) != 1 || len(n.Gone) != 1 || n.Gone[0].Device != "gpu-1" {
		t.Errorf("%d GPUs and %+v gone, want gpu-0, and gpu-1 gone", len(n.GPUs), n.Gone)
	}
}

func TestRacksAreOfOneNVLinkFabricOrOfOneLabel(t *testing.T) {
	node := func(name string, labels map[string]string) *Node {
		return OfNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	}
	facts := &Facts{Nodes: []*Node{
		node("n-10", map[string]string{v1beta1.LabelClique: "aa.1"}), node("n-2", map[string]string{v1beta1.LabelClique: "aa.2"}),
		node("m-1", map[string]string{v1beta1.LabelClique: "bb.1"}), node("x", map[string]string{"topology.kubernetes.io/rack": "r7"}),
		node("y", nil),
		node("without a fabric", nil),
	}, Slices: []*Slice{gpuSlice("x", whole(0)), gpuSlice("y", whole(0))}}
	var got []string
	for _, r := range Draw(facts).Racks {
		var names []string
		for _, n := range r.Nodes {
			names = append(names, n.Name)
		}
		got = append(got, fmt.Sprintf("%s %s: %s; %s", r.Kind, r.ID, strings.Join(names, " "), strings.Join(r.Cliques, " ")))
	}
	want := []string{"nvlink bb: m-1; bb.1", "nvlink aa: n-2 n-10; aa.1 aa.2", "label r7: x; ", "none : y; "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDrawDomainHasReadyAndJoiningNodes(t *testing.T) {
	facts := &Facts{
		Nodes: []*Node{OfNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{v1beta1.LabelComputeDomain: "u"}}}),
			OfNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{v1beta1.LabelComputeDomain: "u"}}})},
		Slices: []*Slice{slice("a", computedomain.Driver, "a-compute-domain", 1, device("channel-0", nil))},
		Domains: []*Domain{OfDomain(&v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "d", UID: types.UID("u")},
			Spec: v1beta1.ComputeDomainSpec{NumNodes: 2}, Status: v1beta1.ComputeDomainStatus{
				Nodes:      []v1beta1.ComputeDomainNode{{Name: "a", Status: v1beta1.Ready}},
				Conditions: []metav1.Condition{{Type: v1beta1.ConditionReady, Reason: "Waiting", Message: "waiting for b"}}}})},
		Claims: []*Claim{claim("c", computedomain.Driver, "a-compute-domain", "channel-0", nil, "pod")},
	}
	p := Draw(facts)
	want := DomainState{Name: "tenant/d", Wanted: 2, Up: 1, Reason: "Waiting", Why: "waiting for b",
		Members: []Member{{Node: "a", Ready: true}},
		Joining: []string{"b"}}
	if diff := cmp.Diff([]DomainState{want}, p.Domains); diff != "" {
		t.Error(diff)
	}
	n := p.Racks[0].Nodes[0]
	if len(n.IMEX) != 1 || n.IMEX[0].Form != "channel" || !slices.Equal(n.Domains, []string{"tenant/d"}) || p.Totals.Forming != 1 {
		t.Errorf("node %+v, %d domains forming", n, p.Totals.Forming)
	}
}

func TestDrawGroupsPodsThatWaitForTheSameCause(t *testing.T) {
	waiting := func(name, message string) *Pod {
		return OfPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name},
			Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "c"}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse, Message: message, LastTransitionTime: metav1.Unix(100, 0)}}}})
	}
	queue := Draw(&Facts{Pods: []*Pod{
		waiting("a", "0/18 nodes are available: 2 node(s) had untolerated taint {x: }, 16 cannot allocate all claims. "+
			"preemption: 0/18 nodes are available."),
		waiting("b", "0/19 nodes are available: 16 cannot allocate all claims, 3 node(s) had untolerated taint {x: }. "+
			"no new claims to deallocate, preemption: x"),
		waiting("c", "waiting for ResourceClaim c"),
		OfPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "of no fabric"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}),
	}}).Queue
	got := Causes(queue, time.Unix(160, 0))
	want := []Cause{{Cause: "cannot allocate all claims; node(s) had untolerated taint {x: }", Pods: 2, Oldest: time.Minute},
		{Cause: "waiting for ResourceClaim c", Pods: 1, Oldest: time.Minute}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// everyHold walks the whole picture.
func everyHold(p *Picture, visit func(h Allocation)) {
	each := func(holds []Allocation) {
		for _, h := range holds {
			visit(h)
		}
	}
	each(p.Strays)
	for _, r := range p.Racks {
		for _, n := range r.Nodes {
			each(n.IMEX)
			each(n.Gone)
			for _, g := range n.GPUs {
				each(g.Holds)
			}
			for _, o := range n.Ports {
				each(o.Holds)
			}
		}
	}
}

// Whatever the API server holds, also in the middle of an upgrade, each device of a claim is in the picture once.
func TestDrawHasEveryAllocatedDeviceOnce(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		facts := randomFacts(r)
		want, got := map[string]int{}, map[string]int{}
		for _, c := range facts.Claims {
			for _, result := range c.Results {
				want[c.Namespace+"/"+c.Name+" "+result.Request+" "+result.Device]++
			}
		}
		p := Draw(facts)
		everyHold(p, func(h Allocation) { got[h.Claim+" "+h.Request+" "+h.Device]++ })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		shuffled := *facts
		shuffled.Slices, shuffled.Claims = slices.Clone(facts.Slices), slices.Clone(facts.Claims)
		r.Shuffle(len(shuffled.Slices), func(i, j int) {
			shuffled.Slices[i], shuffled.Slices[j] = shuffled.Slices[j], shuffled.Slices[i]
		})
		r.Shuffle(len(shuffled.Claims), func(i, j int) {
			shuffled.Claims[i], shuffled.Claims[j] = shuffled.Claims[j], shuffled.Claims[i]
		})
		if diff := cmp.Diff(p, Draw(&shuffled)); diff != "" {
			t.Fatalf("seed %d: the order of the objects matters: %s", seed, diff)
		}
		if n := p.Totals; n.Free+n.Partly+n.Held+n.Tainted+n.Broken != n.GPUs {
			t.Fatalf("seed %d: the states of %d GPUs are %+v", seed, n.GPUs, n)
		}
	}
}

func randomFacts(r *rand.Rand) *Facts {
	facts := &Facts{}
	type place struct{ driver, pool, device string }
	places := []place{{devices.Driver, "unknown", "gpu-0"}, {devices.Driver, "n0-gpu", "gpu-99"}, {dra.Driver, "n0-rdma", "gone"}}
	for i := range 1 + r.IntN(3) {
		node := fmt.Sprintf("n%d", i)
		if r.IntN(4) > 0 {
			facts.Nodes = append(facts.Nodes, OfNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))
		}
		var all []resourceapi.Device
		for g := range 1 + r.IntN(3) {
			switch r.IntN(3) {
			case 0:
				all = append(all, whole(g))
			case 1:
				all = append(all, whole(g, multiple, has(devices.CapShares, 3)))
			default:
				all = append(all, mig(g, 0, 1), mig(g, 1, 1), mig(g, 0, 2))
			}
		}
		half := r.IntN(len(all) + 1)
		newest := int64(1 + r.IntN(2))
		facts.Slices = append(facts.Slices, slice(node, devices.Driver, devices.PoolName(node), newest, all[:half]...),
			slice(node, devices.Driver, devices.PoolName(node), int64(1+r.IntN(2)), all[half:]...),
			slice(node, dra.Driver, node+"-rdma", 1, port("p", 4, multiple)),
			slice(node, computedomain.Driver, computedomain.PoolName(node), 1, device("channel-0", nil), device("daemon-0", nil)))
		for _, d := range all {
			places = append(places, place{devices.Driver, devices.PoolName(node), d.Name})
		}
		places = append(places, place{dra.Driver, node + "-rdma", "p"}, place{computedomain.Driver, computedomain.PoolName(node), "channel-0"})
	}
	for i := range r.IntN(12) {
		at := places[r.IntN(len(places))]
		c := claim(fmt.Sprintf("c%d", i), at.driver, at.pool, at.device, used{devices.CapShares: int64(r.IntN(2))})
		if r.IntN(3) == 0 {
			more := claim("x", places[0].driver, places[0].pool, places[0].device, nil).Results[0]
			more.Request = "second"
			c.Results = append(c.Results, more)
		}
		facts.Claims = append(facts.Claims, c)
	}
	return facts
}
