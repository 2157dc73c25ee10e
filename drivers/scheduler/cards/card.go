// Package cards decides which shares of which GPUs of a node a pod gets. It has the rules, and does not import Kubernetes' scheduler. Nodes
// and pods come in as plain values, and a refusal reports how many GPUs each rule left out.
package cards

import (
	"slices"

	"gpufabric.io/drivers/vgpu/annotation"
)

// Near is the place of a GPU. GPUs with equal, known values are close; an empty value is unknown and equals nothing.
type Near struct {
	NVLink string // NVLink domain
	NUMA   string // NUMA node
	Switch string // the PCIe switch above
}

// Card is a GPU as its node registers it, and its used part.
type Card struct {
	annotation.GPU
	Near Near

	Sharers    int   // containers that have a share
	MemoryUsed int64 // in units of the node's memory factor
	CoresUsed  int   // percent
	Sibling    bool  // a pod of the same group, which must be spread, has a share

	// Groups are the MIG slots that the node reports, by group and position, each its memory in the node's units.
	Groups [][]int64
	Cut    Cut
}

// Cut is which MIG slots of a GPU are used. Slots of one group are side by side; slots of two groups may overlap. So a GPU is
// divided by one group at a time.
type Cut struct {
	Taken  uint64 // positions of the group, as bits; 0: no slot is used
	Group  int
	Opaque bool // something other than a slot of the group is used
}

func (c *Cut) take(slot *annotation.MIGSlot) {
	if slot == nil {
		c.Opaque = true
		return
	}
	group, known := slot.Place(nil) // the node reports slots by number; another scheduler uses a name
	if !known || slot.Position >= 64 || c.Taken != 0 && c.Group != group {
		c.Opaque = true
		return
	}
	c.Group = group
	c.Taken |= 1 << slot.Position
}

func (c *Cut) raise(other Cut) {
	c.Opaque = c.Opaque || other.Opaque || c.Taken != 0 && other.Taken != 0 && c.Group != other.Group
	if c.Taken == 0 {
		c.Group = other.Group
	}
	c.Taken |= other.Taken
}

// slot finds the slot for a request: in the group by which the GPU is divided, or else in the first one with a slot that is large
// enough. It takes the smallest free slot that is large enough, and returns its memory. A request without memory gets the largest
// instance.
func (c *Card) slot(memory int64) (slot *annotation.MIGSlot, size int64) {
	if memory == 0 {
		for _, group := range c.Groups {
			memory = max(memory, slices.Max(append([]int64{0}, group...)))
		}
	}
	for i, group := range c.Groups {
		if c.Cut.Taken != 0 && c.Cut.Group != i {
			continue
		}
		best := -1
		for position, size := range group {
			if size >= max(memory, 1) && position < 64 && c.Cut.Taken&(1<<position) == 0 && (best < 0 || size < group[best]) {
				best = position
			}
		}
		if best >= 0 {
			return annotation.SlotAt(i, best), group[best]
		}
	}
	return nil, 0
}

// Node is a node's GPUs in the order of their index.
type Node []Card

// Book counts a pod's shares as used, a list per container. before marks init containers that end before the next container starts;
// nil where none does. Their shares are not added to later ones: for each GPU the maximum use at one time counts. A share of a GPU
// that the node does not register is ignored.
func (n Node) Book(containers [][]annotation.Share, before []bool) {
	peak := slices.Clone(n)
	for i, shares := range containers {
		if i >= len(before) || !before[i] {
			n.take(shares)
			continue
		}
		meanwhile := slices.Clone(n)
		meanwhile.take(shares)
		peak.raise(meanwhile)
	}
	n.raise(peak)
}

func (n Node) take(shares []annotation.Share) {
	for _, share := range shares {
		for i := range n {
			if n[i].UUID == share.UUID {
				n[i].book(share)
			}
		}
	}
}

// raise makes the used part of each GPU at least the used part in another account of the same GPUs.
func (n Node) raise(other Node) {
	for i := range n {
		n[i].Sharers = max(n[i].Sharers, other[i].Sharers)
		n[i].MemoryUsed = max(n[i].MemoryUsed, other[i].MemoryUsed)
		n[i].CoresUsed = max(n[i].CoresUsed, other[i].CoresUsed)
		n[i].Cut.raise(other[i].Cut)
	}
}

// Mark marks the GPUs of which a pod has shares, where that pod and the pod to be placed must not share a GPU.
func (n Node) Mark(sibling [][]annotation.Share) {
	for _, share := range slices.Concat(sibling...) {
		for i := range n {
			n[i].Sibling = n[i].Sibling || n[i].UUID == share.UUID
		}
	}
}

func (c *Card) book(share annotation.Share) {
	c.Sharers++
	c.CoresUsed += share.Cores
	if share.Memory == 0 { // the whole GPU's
		share.Memory = c.Memory
	}
	c.MemoryUsed += share.Memory
	if c.Mode == annotation.ModeMIG {
		c.Cut.take(share.Slot)
	}
}

// Empty is the node with nothing in use.
func (n Node) Empty() Node {
	empty := make(Node, len(n))
	for i, c := range n {
		empty[i] = Card{GPU: c.GPU, Near: c.Near, Groups: c.Groups}
	}
	return empty
}
