// Package cards decides which shares of which GPUs of a node a pod gets. It knows the rules and nothing of Kubernetes' scheduler: nodes and
// pods come in as plain values, and a refusal says which rule left how many GPUs out.
package cards

import (
	"slices"

	"gpufabric.io/drivers/vgpu/annotation"
)

// Near says where a GPU sits. GPUs with equal, known values are close; an empty value is not known and equals nothing.
type Near struct {
	NVLink string // NVLink domain
	NUMA   string // NUMA node
	Switch string // the PCIe switch above
}

// Card is a GPU as its node registers it, and what is given away of it.
type Card struct {
	annotation.GPU
	Near Near

	Sharers    int   // containers that have a share
	MemoryUsed int64 // in units of the node's memory factor
	CoresUsed  int   // percent
	Sibling    bool  // another pod of the group that is to be spread has a share

	// Groups are the MIG slots that the node tells, by group and position, each its memory in the node's units.
	Groups [][]int64
	Cut    Cut
}

// Cut is which MIG slots of a GPU are given away. Those of one group lie beside each other; slots of two groups may overlap, so a GPU is
// cut by one at a time.
type Cut struct {
	Taken  uint64 // positions of the group, as bits; 0: nothing is given away
	Group  int
	Opaque bool // something is given away that is no slot of the group
}

func (c *Cut) take(slot *annotation.MIGSlot) {
	if slot == nil {
		c.Opaque = true
		return
	}
	group, known := slot.Place(nil) // the node tells slots by number; a name is another scheduler's
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

// slot finds the slot for a request: in the group by which the GPU is cut, or else in the first one that has any large enough, the smallest
// that is large enough and free, with the memory that it has. No memory named is the largest instance's.
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

// Node are a node's GPUs in the order of their index.
type Node []Card

// Book counts a pod's shares as given away, a list per container. Those of an init container that ends before the next one starts (before
// says which do; nil where none does) are not added to what comes after: what counts of each GPU is the most that is taken at one time. A
// share of a GPU that the node does not register counts nowhere.
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

// raise makes what is given away of each GPU at least what is in another account of the same GPUs.
func (n Node) raise(other Node) {
	for i := range n {
		n[i].Sharers = max(n[i].Sharers, other[i].Sharers)
		n[i].MemoryUsed = max(n[i].MemoryUsed, other[i].MemoryUsed)
		n[i].CoresUsed = max(n[i].CoresUsed, other[i].CoresUsed)
		n[i].Cut.raise(other[i].Cut)
	}
}

// Mark notes the GPUs of which a pod has shares that must not share one with the pod to be placed.
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

// Empty is the node with nothing given away.
func (n Node) Empty() Node {
	empty := make(Node, len(n))
	for i, c := range n {
		empty[i] = Card{GPU: c.GPU, Near: c.Near, Groups: c.Groups}
	}
	return empty
}
