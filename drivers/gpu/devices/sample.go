package devices

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/inventory"
)

// Multiprocessors is the number of multiprocessors that the MIG instances of a GPU can have together; 0 without MIG.
func Multiprocessors(g *inventory.GPU) int {
	if g.MIG == nil {
		return 0
	}
	return multiprocessors(g)
}

// SampleMIG is the device that a node publishes for an instance of a profile, made from any published device of a GPU of the same kind.
// total is the number of multiprocessors of the GPU. It lacks the attributes that differ between two such instances, except the GPU's.
func SampleMIG(like resourceapi.Device, p inventory.Profile, total int) resourceapi.Device {
	a := sampled(like, MIG)
	a.text(AttrProfile, p.Name)
	for _, name := range []resourceapi.QualifiedName{AttrUUID, AttrParentUUID} { // an instance's own UUID is unknown in advance
		if gpu := like.Attributes[name]; gpu.StringValue != nil {
			a.text(AttrParentUUID, *gpu.StringValue)
		}
	}
	return resourceapi.Device{Attributes: a, Capacity: partCapacity(p, total)}
}

// SampleWhole is the device that a node publishes for a whole GPU with a size of memory in bytes, made from any published device of a
// GPU of the same kind.
func SampleWhole(like resourceapi.Device, memory uint64) resourceapi.Device {
	return resourceapi.Device{Attributes: sampled(like, Whole), Capacity: ownMemory(&inventory.GPU{MemoryBytes: memory})}
}

// sampled are the attributes that all forms of a GPU have in common.
func sampled(like resourceapi.Device, form Form) attributes {
	a := attributes(maps.Clone(like.Attributes))
	if a == nil {
		a = attributes{}
	}
	for _, own := range []resourceapi.QualifiedName{AttrUUID, AttrParentUUID, AttrIndex, AttrProfile, AttrShareable, AttrLimits,
		AttrVGPUProfile} {
		delete(a, own)
	}
	a.text(AttrType, string(form))
	return a
}
