package profile

import "slices"

// Distance is how far two devices are apart, in NVML's nvmlGpuTopologyLevel_t.
type Distance int

// The distances, from the nearest; the comments give the words of nvidia-smi topo -m.
const (
	DistanceSelf   Distance = 0  // X
	DistanceSingle Distance = 10 // PIX: at most one PCIe bridge between them
	DistanceMulti  Distance = 20 // PXB: several PCIe bridges, no host bridge
	DistanceHost   Distance = 30 // PHB: one host bridge
	DistanceNode   Distance = 40 // NODE: host bridges of one NUMA node
	DistanceSystem Distance = 50 // SYS: across NUMA nodes
)

// String gives the word of nvidia-smi topo -m.
func (d Distance) String() string {
	switch d {
	case DistanceSelf:
		return "X"
	case DistanceSingle:
		return "PIX"
	case DistanceMulti:
		return "PXB"
	case DistanceHost:
		return "PHB"
	case DistanceNode:
		return "NODE"
	}
	return "SYS"
}

// Place is where a device sits: its PCI address, the bridges above it from the root port down, and its NUMA node.
type Place struct {
	Address PCIAddress
	Bridges []string
	NUMA    int
}

// Place gives the GPU's.
func (g NodeGPU) Place() Place {
	return Place{g.Address, BridgeChain(g.Address, g.Bridges), g.NUMA}
}

// Place gives the NIC's.
func (n NodeNIC) Place() Place {
	return Place{n.Address, BridgeChain(n.Address, n.Bridges), n.NUMA}
}

// Distance compares two places in the machine.
func (n *Node) Distance(a, b Place) Distance {
	switch {
	case a.Address == b.Address:
		return DistanceSelf
	case len(a.Bridges) > 0 && len(b.Bridges) > 0 && a.Bridges[0] == b.Bridges[0]:
		return belowOneRootPort(a, b)
	case a.Address.Domain == b.Address.Domain && rootBus(a) == rootBus(b):
		return DistanceHost
	case a.NUMA == b.NUMA && n.Profile.Topology.AcrossHostBridges != "SYS":
		return DistanceNode
	}
	return DistanceSystem
}

// rootBus is the bus that the host bridge opens.
func rootBus(p Place) uint32 {
	if len(p.Bridges) == 0 {
		return p.Address.Bus
	}
	first, err := ParsePCI(p.Bridges[0])
	if err != nil {
		return p.Address.Bus
	}
	return first.Bus
}

// belowOneRootPort counts the bridges that are not common. Two functions of one card, or two cards at the downstream ports of
// one switch, are one switch apart (PIX). Devices further apart are several switches apart (PXB).
func belowOneRootPort(a, b Place) Distance {
	common := 0
	for common < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[common] == b.Bridges[common] {
		common++
	}
	longest := slices.Max([]int{len(a.Bridges) - common, len(b.Bridges) - common})
	if longest <= 1 {
		return DistanceSingle
	}
	return DistanceMulti
}
