package planner

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// pack hides the free devices of the emptiest GPUs that are cut, as long as more than twice the reserve and two stay free of each shape.
// Idle ones are among them: each published free device costs the scheduler CEL for every pod of another shape. Idle whole GPUs stay
// published.
func (t *turn) pack() {
	spare := make([]int, len(t.free))
	some := false
	for k := range spare {
		spare[k] = t.free[k] - t.lack.waiting[k] - 2*t.reserves[k] - 2
		some = some || spare[k] > 0
	}
	if !some {
		return
	}
	var emptiest []*gpu
	for _, g := range t.gpus {
		_, cordoned := t.cordons[g.ID]
		if !g.changed && !cordoned && !whole(g) && g.slices < g.Model.Compute {
			emptiest = append(emptiest, g)
		}
	}
	slices.SortStableFunc(emptiest, func(a, b *gpu) int { return cmp.Compare(a.slices, b.slices) })
	packed := 0
	for _, g := range emptiest {
		if packed == t.options.PackGPUs {
			return
		}
		have := make([]int, len(spare))
		for _, d := range g.devices {
			if !d.Busy && !d.Hidden {
				have[d.Shape]++
			}
		}
		fits, any := true, false
		for k, n := range have {
			fits = fits && n <= max(spare[k], 0)
			any = any || n > 0
		}
		if !fits || !any {
			continue
		}
		for k, n := range have {
			spare[k] -= n
		}
		t.cordons[g.ID] = cordon{region: ^uint64(0)}
		packed++
	}
}

// whole reports whether a GPU is offered, or in use, undivided.
func whole(g *gpu) bool {
	return len(g.devices) == 1 && g.Model.Shapes[g.devices[0].Shape].Compute == g.Model.Compute
}

// drain keeps GPUs for pods of large shapes that have waited for long.
func (t *turn) drain() {
	for s := len(t.need) - 1; s >= 0; s-- {
		if t.lack.pods[s] <= 0 || t.state.Now.Sub(t.lack.oldest[s]) < t.options.DrainAfter {
			continue
		}
		open := 0
		for _, c := range t.cordons {
			if c.drain && c.shape == s {
				open++
			}
		}
		for open < min(t.options.Drains, t.lack.pods[s]) && t.drainFor(s) {
			open++
		}
	}
}

// drainFor hides, of the GPU that has least to wait for, the slices that a device of the shape takes.
func (t *turn) drainFor(shape int) bool {
	var best *gpu
	var where cordon
	least := 0
	for _, g := range t.gpus {
		m := g.Model
		if !large(m, shape) {
			continue
		}
		if c, ok := t.cordons[g.ID]; g.changed || ok && c.drain {
			continue
		}
		for _, at := range m.Shapes[shape].Starts {
			region := m.mask(Device{Shape: shape, Start: at})
			wait, ok := m.waitFor(g.busy, region, m.Shapes[shape])
			if ok && (best == nil || wait < least) {
				best, least, where = g, wait, cordon{region: region, shape: shape, drain: true}
			}
		}
	}
	if best == nil {
		return false
	}
	t.cordons[best.ID] = where
	return true
}

// large shapes take more than a third of a GPU. Smaller ones find their place without a drain.
func large(m *Model, shape int) bool {
	return 3*m.Shapes[shape].Compute > m.Compute && len(m.Shapes[shape].Starts) > 0
}

// waitFor returns how many compute slices must end before a device has its region. ok is false where one of its own size or more is
// there, which nobody gains by waiting for, or where the rest leaves too few slices.
func (m *Model) waitFor(busy []Device, region uint64, shape Shape) (wait int, ok bool) {
	keep := 0
	for _, d := range busy {
		compute := m.Shapes[d.Shape].Compute
		switch {
		case m.mask(d)&region == 0:
			keep += compute
		case compute >= shape.Compute:
			return 0, false
		default:
			wait += compute
		}
	}
	return wait, keep+shape.Compute <= m.Compute
}

// rehide hides the free published devices in the cordoned part of a GPU: all of them when the cordon begins, later those whose claims end.
func (t *turn) rehide() {
	for _, g := range t.gpus {
		c, ok := t.cordons[g.ID]
		if !ok || g.changed {
			continue
		}
		o := Order{GPU: g.ID, Reason: "hidden until the GPU is empty: enough devices of these shapes are free elsewhere"}
		if c.drain {
			o.Reason = fmt.Sprintf("hidden until %s fits: the oldest of %d that wait is %s old", g.Model.Shapes[c.shape].Name,
				t.lack.waiting[c.shape], t.state.Now.Sub(t.lack.oldest[c.shape]).Round(time.Second))
		}
		for _, d := range g.devices {
			urgent := t.lack.served[d.Shape] > 0 && t.free[d.Shape] <= t.lack.served[d.Shape]
			if !d.Busy && !d.Hidden && g.Model.mask(d)&c.region != 0 && !urgent {
				o.Hide = append(o.Hide, d)
				t.free[d.Shape]--
			}
		}
		if o.Hide != nil {
			t.order(g, o)
		}
	}
}
