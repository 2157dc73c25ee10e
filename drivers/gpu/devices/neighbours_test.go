package devices_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/gpu/devices"
)

// dcgmUUID is the UUID of the GPU to whose metrics dcgm-exporter adds the pods of a device; empty: to none. It is the mapping of
// dcgm-exporter 4.5.3-4.8.2 (internal/pkg/transformation/dra.go): uuid of a device of type gpu, parentUUID of one of type mig, whose own
// uuid is a label more.
func dcgmUUID(d resourceapi.Device) string {
	name := map[string]resourceapi.QualifiedName{"gpu": "uuid", "mig": "parentUUID"}[ptr.Deref(d.Attributes["type"].StringValue, "")]
	return ptr.Deref(d.Attributes[name].StringValue, "")
}

func TestDevicesMapToMetricsOfTheirGPUInDCGMExporter(t *testing.T) {
	gpu := a100(0)
	static := map[string][]devices.Instance{gpu.UUID: {{ProfileID: 14, Start: 0, UUID: "MIG-1"}}}
	ten := devices.Profile{Name: "ten", Share: devices.Share{Memory: 10 * gib, Cores: 25}}
	for _, c := range []struct {
		name    string
		options devices.Options
		unknown []string // shares by memory and cores beside other forms: of type gpu, a claim for a whole GPU would get one
		uuids   []string // of MIG devices
	}{
		{"whole", devices.Options{}, nil, nil},
		{"shareable", devices.Options{Forms: forms(t, "shareable")}, nil, nil},
		{"shares", devices.Options{Forms: forms(t, "shares_4")}, nil, nil},
		{"MIG on demand", devices.Options{Forms: forms(t, "mig_1g.5gb_3g.20gb")}, nil, nil},
		{"MIG by a MIGLayout", devices.Options{Static: static}, nil, []string{"MIG-1"}},
		{"MIG by demand", devices.Options{Static: static, ByDemand: map[string]devices.Layout{gpu.UUID: {Instances: []devices.Placed{
			{Profile: "2g.10gb", Start: 0}}}}}, nil, []string{"MIG-1"}},
		{"a VGPUProfile", devices.Options{Forms: forms(t, "profiles"), Profiles: []devices.Profile{ten}}, []string{"gpu-0-shared-ten"}, nil},
		{"flexible", devices.Options{Forms: flexible}, []string{"gpu-0-shared"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var unknown, uuids []string
			all := devices.NewPool(node(gpu), c.options).Devices()
			for _, d := range all {
				if uuid := dcgmUUID(d.API); uuid == "" {
					unknown = append(unknown, d.Name())
				} else if uuid != gpu.UUID {
					t.Errorf("%s maps to %s", d.Name(), uuid)
				}
				if uuid := d.API.Attributes[devices.AttrUUID].StringValue; uuid != nil && d.Form == devices.MIG {
					uuids = append(uuids, *uuid)
				}
			}
			if len(all) == 0 || !slices.Equal(unknown, c.unknown) || !slices.Equal(uuids, c.uuids) {
				t.Errorf("of %d devices %v map to no GPU, want %v; MIG devices have UUIDs %v, want %v", len(all), unknown, c.unknown, uuids, c.uuids)
			}
		})
	}
}

// The standard attribute numaNode is a number, or with the gate DRAListTypeAttributes a list (deviceattribute of Kubernetes 1.37). The
// number works without the gate, and beside a driver that publishes lists.
func TestNUMANodeMatchesListOfAnotherDriver(t *testing.T) {
	near, far := a100(0), a100(1)
	near.Place.NUMANode, far.Place.NUMANode = 1, 0
	s := newScheduler(t, devices.NewPool(node(near, far), devices.Options{}))
	nic := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "nic.example.com", NodeName: ptr.To("n1"), Pool: resourceapi.ResourcePool{Name: "n1", ResourceSliceCount: 1, Generation: 1},
		Devices: []resourceapi.Device{{Name: "nic", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			devices.AttrNUMANode: {IntValues: []int64{1, 2}}}}}}}
	request := func(name, driver string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "any",
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Selectors: []resourceapi.DeviceSelector{{
				CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + driver + "'"}}}}}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n", UID: "u"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests:    []resourceapi.DeviceRequest{request("nic", "nic.example.com"), request("gpu", devices.Driver)},
			Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(devices.AttrNUMANode))}}}}}
	allocator, err := structured.NewAllocator(t.Context(), structured.Features{ListTypeAttributes: true}, structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection()}, classes{}, append(s.slices, nic),
		cel.NewCache(10, cel.Features{EnableListTypeAttributes: true}))
	if err != nil {
		t.Fatal(err)
	}
	results, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		[]*resourceapi.ResourceClaim{claim})
	if err != nil || len(results) != 1 || len(results[0].Devices.Results) != 2 || results[0].Devices.Results[1].Device != "gpu-0" {
		t.Errorf("%v, %+v; want gpu-0 beside the NIC", err, results)
	}
}
