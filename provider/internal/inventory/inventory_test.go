package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const gib = 1 << 30

func text(s string) resourcev1.DeviceAttribute { return resourcev1.DeviceAttribute{StringValue: &s} }

func amount(n int64) resourcev1.DeviceCapacity {
	return resourcev1.DeviceCapacity{Value: *resource.NewQuantity(n, resource.DecimalSI)}
}

func draws(set string, counters ...string) []resourcev1.DeviceCounterConsumption {
	m := map[string]resourcev1.Counter{}
	for _, c := range counters {
		m[c] = resourcev1.Counter{Value: resource.MustParse("1")}
	}
	return []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: m}}
}

// onePool is a GPU of two memory slices in all its forms, and a second, tainted one.
func onePool() resourcev1.ResourceSlice {
	node, several := "n1", true
	device := func(name, kind, profile string, counters ...string) resourcev1.Device {
		d := resourcev1.Device{
			Name: name,
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"type":     text(kind),
				"cliqueID": text("u.1"),
				pcieSwitch: text("0000:01:00.0"),
			},
			ConsumesCounters: draws("gpu-0", counters...),
		}
		if profile != "" {
			d.Attributes["profile"] = text(profile)
		}
		return d
	}
	shared := device("gpu-0-shared", "shared", "", "s0", "s1")
	shared.AllowMultipleAllocations = &several
	shared.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": amount(40 * gib), "cores": amount(100)}
	broken := device("gpu-1", "gpu", "")
	broken.ConsumesCounters = nil
	broken.Taints = []resourcev1.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	return resourcev1.ResourceSlice{
		Spec: resourcev1.ResourceSliceSpec{Driver: GPUDriver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: "n1-gpu", Generation: 2},
			SharedCounters: []resourcev1.CounterSet{
				{
					Name:     "gpu-0",
					Counters: map[string]resourcev1.Counter{"s0": {Value: resource.MustParse("1")}, "s1": {Value: resource.MustParse("1")}},
				},
			},
			Devices: []resourcev1.Device{
				device("gpu-0", "gpu", "", "s0", "s1"),
				shared,
				device("gpu-0-mig-0", "mig", "1g.5gb", "s0"),
				device("gpu-0-mig-1", "mig", "1g.5gb", "s1"),
				broken,
			}},
	}
}

func claim(device string, consumed map[resourcev1.QualifiedName]resource.Quantity) resourcev1.ResourceClaim {
	return resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Driver: GPUDriver, Pool: "n1-gpu", Device: device, ConsumedCapacity: consumed}},
			}}},
	}
}

func TestFree(t *testing.T) {
	whole := Request{Driver: GPUDriver, Type: "gpu"}
	mig := Request{Driver: GPUDriver, Type: "mig", Profile: "1g.5gb"}
	share := Request{Driver: GPUDriver, Type: "shared", Capacity: map[resourcev1.QualifiedName]int64{"memory": 10 * gib, "cores": 20}}
	for _, c := range []struct {
		name    string
		claims  []resourcev1.ResourceClaim
		request Request
		want    int64
	}{
		{"a free GPU can be taken whole, a tainted one cannot", nil, whole, 1},
		{"a free GPU has room for both its partitions", nil, mig, 2},
		{"a free GPU has room for as many shares as its memory allows", nil, share, 4},
		{"cores can be scarcer than memory", nil, Request{Driver: GPUDriver, Type: "shared",
			Capacity: map[resourcev1.QualifiedName]int64{"memory": gib, "cores": 40}}, 2},
		{"a GPU taken whole has no partition left", []resourcev1.ResourceClaim{claim("gpu-0", nil)}, mig, 0},
		{"a partition taken leaves the other one", []resourcev1.ResourceClaim{claim("gpu-0-mig-0", nil)}, mig, 1},
		{"a partition taken leaves no whole GPU", []resourcev1.ResourceClaim{claim("gpu-0-mig-0", nil)}, whole, 0},
		{"a partition taken leaves no shares", []resourcev1.ResourceClaim{claim("gpu-0-mig-0", nil)}, share, 0},
		{"a share taken leaves the rest to shares", []resourcev1.ResourceClaim{claim("gpu-0-shared",
			map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("15Gi"), "cores": resource.MustParse("10")})}, share, 2},
		{"a share taken leaves no " +
			"partition", []resourcev1.ResourceClaim{claim("gpu-0-shared",
			map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")})}, mig, 0},
		{"a profile nobody publishes is free nowhere", nil, Request{Driver: GPUDriver, Profile: "7g.80gb"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := build([]resourcev1.ResourceSlice{onePool()}, c.claims).Free(c.request)["n1"]; got != c.want {
				t.Errorf("free: got %d, want %d", got, c.want)
			}
		})
	}
}

// TestCountedSharesAreFreeUntilTheyEnd looks at a GPU of form shares, as gpu-plugin publishes it: a plain claim takes one share and no
// memory.
func TestCountedSharesAreFreeUntilTheyEnd(t *testing.T) {
	several := true
	of := func(value, byDefault string) resourcev1.DeviceCapacity {
		least := resource.MustParse(byDefault)
		return resourcev1.DeviceCapacity{Value: resource.MustParse(value), RequestPolicy: &resourcev1.CapacityRequestPolicy{Default: &least}}
	}
	slice := onePool()
	slice.Spec.SharedCounters, slice.Spec.Devices = nil, []resourcev1.Device{{Name: "gpu-0", AllowMultipleAllocations: &several,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": text("gpu")},
		Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": of("40Gi", "0"), "shares": of("4", "1")}}}
	held := []resourcev1.ResourceClaim{claim("gpu-0", map[resourcev1.QualifiedName]resource.Quantity{"shares": resource.MustParse("1"),
		"memory": resource.MustParse("20Gi")})}
	for _, c := range []struct {
		name    string
		request Request
		want    int64
	}{
		{"plain claims", Request{Driver: GPUDriver, Type: "gpu"}, 3},
		{"shares of memory", Request{Driver: GPUDriver, Type: "shared", Capacity: map[resourcev1.QualifiedName]int64{"memory": 10 * gib,
			"cores": 0}}, 2},
		{"shares of cores", Request{Driver: GPUDriver, Type: "shared", Capacity: map[resourcev1.QualifiedName]int64{"cores": 10}}, 0},
	} {
		if got := build([]resourcev1.ResourceSlice{slice}, held).Free(c.request)["n1"]; got != c.want {
			t.Errorf("%s: %d are free, want %d", c.name, got, c.want)
		}
	}
}

func TestSlicesOfAnOlderGenerationAreLeftOut(t *testing.T) {
	old := onePool()
	old.Spec.Pool.Generation = 1
	old.Spec.Devices = old.Spec.Devices[:1]
	old.Spec.Devices[0].Name = "gpu-9"
	for _, d := range build([]resourcev1.ResourceSlice{old, onePool()}, nil).Devices {
		if d.Name == "gpu-9" {
			t.Error("a device of generation 1 is listed beside generation 2")
		}
	}
}

func TestCliques(t *testing.T) {
	inv := build([]resourcev1.ResourceSlice{onePool()}, nil)
	got := inv.Cliques(map[string]string{"n1": "u.1", "n2": "u.1", "n10": "u.1", "n3": "u.2", "n4": ""}) // n4 is in none
	want := []Clique{{"u.1", []string{"n1", "n2", "n10"}, 2}, {"u.2", []string{"n3"}, 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestGroups(t *testing.T) {
	nic := resourcev1.ResourceSlice{
		Spec: resourcev1.ResourceSliceSpec{Driver: RDMADriver, NodeName: onePool().Spec.NodeName, Pool: resourcev1.ResourcePool{Name: "n1-rdma"},
			Devices: []resourcev1.Device{
				{Name: "mlx5-0", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{pcieSwitch: text("0000:01:00.0")}},
				{Name: "mlx5-1"},
			}},
	}
	got := build([]resourcev1.ResourceSlice{onePool(), nic}, nil).Groups()
	want := []Group{
		{Node: "n1", Switch: "0000:01:00.0", NUMANode: -1, GPUs: []string{"gpu-0", "gpu-1"}, NICs: []string{"mlx5-0"}},
		{Node: "n1", NUMANode: -1, NICs: []string{"mlx5-1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
