package dra

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/health"
)

// scheduler is the scheduler's own allocator for a node's devices, with its allocations.
type scheduler struct {
	t         *testing.T
	slices    []*resourceapi.ResourceSlice
	allocated structured.AllocatedState
	claims    int
}

func newScheduler(t *testing.T, published [][]resourceapi.Device) *scheduler {
	s := &scheduler{t: t, allocated: structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}}
	node := "n1"
	for i, devices := range published {
		s.slices = append(s.slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n1-%d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: Driver, NodeName: &node, Devices: devices,
				Pool: resourceapi.ResourcePool{Name: "n1-rdma", Generation: 1, ResourceSliceCount: int64(len(published))},
			},
		})
	}
	return s
}

// classes is the chart's DeviceClass.
type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + Driver + "'"}}},
	}}, nil
}

// ask is one claim's request for a device.
type ask struct {
	capacity    map[resourceapi.QualifiedName]string
	tolerations []resourceapi.DeviceToleration
}

// give allocates one claim and returns its device's name; empty: none fits.
func (s *scheduler) give(a ask) string {
	s.t.Helper()
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Tolerations: a.tolerations,
	}
	for name, amount := range a.capacity {
		if exactly.Capacity == nil {
			exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		exactly.Capacity.Requests[name] = resource.MustParse(amount)
	}
	s.claims++
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", s.claims), Namespace: "default", UID: types.UID(fmt.Sprint(s.claims))},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "nic",
			Exactly: exactly}}}},
	}
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true}
	allocator, err := structured.NewAllocator(s.t.Context(), features, s.allocated, classes{}, s.slices,
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		s.t.Fatal(err)
	}
	results, err := allocator.Allocate(s.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		[]*resourceapi.ResourceClaim{claim})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(results) != 1 {
		return ""
	}
	d := results[0].Devices.Results[0]
	id := structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
	if d.ShareID == nil {
		s.allocated.AllocatedDevices.Insert(id)
		return d.Device
	}
	s.allocated.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, d.ShareID))
	s.allocated.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, d.ConsumedCapacity))
	return d.Device
}

func capacity(slots, bandwidth string) ask {
	a := ask{capacity: map[resourceapi.QualifiedName]string{}}
	if slots != "" {
		a.capacity[CapSlots] = slots
	}
	if bandwidth != "" {
		a.capacity[CapBandwidth] = bandwidth
	}
	return a
}

// TestAllocationConsumesSlotsAndBandwidth allocates claims of one kind until one does not fit.
func TestAllocationConsumesSlotsAndBandwidth(t *testing.T) {
	all := &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}}
	tolerant := capacity("", "")
	tolerant.tolerations = []resourceapi.DeviceToleration{{Key: TaintPortDown, Operator: resourceapi.DeviceTolerationOpExists}}
	everyTaint := capacity("", "")
	everyTaint.tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	const first, second = "pci-0000-11-00-0-1", "pci-0000-21-00-0-1"
	for _, test := range []struct {
		name    string
		asks    []ask // by turns
		options Options
		pools   []v1alpha1.RDMAPoolConfig
		down    []string              // RDMA devices
		change  func(*sysfstest.Tree) // of mlx5_0, then mlx5_1, which are Ethernet ports of 400 Gb/s
		want    map[string]int        // claims by device
	}{
		{name: "without amounts a claim takes a slot and no bandwidth", asks: []ask{{}}, options: Options{Slots: 3},
			want: map[string]int{first: 3, second: 3}},
		{name: "one slot is one claim", asks: []ask{{}}, options: Options{Slots: 1}, want: map[string]int{first: 1, second: 1}},
		{name: "a claim of two slots takes two", asks: []ask{capacity("2", "")}, options: Options{Slots: 5},
			want: map[string]int{first: 2, second: 2}},
		{name: "more slots than a device has are nowhere", asks: []ask{capacity("4", "")}, options: Options{Slots: 3}, want: map[string]int{}},
		{name: "more than the one slot is nowhere", asks: []ask{capacity("2", "")}, options: Options{Slots: 1}, want: map[string]int{}},
		{name: "bandwidth is used up before slots are", asks: []ask{capacity("", "150")}, options: Options{Slots: 64},
			want: map[string]int{first: 2, second: 2}},
		{name: "who asks for none has room beside", asks: []ask{capacity("", "400"), {}}, options: Options{Slots: 3},
			want: map[string]int{first: 3, second: 3}},
		{name: "more bandwidth than a port has is nowhere", asks: []ask{capacity("", "401")}, options: Options{Slots: 64},
			want: map[string]int{}},
		{
			name: "a port without a rate has slots, and no bandwidth to promise", asks: []ask{{}, capacity("", "1")}, options: Options{Slots: 2},
			change: func(tree *sysfstest.Tree) { tree.Remove("class/infiniband/mlx5_1/ports/1/rate") }, want: map[string]int{first: 2, second: 2},
		},
		{
			name: "a pool's units are its devices' slots", asks: []ask{{}}, options: Options{Slots: 64},
			pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", RDMAHCAMax: 5, Selectors: all}}, want: map[string]int{first: 3, second: 2},
		},
		{
			name: "each device of a pool whose units are the whole pool has all units as slots", asks: []ask{{}}, options: Options{Slots: 64},
			pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", RDMAHCAMax: 3, Selectors: all, DeviceNodes: v1alpha1.RDMANodesAll}},
			want:  map[string]int{first: 3, second: 3},
		},
		{
			name: "an exclusive pool's devices are given whole", asks: []ask{{}}, options: Options{Slots: 64},
			pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", Mode: v1alpha1.RDMAExclusive, Selectors: all}},
			want:  map[string]int{first: 1, second: 1},
		},
		{name: "a port that is down is given to nobody", asks: []ask{{}}, options: Options{Slots: 2}, down: []string{"mlx5_0"},
			want: map[string]int{second: 2}},
		{name: "but to who tolerates that", asks: []ask{tolerant}, options: Options{Slots: 2}, down: []string{"mlx5_0", "mlx5_1"},
			want: map[string]int{first: 2, second: 2}},
		{
			name: "a pool that the device plugin serves is given to nobody here", asks: []ask{{}, tolerant},
			options: Options{Slots: 2, DevicePlugin: true},
			pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", RDMAHCAMax: 4,
				Selectors: &v1alpha1.RDMASelectors{PCIAddresses: []string{"0000:11:00.0"}}}}, want: map[string]int{second: 2},
		},
		{
			name: "but to who tolerates everything", asks: []ask{everyTaint}, options: Options{Slots: 2, DevicePlugin: true},
			down:  []string{"mlx5_0"},
			pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", RDMAHCAMax: 4, Selectors: all}}, want: map[string]int{first: 2, second: 2},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			tree.AddHCA(sysfstest.HCA{Function: at(0x10), Ethernet: true})
			tree.AddHCA(sysfstest.HCA{Function: at(0x20), Ethernet: true})
			if test.change != nil {
				test.change(tree)
			}
			state := func(key health.Key) health.State {
				for _, device := range test.down {
					if device == key.Device {
						return health.State{Phase: health.Down}
					}
				}
				return health.State{Phase: health.Up}
			}
			found, pools := discovered(t, tree, test.pools...)
			s := newScheduler(t, Slices(Ports(found, pools, test.options), found, state, test.options))
			got := map[string]int{}
			refused := 0
			for turn := 0; refused < len(test.asks); turn++ {
				device := s.give(test.asks[turn%len(test.asks)])
				if device == "" {
					refused++
					continue
				}
				refused = 0
				if got[device]++; got[device] > 10 {
					t.Fatalf("%s has room for ever", device)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("claims by device: %v, want %v", got, test.want)
			}
		})
	}
}
