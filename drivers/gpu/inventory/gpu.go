// Package inventory reads which GPUs a node has: identity, place on the PCI bus and in the NVLink fabric, and the MIG geometry that
// NVML reports. It keeps the NVML handles, since a handle lookup takes seconds on a large node.
package inventory

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Node is a node's hardware as the GPU driver saw it at one moment.
type Node struct {
	// DriverVersion is the kernel driver's version, as NVML writes it ("570.158.01").
	DriverVersion string
	// CUDAVersion is the newest CUDA that the driver supports, major times 1000 plus minor times 10 (13000 is 13.0).
	CUDAVersion int
	// GPUs are ordered by minor number.
	GPUs []*GPU
	// Missing are NVML's indices of the GPUs that could not be read at all.
	Missing []int
	// Problems list which GPUs or attributes could not be read, and why; the others are served.
	Problems []error
}

// GPU is one physical GPU.
type GPU struct {
	// Handle stays valid as long as NVML is initialised; it is safe for concurrent use.
	Handle nvml.Device
	// Index is NVML's index, Minor the N of /dev/nvidiaN; they differ where a GPU is hidden.
	Index, Minor int
	// UUID is "GPU-" and a UUID.
	UUID string
	// ProductName, Brand and Architecture are as NVML writes them ("NVIDIA H100 80GB HBM3", "Nvidia", "Hopper").
	ProductName, Brand, Architecture string
	// ComputeCapability is major and minor, such as 9 and 0.
	ComputeCapability [2]int
	// AddressingMode is HMM, ATS or None, empty if the driver does not report it.
	AddressingMode string
	// PCIDevice is the model's PCI ID: the device ID in the upper half, the vendor's in the lower (0x20B010DE).
	PCIDevice uint32
	// Place is where the GPU sits on the PCI bus.
	Place Place
	// MemoryBytes is the size of the frame buffer; 0 for a GPU without its own memory (an integrated one).
	MemoryBytes uint64
	// VGPU: the node is a virtual machine, and the GPU the part of one that its host gives it.
	VGPU bool
	// Clique is ClusterUUID.CliqueID of the NVLink fabric, empty off a fabric (NVML fabric info).
	Clique string
	// NVLinkDomain identifies the GPUs that are reachable over NVLink. It is the ClusterUUID on a fabric, else the UUID of the first
	// GPU of this node's NVLink island. It is empty for a GPU without NVLink.
	NVLinkDomain string
	// MIG is nil where the GPU does not support MIG.
	MIG *MIG
}

// Place is a PCI device's place in the machine.
type Place struct {
	// BusID is dddd:bb:dd.f, lower case.
	BusID string
	// Root is the root complex ("pci0000:16"), empty where sysfs does not show it.
	Root string
	// Switch is the bus ID of the upstream port of the PCIe switch that the GPU shares with other cards. Without a switch it is that
	// of its root port or, directly on the root complex, its own. It is empty only where sysfs does not show it.
	Switch string
	// NUMANode is -1 where the machine does not report it.
	NUMANode int
}

// MIG is a GPU's MIG support by NVML.
type MIG struct {
	// Enabled is the current mode, Pending the mode after the next reset.
	Enabled, Pending bool
	// NeedsReset means that only a reset of the GPU changes the mode, as on Ampere. From Hopper on it changes at once (NVIDIA's MIG
	// user guide, Deployment Considerations).
	NeedsReset bool
	// Profiles are the GPU instance profiles with their placements, in the order of NVML's profile numbers.
	Profiles []Profile
	// MemorySlices is the number of memory slices that placements count in: 8 on an A100, 4 on an A30.
	MemorySlices int
}

// Profile is a kind of GPU instance.
type Profile struct {
	// Name is "1g.5gb", possibly with a suffix such as "+me". Sizes and names differ between drivers, so it is always made from NVML's
	// figures.
	Name string
	// Number is the argument of GetGpuInstanceProfileInfo. ID is the driver's ID for the profile (19 for an A100's 1g.5gb).
	Number, ID int
	// MaxInstances is how many fit on an empty GPU.
	MaxInstances int
	// Slices is the number of compute slices.
	Slices int
	// MemoryBytes is one instance's memory.
	MemoryBytes uint64
	// The engines of one instance.
	Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
	// Placements are where NVML allows an instance to start.
	Placements []Placement
}

// Placement is a run of memory slices.
type Placement struct {
	Start, Size int
}

// CanBeWhole reports whether the GPU can be given out undivided: it is not in MIG mode, or a claim can switch the mode off.
func (g *GPU) CanBeWhole() bool { return g.MIG == nil || !g.MIG.NeedsReset || !g.MIG.Enabled }

// CanBeCut reports whether MIG instances can be made on the GPU: it is in MIG mode, or a claim can switch the mode on.
func (g *GPU) CanBeCut() bool { return g.MIG != nil && (!g.MIG.NeedsReset || g.MIG.Enabled) }

// ModeIsPending reports whether the next reset changes the GPU's MIG mode.
func (m *MIG) ModeIsPending() bool { return m.NeedsReset && m.Pending != m.Enabled }

// Profile finds a profile by the driver's ID.
func (m *MIG) Profile(id int) (Profile, bool) {
	for _, p := range m.Profiles {
		if p.ID == id {
			return p, true
		}
	}
	return Profile{}, false
}

// ByUUID finds a GPU, nil where the node has none with that UUID.
func (n *Node) ByUUID(uuid string) *GPU {
	for _, g := range n.GPUs {
		if g.UUID == uuid {
			return g
		}
	}
	return nil
}
