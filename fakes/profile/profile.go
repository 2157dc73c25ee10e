// Package profile describes a machine model: its GPUs, NVLink, PCI, NICs and IMEX, as one YAML file.
//
// A Profile is the model; a Node is one machine of that model, with its own UUIDs, GUIDs, MACs and serials, which are the same each
// time they are derived. Everything else in this module is made from a Node, so that NVML, sysfs, procfs and IMEX cannot disagree.
package profile

// Profile is one machine model, as written in a profile file.
type Profile struct {
	// Name is the argument of `--profile`, e.g. gb200-nvl72.
	Name string `yaml:"name" required:"true" pattern:"^[a-z0-9][a-z0-9-]{0,62}$"`
	// Summary is one line for `fakefabric profiles`.
	Summary string `yaml:"summary" required:"true"`
	// Source is the origin of the values, in words.
	Source string `yaml:"source"`
	// Origin sorts the values of GPUs and their fabric by origin; see Profile.Origins.
	Origin Origin `yaml:"origin"`
	// PreRelease is true for a machine that is not sold yet, whose values may still change.
	PreRelease bool     `yaml:"preRelease"`
	Driver     Driver   `yaml:"driver"`
	Host       Host     `yaml:"host" required:"true"`
	Topology   Topology `yaml:"topology"`
	// GPUs is absent on a machine without GPUs.
	GPUs *GPUs `yaml:"gpus"`
	// Fabric is absent where GPUs do not register with an NVLink fabric.
	Fabric *Fabric `yaml:"fabric"`
	NICs   []NIC   `yaml:"nics"`
	// IMEX is absent where the machine has no IMEX channels.
	IMEX *IMEX `yaml:"imex"`
}

// Driver is the NVIDIA driver of the fake machine.
type Driver struct {
	// Version is the driver's, e.g. 580.95.05.
	Version string `yaml:"version" pattern:"^[0-9]{1,4}\\.[0-9]{1,4}(\\.[0-9]{1,4})?$"`
	// CUDA is the highest CUDA version the driver serves, e.g. "13.0".
	CUDA string `yaml:"cuda" pattern:"^[0-9]{1,3}\\.[0-9]{1,2}$"`
	// Majors are the character device majors in /proc/devices.
	Majors Majors `yaml:"majors"`
}

// Majors are character device majors; zero takes the default that is named beside each.
type Majors struct {
	NVIDIA       int `yaml:"nvidia" minimum:"0" maximum:"511"`       // 195
	UVM          int `yaml:"uvm" minimum:"0" maximum:"511"`          // 510
	Caps         int `yaml:"caps" minimum:"0" maximum:"511"`         // 235
	IMEXChannels int `yaml:"imexChannels" minimum:"0" maximum:"511"` // 501
	NVSwitch     int `yaml:"nvswitch" minimum:"0" maximum:"511"`     // 509
}

// Host is the machine around the GPUs.
type Host struct {
	// Architecture is Go's name of the CPU: amd64 or arm64.
	Architecture string `yaml:"architecture" required:"true" enum:"amd64,arm64"`
	// Hostname has the node's index in place of %d (or %02d).
	Hostname string `yaml:"hostname" pattern:"^[a-z0-9.-]{0,100}(%0?[0-9]?d)?[a-z0-9.-]{0,100}$"`
	// Vendor and Product are the firmware's (sys/class/dmi/id).
	Vendor  string `yaml:"vendor" pattern:"^[ -~]{0,95}$"`
	Product string `yaml:"product" pattern:"^[ -~]{0,95}$"`
	// NUMA lists the nodes that have CPUs or memory.
	NUMA []NUMANode `yaml:"numa" required:"true"`
}

// NUMANode is one NUMA node of the machine.
type NUMANode struct {
	Node int `yaml:"node" minimum:"0" maximum:"1023"`
	// CPUs is a list such as 0-71; empty for a node of memory only.
	CPUs string `yaml:"cpus"`
	// MemoryMiB is the size of its memory.
	MemoryMiB int64 `yaml:"memoryMiB" minimum:"0" maximum:"1073741824"`
	// Count is how many nodes in a row, from Node on, look like this one; zero means one.
	Count int `yaml:"count" minimum:"0" maximum:"64"`
}

// Nodes lists the machine's NUMA nodes one by one.
func (h Host) Nodes() []NUMANode {
	var all []NUMANode
	for _, n := range h.NUMA {
		for k := range max(n.Count, 1) {
			all = append(all, NUMANode{Node: n.Node + k, CPUs: n.CPUs, MemoryMiB: n.MemoryMiB})
		}
	}
	return all
}

// Topology is the distance of devices that share no PCI bridge.
type Topology struct {
	// AcrossHostBridges is the distance of two devices under different host bridges of one NUMA node: NODE (default) or SYS.
	AcrossHostBridges string `yaml:"acrossHostBridges" enum:"NODE,SYS"`
}

// GPUs are the GPUs of the machine, all of one model.
type GPUs struct {
	Model  GPUModel `yaml:"model" required:"true"`
	NVLink *NVLink  `yaml:"nvlink"`
	// Platform is absent where NVML does not report a place in a chassis.
	Platform *Platform `yaml:"platform"`
	Devices  []GPU     `yaml:"devices" required:"true"`
}

// GPUModel has NVML's data of every GPU of that model.
type GPUModel struct {
	// Name is the product name, e.g. NVIDIA GB200.
	Name         string `yaml:"name" required:"true" pattern:"^[ -~]{1,95}$"`
	Architecture string `yaml:"architecture" required:"true" enum:"turing,ampere,ada,hopper,blackwell,rubin"`
	Brand        string `yaml:"brand" enum:"nvidia,tesla,quadro,geforce"`
	// ComputeCapability is CUDA's, e.g. "10.0".
	ComputeCapability string `yaml:"computeCapability" required:"true" pattern:"^[0-9]{1,2}\\.[0-9]$"`
	// PCIID and SubsystemID are vendor:device in hex, e.g. 10de:2941.
	PCIID       string `yaml:"pciID" required:"true" pattern:"^[0-9a-f]{4}:[0-9a-f]{4}$"`
	SubsystemID string `yaml:"subsystemID" pattern:"^[0-9a-f]{4}:[0-9a-f]{4}$"`
	// MemoryMiB is the total that nvidia-smi prints.
	MemoryMiB int64 `yaml:"memoryMiB" required:"true" minimum:"1" maximum:"67108864"`
	// ReservedMiB is the part of the total that the driver keeps.
	ReservedMiB int64 `yaml:"reservedMiB" minimum:"0" maximum:"67108864"`
	// BAR1MiB is the size of the second PCI window.
	BAR1MiB         int64 `yaml:"bar1MiB" minimum:"0" maximum:"67108864"`
	MemoryBusBits   int   `yaml:"memoryBusBits" minimum:"0" maximum:"1048576"`
	Multiprocessors int   `yaml:"multiprocessors" minimum:"0" maximum:"1048576"`
	// Cores is the number of CUDA cores.
	Cores          int    `yaml:"cores" minimum:"0" maximum:"16777216"`
	ECC            bool   `yaml:"ecc"`
	AddressingMode string `yaml:"addressingMode" enum:"none,HMM,ATS"`
	BoardPart      string `yaml:"boardPart"`
	// GPUPart is the chip's part number, e.g. 2941-892-A1.
	GPUPart string `yaml:"gpuPart"`
	VBIOS   string `yaml:"vbios"`
	InfoROM string `yaml:"infoROM"`
	// InfoROMObjects are the versions of the parts of InfoROM.
	InfoROMObjects InfoROMObjects `yaml:"infoROMObjects"`
	// RowRemapperBanks is how many memory banks have rows to spare; zero where rows are not remapped (before Ampere).
	RowRemapperBanks int    `yaml:"rowRemapperBanks" minimum:"0" maximum:"1048576"`
	PCIe             PCIe   `yaml:"pcie"`
	Power            Power  `yaml:"power"`
	Clocks           Clocks `yaml:"clocks"`
	// ModulePower is of the module of GPUs and CPU (NVML's power scope MODULE); absent where NVML does not report it.
	ModulePower *Power `yaml:"modulePower"`
	// IdleCelsius is the temperature at rest; limits follow in Temperature.
	IdleCelsius int         `yaml:"idleCelsius" minimum:"0" maximum:"120"`
	Temperature Temperature `yaml:"temperature"`
	// Coherent is true where the GPU's memory is a NUMA node of the host's (NVLink C2C).
	Coherent bool `yaml:"coherent"`
	// Integrated is true for a GPU that is part of a system on a chip and has the machine's memory: NVML then reports that memory
	// information is not supported (NVIDIA's DGX Spark user guide, known issues: nvidia-smi shows "Memory-Usage: Not Supported" for the
	// integrated GPU).
	Integrated bool `yaml:"integrated"`
	// Virtualization is NVML's mode of a GPU in a virtual machine: passthrough, or vgpu for a part that the host gives it
	// (nvmlDeviceGetVirtualizationMode). It is empty on a machine's own GPU.
	Virtualization string `yaml:"virtualization" enum:"passthrough,vgpu"`
	// MIG is absent where the model cannot be partitioned.
	MIG *MIG `yaml:"mig"`
}

// InfoROMObjects are versions such as 7.16; an empty one is not reported.
type InfoROMObjects struct {
	OEM string `yaml:"oem"`
	ECC string `yaml:"ecc"`
}

// PCIe is the widest link the GPU has.
type PCIe struct {
	Generation int `yaml:"generation" minimum:"1" maximum:"7"`
	Width      int `yaml:"width" minimum:"1" maximum:"32"`
	// LinkGeneration is the highest of GPU and slot together; zero means Generation.
	LinkGeneration int `yaml:"linkGeneration" minimum:"0" maximum:"7"`
	// HostGeneration is the slot's, as nvidia-smi prints it; zero is not reported.
	HostGeneration int `yaml:"hostGeneration" minimum:"0" maximum:"7"`
	// Atomics are the directions in which NVML reports atomic operations.
	Atomics string `yaml:"atomics" enum:"none,inbound,both"`
}

// Link is LinkGeneration, or its replacement.
func (p PCIe) Link() int {
	if p.LinkGeneration > 0 {
		return p.LinkGeneration
	}
	return p.Generation
}

// Platform is where NVML finds the GPUs in a chassis (nvmlDeviceGetPlatformInfo).
type Platform struct {
	// Chassis is true where there is a rack with a serial number, trays and slots; they are derived from the node's index.
	Chassis bool `yaml:"chassis"`
	// FirstSlot is the slot of tray 0.
	FirstSlot int `yaml:"firstSlot" minimum:"0" maximum:"255"`
	// Host is the number of the host in its tray.
	Host int    `yaml:"host" minimum:"0" maximum:"255"`
	Peer string `yaml:"peer" required:"true" enum:"direct,switch"`
}

// Power is in watts.
type Power struct {
	IdleWatts    int `yaml:"idleWatts" minimum:"0" maximum:"1000000"`
	DefaultWatts int `yaml:"defaultWatts" minimum:"0" maximum:"1000000"`
	MinWatts     int `yaml:"minWatts" minimum:"0" maximum:"1000000"`
	MaxWatts     int `yaml:"maxWatts" minimum:"0" maximum:"1000000"`
	// MemoryIdleWatts is the memory's part at rest; zero is not reported.
	MemoryIdleWatts int `yaml:"memoryIdleWatts" minimum:"0" maximum:"1000000"`
}

// Clocks are the highest ones, in MHz.
type Clocks struct {
	GraphicsMHz int `yaml:"graphicsMHz" minimum:"0" maximum:"100000"`
	SMMHz       int `yaml:"smMHz" minimum:"0" maximum:"100000"`
	MemoryMHz   int `yaml:"memoryMHz" minimum:"0" maximum:"100000"`
	VideoMHz    int `yaml:"videoMHz" minimum:"0" maximum:"100000"`
	// IdleMHz is the graphics clock at rest.
	IdleMHz int `yaml:"idleMHz" minimum:"0" maximum:"100000"`
	// IdleVideoMHz and IdleMemoryMHz are the others; zero means IdleMHz, and MemoryMHz.
	IdleVideoMHz  int `yaml:"idleVideoMHz" minimum:"0" maximum:"100000"`
	IdleMemoryMHz int `yaml:"idleMemoryMHz" minimum:"0" maximum:"100000"`
	// ApplicationMHz is the default application clock; zero means GraphicsMHz.
	ApplicationMHz int `yaml:"applicationMHz" minimum:"0" maximum:"100000"`
}

// Temperature holds thresholds in degrees Celsius.
type Temperature struct {
	Shutdown int `yaml:"shutdown" minimum:"0" maximum:"1000"`
	Slowdown int `yaml:"slowdown" minimum:"0" maximum:"1000"`
	MaxGPU   int `yaml:"maxGPU" minimum:"0" maximum:"1000"`
	// MaxMemory is the memory's; zero where the memory has no sensor.
	MaxMemory int `yaml:"maxMemory" minimum:"0" maximum:"1000"`
}

// MIG is how the model can be partitioned.
type MIG struct {
	// MaxInstances is the most MIG devices one GPU can have.
	MaxInstances int `yaml:"maxInstances" required:"true" minimum:"1" maximum:"8"`
	// MemorySlices is the length of the placement axis.
	MemorySlices int          `yaml:"memorySlices" required:"true" minimum:"1" maximum:"8"`
	Profiles     []MIGProfile `yaml:"profiles" required:"true"`
}

// MIGProfile is one GPU instance profile.
type MIGProfile struct {
	// Name is e.g. 1g.23gb, 1g.23gb+me, 1g.24gb-me or 4g.96gb+gfx.
	Name string `yaml:"name" required:"true" pattern:"^[0-9]+g\\.[0-9]+gb([+-][a-z.]+)?$"`
	// ID is the profile's ID in the output of nvidia-smi mig -lgip.
	ID              int   `yaml:"id" minimum:"0" maximum:"255"`
	Slices          int   `yaml:"slices" required:"true" minimum:"1" maximum:"8"`
	MemoryMiB       int64 `yaml:"memoryMiB" required:"true" minimum:"1" maximum:"67108864"`
	Multiprocessors int   `yaml:"multiprocessors" required:"true" minimum:"1" maximum:"1048576"`
	CopyEngines     int   `yaml:"copyEngines" minimum:"0" maximum:"64"`
	Decoders        int   `yaml:"decoders" minimum:"0" maximum:"64"`
	Encoders        int   `yaml:"encoders" minimum:"0" maximum:"64"`
	JPEG            int   `yaml:"jpeg" minimum:"0" maximum:"64"`
	OFA             int   `yaml:"ofa" minimum:"0" maximum:"64"`
	// Max is how many instances of this profile one GPU can have.
	Max int `yaml:"max" required:"true" minimum:"1" maximum:"8"`
	// Starts and Size are the possible placements, in memory slices.
	Starts []int `yaml:"starts" required:"true"`
	Size   int   `yaml:"size" required:"true" minimum:"1" maximum:"8"`
}

// NVLink is how the GPUs of a node are linked.
type NVLink struct {
	Links   int `yaml:"links" required:"true" minimum:"1" maximum:"18"`
	Version int `yaml:"version" required:"true" minimum:"1" maximum:"6"`
	// Switched is true when links lead to an NVSwitch, false when each leads to a peer GPU.
	Switched bool `yaml:"switched"`
	// SpeedMBps is one link's speed in one direction, in MB/s.
	SpeedMBps int `yaml:"speedMBps" minimum:"0" maximum:"10000000"`
	// Switches are the PCI addresses of NVSwitches that the node itself sees.
	Switches []string `yaml:"switches"`
	// SwitchPCIID is the switches' vendor:device.
	SwitchPCIID string `yaml:"switchPCIID" pattern:"^[0-9a-f]{4}:[0-9a-f]{4}$"`
}

// GPU is one GPU's place in the machine.
type GPU struct {
	PCI string `yaml:"pci" required:"true" pattern:"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]$"`
	// Bridges are the PCI bridges above it, the root port first; empty takes one root port.
	Bridges []string `yaml:"bridges"`
	NUMA    int      `yaml:"numa" minimum:"-1"`
	// CPUs overrides the CPU list of its NUMA node.
	CPUs string `yaml:"cpus"`
	// MemoryNodes is the list nvidia-smi topo -m prints as NUMA affinity; empty takes NUMA.
	MemoryNodes string `yaml:"memoryNodes"`
	// Module is the physical slot number on the baseboard; zero takes index+1.
	Module int `yaml:"module" minimum:"0" maximum:"255"`
	// IdleWatts and IdleCelsius override the model's; zero takes those.
	IdleWatts   int `yaml:"idleWatts" minimum:"0" maximum:"1000000"`
	IdleCelsius int `yaml:"idleCelsius" minimum:"0" maximum:"120"`
	// Board counts boards from 1; GPUs of one board share a serial number. Zero: a board of its own.
	Board int `yaml:"board" minimum:"0" maximum:"255"`
	// Minor is the number of /dev/nvidiaN. Where no GPU of the profile has one, it is the index.
	Minor int `yaml:"minor" minimum:"0" maximum:"31"`
}

// Fabric is the NVLink fabric that the GPUs register with.
type Fabric struct {
	// ClusterUUID is the first rack's; further racks get others, derived from it. All zeros (an HGX board: a fabric without a cluster) stays.
	ClusterUUID string `yaml:"clusterUUID" required:"true" pattern:"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"`
	CliqueID    uint32 `yaml:"cliqueID"`
	// NodesPerClique is how many nodes of this model share one clique; zero means one.
	NodesPerClique int `yaml:"nodesPerClique" minimum:"0" maximum:"1048576"`
	// Health lists the fields of NVML's health mask: bandwidth, routeRecovery, routeUnhealthy, accessTimeout, configuration, partition,
	// fabricManager and summary, or none. Empty means all but partition and fabricManager, which drivers up to 580.173 do not report.
	Health []string `yaml:"health"`
}

// NIC is one RDMA-capable port function.
type NIC struct {
	// Device is the InfiniBand device's name, e.g. mlx5_0.
	Device string `yaml:"device" required:"true" pattern:"^[a-z0-9_]+$"`
	// Netdev is the network interface of that function, e.g. ibp3s0.
	Netdev string `yaml:"netdev" required:"true" pattern:"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$"`
	// Bond is the bonding interface that the netdev is a slave of.
	Bond string `yaml:"bond" pattern:"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$"`
	PCI  string `yaml:"pci" required:"true" pattern:"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]$"`
	// Bridges are the PCI bridges above it, the root port first; empty takes one root port.
	Bridges []string `yaml:"bridges"`
	NUMA    int      `yaml:"numa" minimum:"-1"`
	// Model is a key of the table of NIC models.
	Model string `yaml:"model" required:"true" enum:"ConnectX-5,ConnectX-6,ConnectX-6 Dx,ConnectX-7,ConnectX-8,ConnectX-9,BlueField-2,BlueField-3"` //nolint:lll // a tag cannot be wrapped
	Link  string `yaml:"link" required:"true" enum:"InfiniBand,Ethernet"`
	// RateGbps is the active rate of the port.
	RateGbps int    `yaml:"rateGbps" required:"true" minimum:"1" maximum:"100000"`
	MTU      int    `yaml:"mtu" minimum:"0" maximum:"65535"`
	Firmware string `yaml:"firmware"`
	BoardID  string `yaml:"boardID"`
	// Port is the number of the port on the card that this function serves, from 0 (dev_port is always 0 with mlx5).
	Port int `yaml:"port" minimum:"0" maximum:"254"`
	// Down is true when the port has no link.
	Down  bool   `yaml:"down"`
	SRIOV *SRIOV `yaml:"sriov"`
	// DataDirect is the function of a ConnectX-8 that reads and writes GPU memory for it, beside the GPU.
	DataDirect *DataDirect `yaml:"dataDirect"`
}

// DataDirect is the place of a NIC's data-direct function.
type DataDirect struct {
	PCI string `yaml:"pci" required:"true" pattern:"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]$"`
	// Bridges are the PCI bridges above it, the root port first; empty takes one root port.
	Bridges []string `yaml:"bridges"`
}

// SRIOV is the number of virtual functions of a NIC.
type SRIOV struct {
	Total int `yaml:"total" required:"true" minimum:"1" maximum:"127"`
	// Enabled is how many exist.
	Enabled int `yaml:"enabled" minimum:"0" maximum:"127"`
	// Switchdev is true when the card's e-switch is in switchdev mode. Each virtual function then has a representor.
	Switchdev bool `yaml:"switchdev"`
}

// IMEX is the internode memory exchange of the machine.
type IMEX struct {
	// Version is the version that the daemon sends to its peers.
	Version string `yaml:"version" required:"true"`
	// Channels is how many channel devices may exist (2048 on real machines).
	Channels int `yaml:"channels" required:"true" minimum:"1" maximum:"4096"`
	// CreateChannel0 is the module parameter NVreg_CreateImexChannel0, off by default as in the driver: the module then makes the node of
	// channel 0.
	CreateChannel0 bool `yaml:"createChannel0"`
}
