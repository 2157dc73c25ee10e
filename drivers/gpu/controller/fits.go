package controller

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
)

// text is a device's string attribute, empty where it has none.
func text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	if a, ok := d.Attributes[name]; ok && a.StringValue != nil {
		return *a.StringValue
	}
	return ""
}

// serves reports whether a device belongs to a profile, as the class's selector decides.
func serves(p *v1alpha1.VGPUProfile, d resourceapi.Device) bool {
	form := devices.Form(text(d, devices.AttrType))
	switch p.Spec.Mode {
	case v1alpha1.VGPUSoftware:
		return form == devices.Shared && text(d, devices.AttrVGPUProfile) == p.Name
	case v1alpha1.VGPUMIG:
		if form != devices.MIG {
			return false
		}
	default:
		if form != devices.Whole {
			return false
		}
	}
	memory, cores := d.Capacity[devices.CapMemory], d.Capacity[devices.CapCores]
	if p.Spec.Memory != nil && memory.Value.Cmp(*p.Spec.Memory) < 0 {
		return false
	}
	if p.Spec.Cores > 0 && cores.Value.Value() < int64(p.Spec.Cores) {
		return false
	}
	return len(p.Spec.ProductNames) == 0 || slices.Contains(p.Spec.ProductNames, text(d, devices.AttrProductName))
}

// gpu identifies the GPU of a device.
func gpu(d resourceapi.Device) string { return devices.GPUOf(d.Name) }

func gpusOf(all []resourceapi.Device) int32 {
	seen := map[string]bool{}
	for _, d := range all {
		seen[gpu(d)] = true
	}
	return int32(len(seen)) //nolint:gosec // a node's GPUs
}

// fits counts the slices that devices provide while their GPUs are empty: the shares of a shareable form, one for a whole GPU, and
// as many MIG placements as fit side by side.
func fits(all []resourceapi.Device) int32 {
	var total int64
	taken := map[string]map[string]bool{} // memory slices used by MIG placements, by GPU
	for _, d := range all {
		switch devices.Form(text(d, devices.AttrType)) {
		case devices.Shared:
			total += shares(d, nil)
		case devices.Whole:
			total++
		default:
			// Devices are published smallest profile first, and a profile's placements by their start.
			set := gpu(d)
			if taken[set] == nil {
				taken[set] = map[string]bool{}
			}
			if place(d, taken[set]) {
				total++
			}
		}
	}
	return int32(total) //nolint:gosec // at most a few hundred a node
}

// shares is how often a shareable form's defaults fit into its remaining capacities.
func shares(d resourceapi.Device, consumed capacities) int64 {
	least := int64(-1)
	for name, c := range d.Capacity {
		if c.RequestPolicy == nil || c.RequestPolicy.Default == nil || c.RequestPolicy.Default.Sign() <= 0 {
			continue
		}
		used := consumed[name]
		if n := (c.Value.Value() - used.Value()) / c.RequestPolicy.Default.Value(); least < 0 || n < least {
			least = n
		}
	}
	return max(least, 0)
}

// place takes a placement's memory slices, or returns false where one is already taken.
func place(d resourceapi.Device, taken map[string]bool) bool {
	var mine []string
	for _, draw := range d.ConsumesCounters {
		for name := range draw.Counters {
			if !devices.IsMemorySlice(name) {
				continue
			}
			if taken[name] {
				return false
			}
			mine = append(mine, name)
		}
	}
	for _, name := range mine {
		taken[name] = true
	}
	return true
}
