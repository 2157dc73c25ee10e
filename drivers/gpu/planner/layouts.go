package planner

import (
	"fmt"
	"slices"
	"strings"
)

// layout is a maximal set of devices beside those in use: no further device fits.
type layout struct {
	count   []int    // by shape, without those in use
	devices []Device // without those in use
}

// mask is the memory slices of a device, a bit each.
func (m *Model) mask(d Device) uint64 {
	return (1<<m.Shapes[d.Shape].Size - 1) << d.Start
}

// room is the free part of a GPU.
type room struct {
	taken   uint64 // memory slices
	compute int    // slices
	count   []int  // instances by shape
}

func (m *Model) roomBeside(devices []Device) room {
	r := room{compute: m.Compute, count: make([]int, len(m.Shapes))}
	for _, d := range devices {
		r.taken |= m.mask(d)
		r.compute -= m.Shapes[d.Shape].Compute
		r.count[d.Shape]++
	}
	return r
}

func (m *Model) fits(r room, d Device) bool {
	s := &m.Shapes[d.Shape]
	return r.taken&m.mask(d) == 0 && s.Compute <= r.compute && (s.Max == 0 || r.count[d.Shape] < s.Max)
}

// places are all devices that a GPU of the model can have.
func (m *Model) places() []Device {
	var out []Device
	for i, s := range m.Shapes {
		for _, at := range s.Starts {
			out = append(out, Device{Shape: i, Start: at})
		}
	}
	return out
}

const (
	// maxTries bounds the search for the layouts of a GPU, whose profiles and placements its node reports. An H100 with all of its
	// profiles as shapes takes 2,319.
	maxTries = 10_000
	// maxLayouts bounds the sets of devices in use whose layouts are remembered.
	maxLayouts = 20_000
)

// layoutsBeside returns the maximal layouts beside devices in use: of those with the same numbers of shapes the one that leaves the low
// memory slices to small shapes, since on most models the last one serves no small instance.
func (p *Planner) layoutsBeside(m *Model, name string, busy []Device) []layout {
	key := name + key(busy)
	if known, ok := p.layouts[key]; ok {
		return known
	}
	places := m.places()
	best := map[string]layout{}
	left := maxTries
	var try func(from int, r room, have []Device)
	try = func(from int, r room, have []Device) {
		for i := from; i < len(places); i++ {
			d := places[i]
			if !m.fits(r, d) {
				continue
			}
			if left--; left < 0 {
				return
			}
			next := room{r.taken | m.mask(d), r.compute - m.Shapes[d.Shape].Compute, slices.Clone(r.count)}
			next.count[d.Shape]++
			try(i+1, next, append(slices.Clone(have), d))
		}
		if len(have) == 0 || slices.ContainsFunc(places, func(d Device) bool { return m.fits(r, d) }) {
			return
		}
		l := layout{count: make([]int, len(m.Shapes)), devices: have}
		for _, d := range have {
			l.count[d.Shape]++
		}
		id := fmt.Sprint(l.count)
		if other, ok := best[id]; !ok || m.height(have) > m.height(other.devices) {
			best[id] = l
		}
	}
	try(0, m.roomBeside(busy), nil)
	var out []layout
	for _, l := range best {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b layout) int { return slices.Compare(a.count, b.count) })
	if len(p.layouts) >= maxLayouts {
		clear(p.layouts)
	}
	p.layouts[key] = out
	return out
}

// height is larger where large shapes lie high.
func (m *Model) height(devices []Device) int {
	sum := 0
	for _, d := range devices {
		if size := m.Shapes[d.Shape].Size; size > 2 {
			sum += size * d.Start
		}
	}
	return sum
}

// key distinguishes sets of devices, which are in the order of their places.
func key(devices []Device) string {
	var b strings.Builder
	for _, d := range devices {
		b.WriteByte(byte(d.Shape))
		b.WriteByte(byte(d.Start))
		flags := byte(0)
		if d.Busy {
			flags |= 1
		}
		if d.Hidden {
			flags |= 2
		}
		b.WriteByte(flags)
	}
	return b.String()
}

// name distinguishes models by their content.
func (m *Model) name() string {
	return fmt.Sprint(m.Compute, m.Shapes)
}
