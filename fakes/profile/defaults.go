package profile

import (
	"cmp"
	"slices"
)

// Filled is the profile with the defaults of its GPUs' and NICs' places, as a rendered node shows them.
func (p *Profile) Filled() *Profile {
	filled := *p
	if p.GPUs != nil {
		gpus := *p.GPUs
		gpus.Devices = slices.Clone(gpus.Devices)
		for i := range gpus.Devices {
			g := &gpus.Devices[i]
			g.Bridges = bridgesOf(g.PCI, g.Bridges)
			g.Module = g.moduleAt(i)
		}
		m := &gpus.Model
		m.PCIe.LinkGeneration, m.PCIe.Atomics = m.PCIe.Link(), cmp.Or(m.PCIe.Atomics, "none")
		m.Clocks.ApplicationMHz = cmp.Or(m.Clocks.ApplicationMHz, m.Clocks.GraphicsMHz)
		m.Clocks.IdleVideoMHz = cmp.Or(m.Clocks.IdleVideoMHz, m.Clocks.IdleMHz)
		m.Clocks.IdleMemoryMHz = cmp.Or(m.Clocks.IdleMemoryMHz, m.Clocks.MemoryMHz)
		filled.GPUs = &gpus
	}
	if p.Fabric != nil {
		fabric := *p.Fabric
		fabric.Health = nil
		for _, word := range []string{"summary", "bandwidth", "routeRecovery", "routeUnhealthy", "accessTimeout", "configuration",
			"partition", "fabricManager"} {
			if p.Fabric.Reports(word) {
				fabric.Health = append(fabric.Health, word)
			}
		}
		if fabric.Health == nil {
			fabric.Health = []string{"none"}
		}
		filled.Fabric = &fabric
	}
	filled.NICs = slices.Clone(p.NICs)
	for i := range filled.NICs {
		n := &filled.NICs[i]
		details := n.Details()
		n.Firmware, n.BoardID = details.Firmware, details.BoardID
		n.MTU = n.MTUOrDefault()
		n.Bridges = bridgesOf(n.PCI, n.Bridges)
	}
	return &filled
}

// MTUOrDefault gives the usual size for the NIC's link where the profile gives none.
func (n NIC) MTUOrDefault() int {
	switch {
	case n.MTU > 0:
		return n.MTU
	case n.Link == "InfiniBand":
		return 4092
	default:
		return 9000
	}
}

// moduleAt is the slot of the GPU with this index.
func (g GPU) moduleAt(index int) int {
	if g.Module == 0 {
		return index + 1
	}
	return g.Module
}

func bridgesOf(pci string, bridges []string) []string {
	address, err := ParsePCI(pci)
	if err != nil {
		return bridges // the profile's check has seen to the form
	}
	return BridgeChain(address, bridges)
}
