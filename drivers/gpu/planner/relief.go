package planner

import (
	"cmp"
	"slices"
)

// Shortage is a shape that pods wait for and that no GPU has room for now.
type Shortage struct {
	Shape, Waiting int
	// Free are the compute slices of all GPUs that are unused, GPUs how many GPUs have as many free as the shape takes: on these only the
	// placement of the instances in use is in the way.
	Free, GPUs int
	// Reliefs are the places that fewest ends would free, the best first.
	Reliefs []Relief
}

// Relief is a place for a device of a shape, and the devices in use whose end would make it free.
type Relief struct {
	GPU     string // its ID
	Start   int
	Devices []Device
}

// maxReliefs is how many places a Shortage names.
const maxReliefs = 3

// Shortages returns the shapes that more pods wait for than devices are free or come, where no cut beside the instances in use makes one.
// It changes nothing.
func Shortages(s State) []Shortage {
	n := len(s.Limits)
	missing := make([]int, n)
	for _, w := range s.Waiting {
		if !count(missing, []int{w.Shape}) || !count(missing, w.Beside) {
			continue
		}
	}
	waiting := slices.Clone(missing)
	out := make([]Shortage, n)
	fits := make([]bool, n)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if len(g.Model.Shapes) != n {
			continue
		}
		var busy []Device
		for _, d := range slices.Concat(g.Devices, g.Changing) {
			if d.Busy {
				busy = append(busy, d)
			} else if !d.Hidden {
				missing[d.Shape]--
			}
		}
		room := g.Model.roomBeside(busy)
		for k := range out {
			out[k].Free += room.compute
			if len(g.Model.Shapes[k].Starts) == 0 || g.Pinned {
				continue
			}
			if room.compute >= g.Model.Shapes[k].Compute {
				out[k].GPUs++
			}
			r, ok := g.Model.relief(k, busy)
			r.GPU = g.ID
			fits[k] = fits[k] || ok && len(r.Devices) == 0
			if ok && len(r.Devices) > 0 {
				out[k].Reliefs = append(out[k].Reliefs, r)
			}
		}
	}
	for k := range out {
		out[k].Shape, out[k].Waiting = k, waiting[k]
		if len(s.GPUs) == 0 {
			continue
		}
		model := s.GPUs[0].Model
		slices.SortStableFunc(out[k].Reliefs, func(a, b Relief) int {
			return cmp.Or(cmp.Compare(model.compute(a.Devices), model.compute(b.Devices)), cmp.Compare(len(a.Devices), len(b.Devices)),
				cmp.Compare(a.GPU, b.GPU))
		})
		out[k].Reliefs = out[k].Reliefs[:min(len(out[k].Reliefs), maxReliefs)]
	}
	return slices.DeleteFunc(out, func(o Shortage) bool { return o.Waiting == 0 || missing[o.Shape] <= 0 || fits[o.Shape] })
}

func (m *Model) compute(devices []Device) int {
	sum := 0
	for _, d := range devices {
		sum += m.Shapes[d.Shape].Compute
	}
	return sum
}

// relief returns the place for a shape on a GPU whose instances in use have fewest compute slices, and these instances; ok is false where
// no place becomes free by the end of those that overlap it.
func (m *Model) relief(shape int, busy []Device) (best Relief, ok bool) {
	s := &m.Shapes[shape]
	for _, start := range s.Starts {
		place := m.mask(Device{Shape: shape, Start: start})
		var inTheWay, stay []Device
		for _, d := range busy {
			if m.mask(d)&place != 0 {
				inTheWay = append(inTheWay, d)
			} else {
				stay = append(stay, d)
			}
		}
		r := m.roomBeside(stay)
		if r.compute < s.Compute || s.Max > 0 && r.count[shape] >= s.Max {
			continue
		}
		if !ok || m.compute(inTheWay) < m.compute(best.Devices) {
			best, ok = Relief{Start: start, Devices: inTheWay}, true
		}
	}
	return best, ok
}
