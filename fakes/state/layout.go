// Package state is the flat file DIR/state/node, in which a fake node keeps everything that changes while it runs.
//
// The file has a Header, a ring of events, and two copies of the Body. Header.Sequence counts committed updates; the copy with the
// number Sequence%2 is the current one. A writer holds a file lock, copies the current Body to the other place, changes it there, and
// then raises Sequence: a reader never waits, a writer killed half way leaves the current copy whole, and no reader sees a mixture
// (it reads Sequence again afterwards and starts over if it moved).
//
// The types below are the only definition of the layout: the C header that libnvidia-ml.so.1 and libcuda.so.1 are compiled against is
// generated from them at build time (see CHeader). All numbers are in the byte order of the host.
package state

// Magic is the first eight bytes of the file.
const Magic = "FKFABRIC"

// Version is raised with every change of the layout; a reader refuses any other.
const Version = 4

// Sizes of the tables. They are part of the layout.
const (
	MaxGPUs             = 32
	MaxMIGProfiles      = 12
	MaxPlacements       = 8
	MaxCIProfiles       = 8
	MaxGPUInstances     = 8
	MaxComputeInstances = 8
	MaxLinks            = 18
	MaxProcesses        = 32
	MaxDelays           = 16
	EventRing           = 256
	CPUWords            = 16
	MemoryWords         = 4
	MaxMemoryLimits     = 32
	MaxCgroups          = 8
)

// None means "no instance" in GPUInstance and ComputeInstance of events and processes, as NVML has it.
const None = 0xffffffff

// Header is the start of the file.
type Header struct {
	Magic    [8]byte
	Version  uint32
	FileSize uint32
	// BodyOffset is where the first copy of the body starts; BodySize is the size of each, a multiple of 64.
	BodyOffset uint32
	BodySize   uint32
	GPUCount   uint32
	// Wake is the word waited on (futex); it changes with every event, and when the file is replaced.
	Wake uint32
	// Replaced is 1 once another file has replaced this one.
	Replaced uint32
	Reserved uint32
	// Sequence counts updates of the body, EventHead the events written so far.
	Sequence  uint64
	EventHead uint64
	Events    [EventRing]Event
}

// Event is one NVML event. Number is its place in the count of all events, from 1; zero while it is being written.
type Event struct {
	Number          uint64
	Type            uint64
	Data            uint64
	GPU             uint32
	GPUInstance     uint32
	ComputeInstance uint32
	Reserved        uint32
}

// Node is the part of the body that is not any GPU's.
type Node struct {
	DriverVersion [80]byte
	NVMLVersion   [80]byte
	// CUDAVersion is major*1000 + minor*10.
	CUDAVersion uint32
	DelayCount  uint32
	Delays      [MaxDelays]Delay
	Model       Model
}

// Delay makes one NVML function slow.
type Delay struct {
	// Function is the FNV-1a hash of the name (32 bits); 0 means every function.
	Function     uint32
	Microseconds uint32
}

// Model has the common data of the node's GPUs.
type Model struct {
	Name            [96]byte
	BoardPart       [32]byte
	VBIOS           [32]byte
	InfoROM         [32]byte
	GPUPart         [32]byte
	InfoROMOEM      [16]byte
	InfoROMECC      [16]byte
	Architecture    uint32
	Brand           uint32
	ComputeMajor    uint32
	ComputeMinor    uint32
	PCIDevice       uint32
	PCISubsystem    uint32
	MemoryTotal     uint64
	MemoryReserved  uint64
	BAR1Total       uint64
	MemoryBusBits   uint32
	Multiprocessors uint32
	Cores           uint32
	ECC             uint32
	AddressingMode  uint32
	PCIeGeneration  uint32
	PCIeWidth       uint32
	PCIeLink        uint32 // the highest generation of GPU and slot together
	PCIeHost        uint32 // the slot's generation, 0: not reported
	PCIeAtomics     uint32 // bits: 1 inbound, 2 outbound
	PowerDefault    uint32 // mW, like all power below
	PowerMin        uint32
	PowerMax        uint32
	ClockGraphics   uint32 // MHz, like all clocks below
	ClockSM         uint32
	ClockMemory     uint32
	ClockVideo      uint32
	ClockIdle       uint32
	ClockApp        uint32 // the default application clock
	ModuleDefault   uint32 // mW, of the module's power; 0: not reported
	ModuleMin       uint32
	ModuleMax       uint32
	TempMemory      uint32 // the memory's highest temperature, 0: it has no sensor
	RemapperBanks   uint32 // banks with rows to spare, 0: rows are not remapped
	PlatformKnown   uint32 // 1: NVML reports the place in a chassis
	PlatformChassis uint32 // 1: in a rack with a serial number, slots and trays
	PlatformHost    uint32
	PlatformPeer    uint32 // 0 direct, 1 by switches
	TempShutdown    uint32 // degrees Celsius, like all temperatures below
	TempSlowdown    uint32
	TempMax         uint32
	LinkCount       uint32
	LinkVersion     uint32
	LinkSpeed       uint32 // MB/s, one direction
	LinkSwitched    uint32
	Coherent        uint32
	MIGMaxInstances uint32
	MIGSlices       uint32
	MIGMemorySlices uint32
	MIGProfileCount uint32
	Integrated      uint32 // 1: a part of a system on a chip, with the machine's memory; NVML does not report its memory
	Virtualization  uint32 // NVML_GPU_VIRTUALIZATION_MODE_*
	MIGProfiles     [MaxMIGProfiles]MIGProfile
}

// MIGProfile is one GPU instance profile with the compute instance profiles inside it.
type MIGProfile struct {
	Name            [32]byte
	Kind            uint32 // NVML_GPU_INSTANCE_PROFILE_*
	ID              uint32
	Slices          uint32
	Max             uint32
	Multiprocessors uint32
	CopyEngines     uint32
	Decoders        uint32
	Encoders        uint32
	JPEG            uint32
	OFA             uint32
	Size            uint32
	PlacementCount  uint32
	Starts          [MaxPlacements]uint32
	MemoryMiB       uint64
	CICount         uint32
	Reserved        uint32
	CIProfiles      [MaxCIProfiles]CIProfile
}

// CIProfile is one compute instance profile inside a GPU instance profile.
type CIProfile struct {
	Kind            uint32 // NVML_COMPUTE_INSTANCE_PROFILE_*
	ID              uint32
	Slices          uint32
	Max             uint32
	Multiprocessors uint32
	Reserved        uint32
}

// GPU is one GPU: its data in NVML, and its activity.
type GPU struct {
	Core      Core
	Links     [MaxLinks]Link
	Processes [MaxProcesses]Process
	Instances [MaxGPUInstances]GPUInstance
	Limits    [MaxMemoryLimits]MemoryLimit
}

// Core is the part of a GPU that most getters need.
type Core struct {
	UUID             [16]byte
	Serial           [32]byte
	PDI              uint64
	Domain           uint32
	Bus              uint32
	Device           uint32
	Function         uint32
	Minor            uint32
	Module           uint32
	NUMANode         int32
	MemoryNUMANode   int32 // the NUMA node that the GPU's own memory is, or -1
	CPUs             [CPUWords]uint64
	MemoryNodes      [MemoryWords]uint64
	Lost             uint32
	Persistence      uint32
	ComputeMode      uint32
	MIGCurrent       uint32
	MIGPending       uint32
	MIGBusy          uint32 // 1: changes of the MIG layout are refused as in use
	ProcessCount     uint32
	ECCPending       uint32
	MemoryUsed       uint64 // bytes that belong to no process in the table
	UtilizationGPU   uint32 // percent
	UtilizationMem   uint32
	Temperature      uint32
	TemperatureMem   uint32
	Power            uint32 // mW
	PowerLimit       uint32
	ClockGraphics    uint32
	ClockSM          uint32
	ClockMemory      uint32
	ClockVideo       uint32
	ClockReasons     uint64
	PerformanceState uint32
	PCIeReplays      uint32
	Energy           uint64 // mJ
	ECC              ECC
	FabricState      uint32
	FabricStatus     uint32
	FabricClique     uint32
	FabricHealth     uint32
	FabricSummary    uint32
	TimeSlice        uint32 // the compute policy: 0 default, 1 short, 2 medium, 3 long
	MemoryLimits     uint32 // how many places of GPU.Limits are taken
	FabricCluster    [16]byte
	Chassis          [16]byte // the serial number of the rack
	FabricGUID       uint64
	Slot             uint32
	Tray             uint32
	ModulePower      uint32 // mW, like MemoryPower
	MemoryPower      uint32
	// Topology is NVML's nvmlGpuTopologyLevel_t to each GPU; P2P is 1 where peers reach each other over NVLink.
	Topology [MaxGPUs]uint8
	P2P      [MaxGPUs]uint8
}

// ECC counts memory errors and their repairs.
type ECC struct {
	VolatileCorrected     uint64
	VolatileUncorrected   uint64
	AggregateCorrected    uint64
	AggregateUncorrected  uint64
	RemappedCorrectable   uint32
	RemappedUncorrectable uint32
	RemapPending          uint32
	RemapFailed           uint32
	RetiredSingleBit      uint32
	RetiredDoubleBit      uint32
	VolatileSRAM          SRAM
	AggregateSRAM         SRAM
}

// SRAM counts errors of a GPU's caches and registers; those of its memory are in ECC.
type SRAM struct {
	Corrected uint64
	// Parity and SECDED are uncorrectable, found by parity, and by a code that corrects one bit and detects two.
	Parity uint64
	SECDED uint64
}

// Link is one NVLink of a GPU.
type Link struct {
	Active     uint32
	RemoteType uint32 // nvmlIntNvLinkDeviceType_t: 0 GPU, 2 switch
	Domain     uint32
	Bus        uint32
	Device     uint32
	Function   uint32
	PCIDevice  uint32
	RemoteLink uint32
	Replays    uint64
	Recoveries uint64
	CRCErrors  uint64
}

// Process is one process on a GPU; PID 0 is a free place.
type Process struct {
	PID             uint32
	Type            uint32 // 0 compute, 1 graphics, 2 MPS
	GPUInstance     uint32
	ComputeInstance uint32
	Memory          uint64
	SM              uint32 // percent
	Namespace       uint32 // of the PID: the low bits of its inode, 0 when unknown
	StartTime       uint64 // of the process, in clock ticks after boot, to detect a reused PID
	BusyUntil       uint64 // microseconds since the epoch: the end of the last kernel
	Name            [64]byte
	// Cgroups are the process's cgroup and those above it, as far as it sees them (see Cgroups).
	Cgroups [MaxCgroups]uint64
}

// MemoryLimit bounds the memory of one GPU that the processes of a cgroup, and of those below it, may use together. Cgroup 0 is a
// free place.
type MemoryLimit struct {
	Cgroup uint64 // the inode of its directory, which the kernel gives no other cgroup
	Soft   uint64 // bytes that are reserved for it; only reported
	Hard   uint64 // bytes, NoMemoryLimit for none
}

// NoMemoryLimit is NVML's NVML_DEVICE_MEMORY_LIMIT_MAX.
const NoMemoryLimit = 1<<64 - 1

// GPUInstance is a MIG GPU instance; Used 0 is a free place.
type GPUInstance struct {
	Used     uint32
	ID       uint32
	Profile  uint32 // index in Model.MIGProfiles
	Start    uint32
	Computes [MaxComputeInstances]ComputeInstance
}

// ComputeInstance is a compute instance; Used 0 is a free place.
type ComputeInstance struct {
	Used    uint32
	ID      uint32
	Profile uint32 // index in the GPU instance profile's CIProfiles
	Start   uint32 // first slice inside the GPU instance
	UUID    [16]byte
}
