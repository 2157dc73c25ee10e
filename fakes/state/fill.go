package state

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"gpufabric.io/fakes/profile"
)

// Compile-time proof that the profile's limits are the layout's.
var (
	_ = [1]struct{}{}[profile.MaxGPUs-MaxGPUs]
	_ = [1]struct{}{}[profile.MaxMIGProfiles-MaxMIGProfiles]
	_ = [1]struct{}{}[profile.HighestCPU+1-CPUWords*64]
	_ = [1]struct{}{}[profile.HighestNUMANode+1-MemoryWords*64]
)

// NVML's numbers for the words that profiles use.
const (
	fabricNotSupported = 0
	fabricCompleted    = 3
	// Health: bandwidth not degraded, no route recovery, no unhealthy route, no access timeout recovery, configuration right.
	fabricHealthy = 2 | 2<<2 | 2<<4 | 2<<6 | 1<<8 | 1<<12 | 1<<14
	remoteGPU     = 0
	remoteSwitch  = 2
)

// healthBits are the fields of NVML's health mask (NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_* of nvml.h) by their words in a profile. A
// field of zero is not supported.
var healthBits = map[string]uint32{"bandwidth": 3, "routeRecovery": 3 << 2, "routeUnhealthy": 3 << 4, "accessTimeout": 3 << 6,
	"configuration": 0xf << 8, "partition": 3 << 12, "fabricManager": 3 << 14}

// CreateNode writes the state file of a freshly booted machine.
func CreateNode(root string, n *profile.Node) error {
	return Create(root, len(n.GPUs), func(b *Body) error { return fill(b, n) })
}

func fill(b *Body, n *profile.Node) error {
	d := n.Profile.Driver
	SetString(b.Node.DriverVersion[:], d.Version)
	if major, minor, ok := strings.Cut(d.CUDA, "."); ok {
		SetString(b.Node.NVMLVersion[:], major+"."+d.Version)
		b.Node.CUDAVersion = number(major)*1000 + number(minor)*10
	}
	if n.Profile.GPUs == nil {
		return nil
	}
	fillModel(&b.Node.Model, n.Profile)
	for i, g := range b.GPUs {
		if err := fillCore(&g.Core, &b.Node.Model, n, i); err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
		fillLinks(g, n, i)
	}
	return nil
}

func number(s string) uint32 {
	v, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0 // the profile's check has validated the form
	}
	return uint32(v)
}

// SetString copies s into a fixed field, cut so that a zero byte always ends it.
func SetString(field []byte, s string) {
	clear(field)
	copy(field[:len(field)-1], s)
}

// String reads a fixed field up to its zero byte.
func String(field []byte) string {
	s, _, _ := strings.Cut(string(field), "\x00")
	return s
}

func fillModel(m *Model, p *profile.Profile) {
	g := p.GPUs.Model
	SetString(m.Name[:], g.Name)
	SetString(m.BoardPart[:], g.BoardPart)
	SetString(m.VBIOS[:], g.VBIOS)
	SetString(m.InfoROM[:], g.InfoROM)
	SetString(m.GPUPart[:], g.GPUPart)
	SetString(m.InfoROMOEM[:], g.InfoROMObjects.OEM)
	SetString(m.InfoROMECC[:], g.InfoROMObjects.ECC)
	m.Architecture = map[string]uint32{"turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10, "rubin": 13}[g.Architecture]
	m.Brand = map[string]uint32{"quadro": 1, "tesla": 2, "geforce": 5, "nvidia": 14, "": 14}[g.Brand]
	major, minor, _ := strings.Cut(g.ComputeCapability, ".")
	m.ComputeMajor, m.ComputeMinor = number(major), number(minor)
	m.PCIDevice = uint32(g.ID().Device)<<16 | uint32(g.ID().Vendor)
	m.PCISubsystem = uint32(g.Subsystem().Device)<<16 | uint32(g.Subsystem().Vendor)
	m.MemoryTotal, m.MemoryReserved, m.BAR1Total = mib(g.MemoryMiB), mib(g.ReservedMiB), mib(g.BAR1MiB)
	m.MemoryBusBits, m.Multiprocessors, m.Cores = uint32(g.MemoryBusBits), uint32(g.Multiprocessors), uint32(g.Cores)
	m.ECC, m.Coherent, m.Integrated = flag(g.ECC), flag(g.Coherent), flag(g.Integrated)
	m.Virtualization = map[string]uint32{"passthrough": 1, "vgpu": 2}[g.Virtualization]
	m.AddressingMode = map[string]uint32{"HMM": 1, "ATS": 2}[g.AddressingMode]
	m.PCIeGeneration, m.PCIeWidth = uint32(g.PCIe.Generation), uint32(g.PCIe.Width)
	m.PCIeLink, m.PCIeHost = uint32(g.PCIe.Link()), uint32(g.PCIe.HostGeneration)
	m.PCIeAtomics = map[string]uint32{"inbound": 1, "both": 3}[g.PCIe.Atomics]
	m.PowerDefault, m.PowerMin, m.PowerMax = milli(g.Power.DefaultWatts), milli(g.Power.MinWatts), milli(g.Power.MaxWatts)
	m.ClockGraphics, m.ClockSM = uint32(g.Clocks.GraphicsMHz), uint32(g.Clocks.SMMHz)
	m.ClockMemory, m.ClockVideo, m.ClockIdle = uint32(g.Clocks.MemoryMHz), uint32(g.Clocks.VideoMHz), uint32(g.Clocks.IdleMHz)
	m.ClockApp = uint32(cmp.Or(g.Clocks.ApplicationMHz, g.Clocks.GraphicsMHz))
	if w := g.ModulePower; w != nil {
		m.ModuleDefault, m.ModuleMin, m.ModuleMax = milli(w.DefaultWatts), milli(w.MinWatts), milli(w.MaxWatts)
	}
	m.TempMemory, m.RemapperBanks = uint32(g.Temperature.MaxMemory), uint32(g.RowRemapperBanks)
	if q := p.GPUs.Platform; q != nil {
		m.PlatformKnown, m.PlatformChassis, m.PlatformHost = 1, flag(q.Chassis), uint32(q.Host)
		m.PlatformPeer = flag(q.Peer == "switch")
	}
	m.TempShutdown, m.TempSlowdown, m.TempMax = uint32(g.Temperature.Shutdown), uint32(g.Temperature.Slowdown), uint32(g.Temperature.MaxGPU)
	if l := p.GPUs.NVLink; l != nil {
		m.LinkCount, m.LinkVersion, m.LinkSpeed, m.LinkSwitched = uint32(l.Links), uint32(l.Version), uint32(l.SpeedMBps), flag(l.Switched)
	}
	if g.MIG != nil {
		fillMIG(m, g.MIG)
	}
}

func fillMIG(m *Model, mig *profile.MIG) {
	m.MIGMaxInstances, m.MIGMemorySlices = uint32(mig.MaxInstances), uint32(mig.MemorySlices)
	m.MIGProfileCount = uint32(len(mig.Profiles))
	for _, p := range mig.Profiles {
		m.MIGSlices = max(m.MIGSlices, uint32(p.Slices))
	}
	for i, p := range mig.Profiles {
		q := &m.MIGProfiles[i]
		SetString(q.Name[:], p.Name)
		q.Kind, q.ID, q.Slices, q.Max = p.Enum(), uint32(p.ID), uint32(p.Slices), uint32(p.Max)
		q.Multiprocessors, q.CopyEngines = uint32(p.Multiprocessors), uint32(p.CopyEngines)
		q.Decoders, q.Encoders, q.JPEG, q.OFA = uint32(p.Decoders), uint32(p.Encoders), uint32(p.JPEG), uint32(p.OFA)
		q.Size, q.PlacementCount, q.MemoryMiB = uint32(p.Size), uint32(len(p.Starts)), uint64(p.MemoryMiB)
		for j, s := range p.Starts {
			q.Starts[j] = uint32(s)
		}
		fillCI(q)
	}
}

// fillCI gives a GPU instance profile its compute instance profiles: 1, 2, 3, 4 and all slices, as far as it has them.
func fillCI(q *MIGProfile) {
	for enum, slices := range []uint32{1, 2, 3, 4, 7} {
		if slices > q.Slices {
			break
		}
		c := &q.CIProfiles[q.CICount]
		c.Kind, c.ID, c.Slices = uint32(enum), uint32(enum), slices
		c.Max = q.Slices / slices
		c.Multiprocessors = q.Multiprocessors
		if slices < q.Slices {
			// Multiprocessors come in pairs; a slice gets an even number.
			c.Multiprocessors = q.Multiprocessors * slices / q.Slices &^ 1
		}
		q.CICount++
	}
}

func mib(v int64) uint64 { return uint64(v) << 20 }
func milli(w int) uint32 { return uint32(w) * 1000 }
func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func fillCore(c *Core, m *Model, n *profile.Node, i int) error {
	g, model := n.GPUs[i], n.Profile.GPUs.Model
	c.UUID, c.PDI = g.UUIDBytes, g.PDI
	SetString(c.Serial[:], g.Serial)
	c.Domain, c.Bus, c.Device, c.Function = g.Address.Domain, g.Address.Bus, g.Address.Device, g.Address.Function
	c.Minor, c.Module, c.NUMANode, c.MemoryNUMANode = uint32(g.Minor), uint32(g.Module), int32(g.NUMA), -1
	if err := setBits(c.CPUs[:], g.CPUs); err != nil {
		return fmt.Errorf("CPUs: %w", err)
	}
	if err := setBits(c.MemoryNodes[:], g.MemoryNodes); err != nil {
		return fmt.Errorf("memory nodes: %w", err)
	}
	c.Persistence, c.ECCPending = 1, m.ECC
	c.Temperature, c.TemperatureMem = uint32(model.IdleCelsius), uint32(model.IdleCelsius)
	c.Power, c.PowerLimit = milli(model.Power.IdleWatts), m.PowerDefault
	if g.IdleCelsius > 0 {
		c.Temperature, c.TemperatureMem = uint32(g.IdleCelsius), uint32(g.IdleCelsius)
	}
	if g.IdleWatts > 0 {
		c.Power = milli(g.IdleWatts)
	}
	c.ClockGraphics, c.ClockSM = m.ClockIdle, m.ClockIdle
	c.ClockMemory = uint32(cmp.Or(model.Clocks.IdleMemoryMHz, model.Clocks.MemoryMHz))
	c.ClockVideo = uint32(cmp.Or(model.Clocks.IdleVideoMHz, model.Clocks.IdleMHz))
	c.MemoryPower = milli(model.Power.MemoryIdleWatts)
	if w := model.ModulePower; w != nil {
		c.ModulePower = milli(w.IdleWatts)
	}
	if q := g.Platform; q != nil {
		SetString(c.Chassis[:], q.Chassis)
		c.Slot, c.Tray, c.FabricGUID = uint32(q.Slot), uint32(q.Tray), q.GUID
	}
	c.ClockReasons = 1 // GPU idle
	for j, other := range n.GPUs {
		c.Topology[j] = uint8(n.Distance(g.Place(), other.Place()))
		if i != j && n.Profile.GPUs.NVLink != nil {
			c.P2P[j] = 1
		}
	}
	return fillFabric(c, n)
}

func fillFabric(c *Core, n *profile.Node) error {
	f := n.Profile.Fabric
	if f == nil {
		c.FabricState = fabricNotSupported
		return nil
	}
	c.FabricState, c.FabricClique = fabricCompleted, f.CliqueID
	for word, bits := range healthBits {
		if f.Reports(word) {
			c.FabricHealth |= fabricHealthy & bits
		}
	}
	c.FabricSummary = flag(f.Reports("summary"))
	c.FabricCluster = profile.ParseUUID(n.ClusterUUID)
	return nil
}

func setBits(words []uint64, list string) error {
	numbers, err := profile.ParseList(list)
	if err != nil {
		return err
	}
	for _, v := range numbers {
		if v/64 >= len(words) {
			return fmt.Errorf("%d is beyond %d, the highest that fits", v, len(words)*64-1)
		}
		words[v/64] |= 1 << (v % 64)
	}
	return nil
}

// fillLinks wires NVLinks: to switches, or without them spread evenly over the other GPUs.
func fillLinks(g *GPU, n *profile.Node, i int) {
	l := n.Profile.GPUs.NVLink
	if l == nil {
		return
	}
	for k := range l.Links {
		link := &g.Links[k]
		link.Active, link.RemoteLink = 1, uint32(k)
		if l.Switched {
			link.RemoteType = remoteSwitch
			setRemoteSwitch(link, n, k)
			continue
		}
		link.RemoteType = remoteGPU
		peers := len(n.GPUs) - 1
		if peers == 0 {
			link.Active = 0
			continue
		}
		peer := n.GPUs[(i+1+k%peers)%len(n.GPUs)].Address
		link.Domain, link.Bus, link.Device, link.Function = peer.Domain, peer.Bus, peer.Device, peer.Function
		link.PCIDevice = uint32(n.Profile.GPUs.Model.ID().Device)<<16 | uint32(n.Profile.GPUs.Model.ID().Vendor)
	}
}

// setRemoteSwitch names the switch at the other end; switches that the node does not see (a rack's) have the address ffff:ff:ff.0.
func setRemoteSwitch(link *Link, n *profile.Node, k int) {
	l := n.Profile.GPUs.NVLink
	link.Domain, link.Bus, link.Device = 0xffff, 0xff, 0xff
	if len(l.Switches) == 0 {
		return
	}
	a, err := profile.ParsePCI(l.Switches[k*len(l.Switches)/l.Links])
	if err == nil {
		link.Domain, link.Bus, link.Device, link.Function = a.Domain, a.Bus, a.Device, a.Function
	}
}
