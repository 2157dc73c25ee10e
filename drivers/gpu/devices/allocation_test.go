package devices_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
)

const gib = 1 << 30

// flexible offers every form at once.
var flexible = devices.Forms{Mode: devices.ModeFlexible}

// a100 is an A100-40 as its driver lists it.
func a100(minor int) *inventory.GPU {
	p := func(name string, number, id, most, slices, memMiB, sm, ce, dec, jpeg, ofa, size int, starts ...int) inventory.Profile {
		profile := inventory.Profile{
			Name: name, Number: number, ID: id, MaxInstances: most, Slices: slices, MemoryBytes: uint64(memMiB) << 20, Multiprocessors: sm,
			CopyEngines: ce, Decoders: dec, JPEGEngines: jpeg, OFAEngines: ofa,
		}
		for _, s := range starts {
			profile.Placements = append(profile.Placements, inventory.Placement{Start: s, Size: size})
		}
		return profile
	}
	return &inventory.GPU{
		Index: minor, Minor: minor, UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", minor), ProductName: "NVIDIA A100-SXM4-40GB",
		Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: [2]int{8, 0}, MemoryBytes: 40 * gib,
		Place: inventory.Place{BusID: fmt.Sprintf("0000:%02x:00.0", minor), Root: "pci0000:00", NUMANode: minor / 4},
		MIG: &inventory.MIG{MemorySlices: 8, Profiles: []inventory.Profile{
			p("1g.5gb", 0, 19, 7, 1, 4864, 14, 1, 0, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6),
			p("2g.10gb", 1, 14, 3, 2, 9856, 28, 2, 1, 0, 0, 2, 0, 2, 4),
			p("3g.20gb", 2, 9, 2, 3, 19968, 42, 3, 2, 0, 0, 4, 0, 4),
			p("4g.20gb", 3, 5, 1, 4, 19968, 56, 4, 2, 0, 0, 4, 0),
			p("7g.40gb", 4, 0, 1, 7, 40448, 98, 7, 5, 1, 1, 8, 0),
			p("1g.5gb+me", 7, 20, 1, 1, 4864, 14, 1, 1, 1, 1, 1, 0, 1, 2, 3, 4, 5, 6),
			p("1g.10gb", 9, 15, 4, 1, 9856, 14, 1, 1, 0, 0, 2, 0, 2, 4, 6),
		}},
	}
}

func node(gpus ...*inventory.GPU) *inventory.Node {
	return &inventory.Node{DriverVersion: "570.158.01", CUDAVersion: 12080, GPUs: gpus}
}

// scheduler allocates claims one after the other as kube-scheduler 1.36 does with its default features.
type scheduler struct {
	t         *testing.T
	slices    []*resourceapi.ResourceSlice
	allocated structured.AllocatedState
}

type classes struct{}

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}
func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func newScheduler(t *testing.T, pool *devices.Pool) *scheduler {
	s := &scheduler{t: t, allocated: structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}}
	layout := pool.Slices(nil)
	name := "n1"
	for i, slice := range layout {
		s.slices = append(s.slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%03d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: devices.Driver, NodeName: &name, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: devices.PoolName("n1"), ResourceSliceCount: int64(len(layout)), Generation: 1},
			},
		})
	}
	return s
}

// ask is one device request: by exact device name, or by form.
type ask struct {
	device, form string
	memory       string
	cores        string
	shares       string
}

func (a ask) selector() string {
	if a.form != "" {
		return fmt.Sprintf("device.attributes['gpu.nvidia.com'].type == '%s'", a.form)
	}
	return "device.attributes['gpu.nvidia.com'].type == 'never'"
}

// allocate returns the names of the allocated devices, or false.
func (s *scheduler) allocate(asks ...ask) ([]resourceapi.DeviceRequestAllocationResult, bool) {
	s.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n", UID: "u"}}
	slices := s.slices
	for i, a := range asks {
		r := resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i), Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}}
		if a.device != "" {
			// The API has no selector by name: only this test has a name in an attribute.
			slices = named(slices)
			r.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf("device.attributes['gpu.nvidia.com'].name == '%s'", a.device)}}}
		} else {
			r.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: a.selector()}}}
		}
		if a.memory != "" || a.cores != "" || a.shares != "" {
			r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
			if a.memory != "" {
				r.Exactly.Capacity.Requests["memory"] = resource.MustParse(a.memory)
			}
			if a.cores != "" {
				r.Exactly.Capacity.Requests["cores"] = resource.MustParse(a.cores)
			}
			if a.shares != "" {
				r.Exactly.Capacity.Requests["shares"] = resource.MustParse(a.shares)
			}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, r)
	}
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true}
	allocator, err := structured.NewAllocator(context.Background(), features, s.allocated, classes{}, slices,
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		s.t.Fatal(err)
	}
	results, err := allocator.Allocate(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		[]*resourceapi.ResourceClaim{claim})
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		s.t.Fatal(err)
	}
	if len(results) != 1 {
		return nil, false
	}
	for _, r := range results[0].Devices.Results {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			s.allocated.AllocatedDevices.Insert(id)
			continue
		}
		s.allocated.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		s.allocated.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
	}
	return results[0].Devices.Results, true
}

// named adds each device's name as an attribute.
func named(in []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for _, slice := range in {
		slice = slice.DeepCopy()
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			d.Attributes["name"] = resourceapi.DeviceAttribute{StringValue: &d.Name}
		}
		out = append(out, slice)
	}
	return out
}

// TestAllocationOfEveryPairOfForms allocates every device after every other device of the same GPU, and compares the result with the
// hardware's rules.
func TestAllocationOfEveryPairOfForms(t *testing.T) {
	pool := devices.NewPool(node(a100(0)), devices.Options{Forms: flexible,
		Profiles: []devices.Profile{{Name: "ten", Share: devices.Share{Memory: 10 * gib, Cores: 25}, Split: 3}}})
	for _, first := range pool.Devices() {
		for _, second := range pool.Devices() {
			s := newScheduler(t, pool)
			// A small share, so that a second share of the same GPU fits.
			if _, ok := s.allocate(ask{device: first.Name()}); !ok {
				t.Fatalf("%s alone was refused", first.Name())
			}
			_, got := s.allocate(ask{device: second.Name()})
			if want := mayStandTogether(first, second); got != want {
				t.Errorf("%s, then %s: allocated %t, want %t", first.Name(), second.Name(), got, want)
			}
		}
	}
}

// mayStandTogether has the hardware's rules, written independently of the counters. A whole GPU excludes everything. A share
// excludes everything but shares. Two partitions must not overlap, exceed their profile's number, or both have the single media
// engine.
func mayStandTogether(a, b *devices.Device) bool {
	if a.Form == devices.Shared && b.Form == devices.Shared {
		return a == b // shares of one profile; two profiles never share one GPU
	}
	if a.Form != devices.MIG || b.Form != devices.MIG {
		return false
	}
	overlap := a.Placement.Start < b.Placement.Start+b.Placement.Size && b.Placement.Start < a.Placement.Start+a.Placement.Size
	bothMedia := a.Profile.OFAEngines > 0 && b.Profile.OFAEngines > 0
	compute := a.Profile.Slices+b.Profile.Slices <= 7
	return !overlap && !bothMedia && compute
}

func TestAllocationDoesNotAffectOtherGPUs(t *testing.T) {
	pool := devices.NewPool(node(a100(0), a100(1)), devices.Options{Forms: flexible})
	s := newScheduler(t, pool)
	for _, step := range []struct {
		ask  ask
		want bool
	}{
		{ask{device: "gpu-0"}, true},
		{ask{device: "gpu-1-mig-1g5gb-19-3"}, true},
		{ask{device: "gpu-1"}, false},
		{ask{device: "gpu-0-shared"}, false},
		{ask{device: "gpu-1-mig-3g20gb-9-4"}, true},
		{ask{device: "gpu-1-mig-4g20gb-5-0"}, false},
	} {
		if _, got := s.allocate(step.ask); got != step.want {
			t.Errorf("%s: allocated %t, want %t", step.ask.device, got, step.want)
		}
	}
}

func TestSharesStopWhereTheGPUIsFull(t *testing.T) {
	pool := devices.NewPool(node(a100(0)), devices.Options{Forms: flexible})
	for _, c := range []struct {
		name string
		asks []ask
		want int
	}{
		{"a request without capacities takes a tenth", repeat(ask{form: "shared"}, 12), 10},
		{"memory decides", repeat(ask{form: "shared", memory: "15Gi", cores: "1"}, 4), 2},
		{"cores decide", repeat(ask{form: "shared", memory: "1Gi", cores: "40"}, 4), 2},
		{"more memory than the GPU has is refused", []ask{{form: "shared", memory: "41Gi"}}, 0},
		{"more than 100 cores is refused", []ask{{form: "shared", cores: "101"}}, 0},
		{"no cores at all counts as one", repeat(ask{form: "shared", memory: "1Mi", cores: "0"}, 101), 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScheduler(t, pool)
			got := 0
			for _, a := range c.asks {
				if _, ok := s.allocate(a); ok {
					got++
				}
			}
			if got != c.want {
				t.Errorf("%d of %d allocated, want %d", got, len(c.asks), c.want)
			}
		})
	}
}

func TestAllocationCountsSharesOfAProfileByItsSize(t *testing.T) {
	for _, c := range []struct {
		name    string
		profile devices.Profile
		want    int
	}{
		{"memory decides", devices.Profile{Share: devices.Share{Memory: 15 * gib, Cores: 10}}, 2},
		{"cores decide", devices.Profile{Share: devices.Share{Memory: gib, Cores: 30}}, 3},
		{"the split decides", devices.Profile{Share: devices.Share{Memory: gib, Cores: 1}, Split: 4}, 4},
		{"a split into one is one share", devices.Profile{Share: devices.Share{Memory: gib, Cores: 1}, Split: 1}, 1},
		{"a GPU that is too small has none", devices.Profile{Share: devices.Share{Memory: 48 * gib, Cores: 1}}, 0},
		{"a GPU of another model has none", devices.Profile{Share: devices.Share{Memory: gib}, ProductNames: []string{"NVIDIA L40S"}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.profile.Name = "slices"
			pool := devices.NewPool(node(a100(0)), devices.Options{Forms: flexible, Profiles: []devices.Profile{c.profile}})
			stepsFit(t, pool)
			s := newScheduler(t, pool)
			got := 0
			for range 12 {
				if _, ok := s.allocate(ask{device: "gpu-0-shared-slices"}); ok {
					got++
				}
			}
			if got != c.want {
				t.Errorf("%d shares fit, want %d", got, c.want)
			}
		})
	}
}

// stepsFit checks the API server's rule: one step above the minimum must be within the capacity, or the whole slice is refused.
func stepsFit(t *testing.T, pool *devices.Pool) {
	t.Helper()
	for _, d := range pool.Devices() {
		for name, c := range d.API.Capacity {
			if c.RequestPolicy == nil || c.RequestPolicy.ValidRange == nil || c.RequestPolicy.ValidRange.Step == nil {
				continue
			}
			first := c.RequestPolicy.ValidRange.Min.DeepCopy()
			first.Add(*c.RequestPolicy.ValidRange.Step)
			if first.Cmp(c.Value) > 0 {
				t.Errorf("%s, %s: one step leads to %s, and there are %s", d.Name(), name, first.String(), c.Value.String())
			}
		}
	}
}

func repeat(a ask, n int) []ask {
	out := make([]ask, n)
	for i := range out {
		out[i] = a
	}
	return out
}

func TestAllocationKeepsTwoSharesOfOneClaimApart(t *testing.T) {
	s := newScheduler(t, devices.NewPool(node(a100(0)), devices.Options{Forms: flexible}))
	results, ok := s.allocate(ask{form: "shared", memory: "10Gi", cores: "30"}, ask{form: "shared", memory: "20Gi", cores: "50"})
	if !ok {
		t.Fatal("refused")
	}
	if len(results) != 2 || results[0].ShareID == nil || results[1].ShareID == nil || *results[0].ShareID == *results[1].ShareID {
		t.Fatalf("want two shares with identities of their own, got %+v", results)
	}
	for i, want := range []string{"10Gi", "20Gi"} {
		memory := results[i].ConsumedCapacity["memory"]
		if memory.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("share %d consumed %s, want %s", i, memory.String(), want)
		}
	}
}

// TestAllocationFitsProfilesAsTheHardwareDoes checks that the counters allow everything that the hardware allows.
func TestAllocationFitsProfilesAsTheHardwareDoes(t *testing.T) {
	gpu := a100(0)
	pool := devices.NewPool(node(gpu), devices.Options{Forms: flexible})
	for _, p := range gpu.MIG.Profiles {
		t.Run(p.Name, func(t *testing.T) {
			s := newScheduler(t, pool)
			got := 0
			for _, at := range p.Placements {
				if _, ok := s.allocate(ask{device: devices.MIGName(gpu, p, at.Start)}); ok {
					got++
				}
			}
			if got != p.MaxInstances {
				t.Errorf("%d fit, want %d", got, p.MaxInstances)
			}
		})
	}
}
