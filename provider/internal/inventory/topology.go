package inventory

import (
	"maps"
	"slices"
)

// CliqueLabel is the node label with a node's NVLink clique.
const CliqueLabel = "nvidia.com/gpu.clique"

// Attributes that GPUs and NICs share.
const (
	pcieSwitch = "gpufabric.io/pcieSwitch"
	pcieRoot   = "resource.kubernetes.io/pcieRoot"
	numaNode   = "resource.kubernetes.io/numaNode"
)

// Group is a set of devices that are close to each other on a node: below one PCIe switch or, without a switch, below one root.
type Group struct {
	Node     string
	Switch   string // PCI address; empty where the devices have no switch of their own
	Root     string
	NUMANode int64 // -1: unknown
	GPUs     []string
	NICs     []string
}

// Groups groups whole GPUs and NICs by their PCIe switch.
func (inv *Inventory) Groups() []Group {
	type place struct{ node, bridge, root string }
	groups := map[place]*Group{}
	var order []place
	for _, d := range inv.Devices {
		gpu := d.Driver == GPUDriver && d.Text("type") == "gpu"
		if !gpu && d.Driver != RDMADriver {
			continue
		}
		at := place{d.Node, d.Text(pcieSwitch), d.Text(pcieRoot)}
		g := groups[at]
		if g == nil {
			g = &Group{Node: at.node, Switch: at.bridge, Root: at.root, NUMANode: d.Number(numaNode)}
			groups[at] = g
			order = append(order, at)
		}
		if gpu {
			g.GPUs = append(g.GPUs, d.Name)
		} else {
			g.NICs = append(g.NICs, d.Name)
		}
	}
	out := make([]Group, len(order))
	for i, at := range order {
		out[i] = *groups[at]
	}
	return out
}

// Clique is the nodes of one NVLink domain.
type Clique struct {
	ID    string
	Nodes []string
	GPUs  int64
}

// Cliques groups GPUs by clique: by the GPUs' own attribute where the GPU driver publishes one, else by the node's label (labels: node to
// clique).
func (inv *Inventory) Cliques(labels map[string]string) []Clique {
	cliques := map[string]*Clique{}
	add := func(id, node string, gpus int64) {
		if id == "" {
			return
		}
		if cliques[id] == nil {
			cliques[id] = &Clique{ID: id}
		}
		c := cliques[id]
		if !slices.Contains(c.Nodes, node) {
			c.Nodes = append(c.Nodes, node)
		}
		c.GPUs += gpus
	}
	for _, d := range inv.Devices {
		if d.Driver == GPUDriver && d.Text("type") == "gpu" {
			add(d.Text("cliqueID"), d.Node, 1)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(labels)) {
		add(labels[node], node, 0)
	}
	out := make([]Clique, 0, len(cliques))
	for _, id := range slices.Sorted(maps.Keys(cliques)) {
		c := cliques[id]
		slices.SortFunc(c.Nodes, natural)
		out = append(out, *c)
	}
	return out
}
