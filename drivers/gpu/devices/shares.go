package devices

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/gpu/inventory"
)

// counted is the GPU in ModeShares, under the name and with the type of a whole GPU. The capacities have the names, defaults and
// ranges of the NVIDIA driver (sigs.k8s.io/dra-driver-nvidia-gpu v0.5.0, consumableShares with a number). A claim without requests takes
// one share and no memory, so claims divide the GPU's time and trust each other with its memory.
func counted(n *inventory.Node, g *inventory.GPU, shares int) *Device {
	d := whole(n, g)
	d.API.AllowMultipleAllocations = ptr.To(true)
	if d.API.Capacity == nil {
		d.API.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	}
	if total := g.MemoryBytes &^ (shareStep - 1); total > shareStep {
		none, step, all := bytesOf(0), bytesOf(shareStep), bytesOf(total)
		d.API.Capacity[CapMemory] = resourceapi.DeviceCapacity{Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &none,
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(none.DeepCopy()), Max: ptr.To(all.DeepCopy()), Step: &step}}}
	}
	d.API.Capacity[CapShares] = numbered(int64(shares))
	return d
}

// numbered is a capacity of a number of units; a request without an amount takes one.
func numbered(n int64) resourceapi.DeviceCapacity {
	one, all := resource.NewQuantity(1, resource.DecimalSI), resource.NewQuantity(n, resource.DecimalSI)
	amounts := &resourceapi.CapacityRequestPolicyRange{Min: one, Max: all}
	if n > 1 {
		// If a step led beyond the capacity, the API server would refuse the slice, and the node's other GPUs with it.
		amounts.Step = one
	}
	return resourceapi.DeviceCapacity{Value: *all, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: one, ValidRange: amounts}}
}

// Counts reports whether a claim on a device consumes counted shares.
func Counts(consumed map[resourceapi.QualifiedName]resource.Quantity) bool {
	_, counts := consumed[CapShares]
	return counts
}

// CountedShares is how many shares a published GPU of ModeShares has, 0 for any other device.
func CountedShares(d resourceapi.Device) int64 {
	c, counts := d.Capacity[CapShares]
	if !counts {
		return 0
	}
	return c.Value.Value()
}

// DescribeWhole returns, in a word or two, how a published device of type gpu is offered.
func DescribeWhole(d resourceapi.Device) string {
	switch shares := CountedShares(d); {
	case shares > 0:
		return fmt.Sprintf("%s (%d)", ModeShares, shares)
	case ptr.Deref(d.AllowMultipleAllocations, false):
		return string(ModeShareable)
	}
	return string(ModeWhole)
}

// canBe reports whether a device is the one that a claim has, in the way in which the claim has it. A GPU of ModeShares and one of
// ModeShareable are not the same. The scheduler subtracts a claim's consumption only from capacities of the same names, so it would
// give a GPU whole to one claim while others share it by count.
func (d *Device) canBe(h HeldDevice) bool {
	return d.Name() == h.Device && (!h.Shared || d.multiple() && (CountedShares(d.API) > 0) == h.Counted)
}
