package passthrough

import (
	"fmt"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/gpu/devices"
)

// Attributes of a GPU that is passed through, under the names of NVIDIA's DRA driver.
const (
	AttrDeviceID       resourceapi.QualifiedName = "deviceID"
	AttrVendorID       resourceapi.QualifiedName = "vendorID"
	AttrIOMMUFDEnabled resourceapi.QualifiedName = "iommuFDEnabled"
	// AttrModule is a GPU's module ID. AttrPartition, with a number of GPUs behind it, is the ID of the partition of Fabric Manager of so
	// many GPUs that it is in.
	AttrModule    resourceapi.QualifiedName = "gpuModuleID"
	AttrPartition                           = "partition"
)

// Device is a card as it is published. taints are added to it.
func (k *Kind) Device(c *Card, taints ...resourceapi.DeviceTaint) resourceapi.Device {
	a := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		AttrIOMMUFDEnabled: {BoolValue: ptr.To(k.exists("iommu"))},
	}
	for name, text := range map[resourceapi.QualifiedName]string{
		devices.AttrType: string(devices.VFIO), devices.AttrUUID: c.UUID, devices.AttrProductName: c.Product,
		AttrVendorID: fmt.Sprintf("0x%04x", c.GPU.Vendor), AttrDeviceID: fmt.Sprintf("0x%04x", c.GPU.Device),
		deviceattribute.StandardDeviceAttributePCIBusID: c.Place.BusID, deviceattribute.StandardDeviceAttributePCIeRoot: c.Place.Root,
		devices.AttrPCIeSwitch: c.Place.Switch,
	} {
		if text != "" {
			a[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(text[:min(len(text), resourceapi.DeviceAttributeMaxValueLength)])}
		}
	}
	if c.Place.NUMANode >= 0 {
		a[devices.AttrNUMANode] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(c.Place.NUMANode))}
	}
	if place, found := k.place(c); found {
		a[AttrModule] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(place.Module))}
		for size, id := range place.Partitions {
			name := resourceapi.QualifiedName(AttrPartition + strconv.Itoa(size))
			a[name] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(id))}
		}
	}
	return resourceapi.Device{Name: c.Name(), Attributes: a, Taints: taints}
}

// Slices are the ResourceSlices of devices.
func Slices(all []resourceapi.Device) []resourceslice.Slice {
	var out []resourceslice.Slice
	for chunk := range slices.Chunk(all, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		out = append(out, resourceslice.Slice{Devices: chunk})
	}
	if out == nil {
		out = []resourceslice.Slice{{}} // a pool without devices, so that old ones go
	}
	return out
}
