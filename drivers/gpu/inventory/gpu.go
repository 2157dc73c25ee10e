// Package inventory reads which GPUs a node has: identity, place on the PCI bus and in the NVLink fabric, and the MIG geometry that
// NVML itself reports. It reads once and keeps the NVML handles: a handle lookup costs seconds on a large node.
package inventory

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Node is everything the GPU driver knows of its node's hardware at one moment.
type Node struct {
	// DriverVersion is the kernel driver's, as NVML writes it ("570.158.01").
	DriverVersion string
	// CUDAVersion is the newest CUDA the driver serves, major times 1000 plus minor times 10 (13000 is 13.0).
	CUDAVersion int
	// GPUs are ordered by minor number.
	GPUs []*GPU
	// Missing are NVML's indices of the GPUs that could not be read at all.
	Missing []int
	// Problems says which GPUs or attributes could not be read, and why; the others are served.
	Problems []error
}

// GPU is one physical GPU.
type GPU struct {
	// Handle stays valid as long as NVML is initialised; it is safe for concurrent use.
	Handle nvml.Device
	// Index is NVML's, Minor is the N of /dev/nvidiaN; they differ where a GPU is hidden.
	Index, Minor int
	// UUID is "GPU-" and a UUID.
	UUID string
	// ProductName, Brand and Architecture are NVML's words ("NVIDIA H100 80GB HBM3", "Nvidia", "Hopper").
	ProductName, Brand, Architecture string
	// ComputeCapability is major and minor, such as 9 and 0.
	ComputeCapability [2]int
	// AddressingMode is HMM, ATS or None, empty where the driver does not say.
	AddressingMode string
	// PCIDevice is the model as PCI knows it: the device ID in the upper half, the vendor's in the lower (0x20B010DE).
	PCIDevice uint32
	// Place is where the GPU sits on the PCI bus.
	Place Place
	// MemoryBytes is the frame buffer's total; 0 for a GPU that has none of its own (an integrated one).
	MemoryBytes uint64
	// Clique is ClusterUUID.CliqueID of the NVLink fabric, empty off a fabric (NVML fabric info).
	Clique string
	// NVLinkDomain names the GPUs reachable over NVLink: the ClusterUUID on a fabric, else the UUID of the first GPU of this node's
	// NVLink island; empty for a GPU without NVLink.
	NVLinkDomain string
	// MIG is nil where the GPU cannot be partitioned.
	MIG *MIG
}

// Place is a PCI device's place in the machine.
type Place struct {
	// BusID is dddd:bb:dd.f, lower case.
	BusID string
	// Root is the root complex ("pci0000:16"), empty where sysfs does not tell.
	Root string
	// Switch is the bus id of the upstream port of the PCIe switch that the GPU shares with other cards; without a switch that of its root
	// port or, directly on the root complex, its own. Empty only where sysfs does not tell.
	Switch string
	// NUMANode is -1 where the machine does not tell.
	NUMANode int
}

// MIG is what NVML says about partitioning a GPU.
type MIG struct {
	// Enabled is the current mode, Pending the mode after the next reset.
	Enabled, Pending bool
	// NeedsReset says that the mode changes by a reset of the GPU alone, as on Ampere; from Hopper on it changes at once (NVIDIA's MIG user
	// guide, Deployment Considerations).
	NeedsReset bool
	// Profiles are the GPU instance profiles with their placements, in the order of NVML's profile numbers.
	Profiles []Profile
	// MemorySlices is the number of memory slices that placements count in: 8 on an A100, 4 on an A30.
	MemorySlices int
}

// Profile is a kind of GPU instance.
type Profile struct {
	// Name is "1g.5gb", with "+me" and the like; sizes and names differ between drivers, so it is always made from NVML's figures.
	Name string
	// Number is the argument of GetGpuInstanceProfileInfo, ID the identity the driver gives it (19 for an A100's 1g.5gb).
	Number, ID int
	// MaxInstances is how many fit on an empty GPU.
	MaxInstances int
	// Slices is the number of compute slices.
	Slices int
	// MemoryBytes is one instance's memory.
	MemoryBytes uint64
	// What one instance has of each engine.
	Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
	// Placements are where NVML allows an instance to start.
	Placements []Placement
}

// Placement is a run of memory slices.
type Placement struct {
	Start, Size int
}

// CanBeWhole says whether the GPU can be handed out undivided: it is so now, or its MIG mode can be switched off when a claim needs it.
func (g *GPU) CanBeWhole() bool { return g.MIG == nil || !g.MIG.NeedsReset || !g.MIG.Enabled }

// CanBeCut says whether MIG instances can be made on the GPU: it is in MIG mode, or can be switched when a claim needs it.
func (g *GPU) CanBeCut() bool { return g.MIG != nil && (!g.MIG.NeedsReset || g.MIG.Enabled) }

// ModeIsPending says whether the next reset changes the GPU's MIG mode.
func (m *MIG) ModeIsPending() bool { return m.NeedsReset && m.Pending != m.Enabled }

// Profile finds a profile by the identity the driver gives it.
func (m *MIG) Profile(id int) (Profile, bool) {
	for _, p := range m.Profiles {
		if p.ID == id {
			return p, true
		}
	}
	return Profile{}, false
}

// ByUUID finds a GPU, nil where the node has none of that UUID.
func (n *Node) ByUUID(uuid string) *GPU {
	for _, g := range n.GPUs {
		if g.UUID == uuid {
			return g
		}
	}
	return nil
}
