package devices

import (
	"fmt"
	"hash/fnv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/inventory"
)

// Driver is the DRA driver's name, as existing DeviceClasses select it.
const Driver = "gpu.nvidia.com"

// PoolName is the pool of a node. It differs from the other drivers' pools, because the allocator of Kubernetes 1.36 keys counters
// by the pool's name without the driver's.
func PoolName(node string) string { return node + "-gpu" }

// Form is a way to offer a GPU.
type Form string

const (
	// Whole is the GPU for one claim alone.
	Whole Form = "gpu"
	// MIG is a hardware partition at one placement.
	MIG Form = "mig"
	// Shared is the GPU divided by memory and cores for several claims.
	Shared Form = "shared"
	// VFIO is the GPU for one virtual machine, bound to vfio-pci. Package passthrough makes these devices.
	VFIO Form = "vfio"
)

// Names of attributes and capacities in the driver's own domain, as existing selectors use them.
const (
	AttrType              resourceapi.QualifiedName = "type"
	AttrUUID              resourceapi.QualifiedName = "uuid"
	AttrIndex             resourceapi.QualifiedName = "index"
	AttrParentUUID        resourceapi.QualifiedName = "parentUUID"
	AttrProfile           resourceapi.QualifiedName = "profile"
	AttrProductName       resourceapi.QualifiedName = "productName"
	AttrBrand             resourceapi.QualifiedName = "brand"
	AttrArchitecture      resourceapi.QualifiedName = "architecture"
	AttrComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	AttrDriverVersion     resourceapi.QualifiedName = "driverVersion"
	AttrCUDAVersion       resourceapi.QualifiedName = "cudaDriverVersion"
	AttrAddressingMode    resourceapi.QualifiedName = "addressingMode"
	AttrCliqueID          resourceapi.QualifiedName = "cliqueID"
	AttrNVLinkDomain      resourceapi.QualifiedName = "nvlinkDomain"
	// AttrShareable marks a device that several claims may have, where no VGPUProfile cuts it; its value is true.
	AttrShareable resourceapi.QualifiedName = "shareable"
	// AttrFirstOfGPU marks one device of each GPU that has no device of type gpu; its value is true. A claim that monitors selects by it one
	// device for each GPU in every form.
	AttrFirstOfGPU resourceapi.QualifiedName = "firstOfGPU"
	// AttrLimits is, of a device for several claims, the mechanism that limits a claim's containers: library, or none.
	AttrLimits resourceapi.QualifiedName = "limits"
	// AttrVGPUProfile is the VGPUProfile of a shareable form. A shareable form without a profile lacks it.
	AttrVGPUProfile resourceapi.QualifiedName = "vgpuProfile"

	// AttrPCIeSwitch is the bus ID of the PCIe switch above a device. The GPU and RDMA drivers both publish it.
	AttrPCIeSwitch resourceapi.QualifiedName = "gpufabric.io/pcieSwitch"
	// AttrNUMANode is a scalar, so that a claim's matchAttribute works across drivers.
	AttrNUMANode resourceapi.QualifiedName = "resource.kubernetes.io/numaNode"

	CapMemory          resourceapi.QualifiedName = "memory"
	CapCores           resourceapi.QualifiedName = "cores"
	CapShares          resourceapi.QualifiedName = "shares"
	CapSlots           resourceapi.QualifiedName = "slots"
	CapMultiprocessors resourceapi.QualifiedName = "multiprocessors"
	CapCopyEngines     resourceapi.QualifiedName = "copyEngines"
	CapDecoders        resourceapi.QualifiedName = "decoders"
	CapEncoders        resourceapi.QualifiedName = "encoders"
	CapJPEGEngines     resourceapi.QualifiedName = "jpegEngines"
	CapOFAEngines      resourceapi.QualifiedName = "ofaEngines"
)

// WholeName is the device name of a whole GPU.
func WholeName(g *inventory.GPU) string { return fmt.Sprintf("gpu-%d", g.Minor) }

// GPUOf is the common prefix of the names of one GPU's devices: gpu-<minor>.
func GPUOf(device string) string {
	minor, ok := strings.CutPrefix(device, "gpu-")
	if !ok {
		return device
	}
	minor, _, _ = strings.Cut(minor, "-")
	return "gpu-" + minor
}

// SharedName is the device name of a GPU's shareable form.
func SharedName(g *inventory.GPU) string { return fmt.Sprintf("gpu-%d-shared", g.Minor) }

// ProfileName is the device name of a GPU's shareable form for a VGPUProfile. A device name is a DNS label of at most 63
// characters. A VGPUProfile's name may be longer and have dots: its hash is used then.
func ProfileName(g *inventory.GPU, profile string) string {
	name := fmt.Sprintf("gpu-%d-shared-%s", g.Minor, profile)
	if len(name) <= 63 && !strings.Contains(profile, ".") {
		return name
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(profile))
	return fmt.Sprintf("gpu-%d-shared-x%016x", g.Minor, hash.Sum64())
}

// MIGName is the device name of a placement: gpu-<minor>-mig-<profile>-<profileID>-<start>. A device name is a DNS label, so the profile
// 1g.5gb+me is written 1g5gb-me.
func MIGName(g *inventory.GPU, p inventory.Profile, start int) string {
	profile := strings.NewReplacer(".", "", "+", "-", "_", "-").Replace(strings.ToLower(p.Name))
	return fmt.Sprintf("gpu-%d-mig-%s-%d-%d", g.Minor, profile, p.ID, start)
}
