package planner

import (
	"fmt"
	"slices"
)

// together serves pods that want several devices of one GPU, in turn: free ones are kept for them, hidden ones shown, or a GPU is cut.
func (t *turn) together() {
	running := map[string]int{}
	for _, namespace := range t.cuts {
		running[namespace]++
	}
	moves := 0
	for _, w := range inTurn(slices.DeleteFunc(slices.Clone(t.state.Waiting), func(w Waiting) bool { return len(w.Beside) == 0 })) {
		wanted := make([]int, len(t.need))
		if !count(wanted, append([]int{w.Shape}, w.Beside...)) || t.present(wanted) {
			continue
		}
		if moves >= t.options.Moves || running[w.Namespace] >= t.options.Cuts {
			continue
		}
		if t.showTogether(wanted, w.Namespace) || t.cutTogether(wanted, w.Namespace) {
			running[w.Namespace]++
			moves++
		}
	}
}

// count adds shapes to their numbers; false where there is no such shape.
func count(numbers, shapes []int) bool {
	for _, s := range shapes {
		if s < 0 || s >= len(numbers) {
			return false
		}
		numbers[s]++
	}
	return true
}

// has reports whether devices contain the wanted numbers.
func has(devices []Device, wanted []int, counts func(Device) bool) bool {
	left := slices.Clone(wanted)
	for _, d := range devices {
		if counts(d) {
			left[d.Shape]--
		}
	}
	return !slices.ContainsFunc(left, func(n int) bool { return n > 0 })
}

// present keeps the devices of one GPU that are free or will be made.
func (t *turn) present(wanted []int) bool {
	for _, g := range t.gpus {
		total := slices.Clone(wanted)
		for k := range g.promised {
			total[k] += g.promised[k]
		}
		if !has(slices.Concat(g.devices, g.Changing), total, func(d Device) bool { return !d.Busy && !d.Hidden }) {
			continue
		}
		t.keep(g, wanted)
		return true
	}
	return false
}

// keep leaves a GPU as it is for a pod: others do not count on its devices, and they are not hidden.
func (t *turn) keep(g *gpu, wanted []int) {
	g.changed = true
	if g.promised == nil {
		g.promised = make([]int, len(wanted))
	}
	for k, n := range wanted {
		g.promised[k] += n
		t.lack.pods[k] += n
		t.need[k] += n
		taken := min(n, t.free[k])
		t.free[k] -= taken
		t.coming[k] -= n - taken
	}
}

// showTogether offers the hidden devices of the fullest GPU that has the wanted one.
func (t *turn) showTogether(wanted []int, namespace string) bool {
	var best *gpu
	for _, g := range t.gpus {
		if g.changed || t.cordons[g.ID].drain || !has(g.devices, wanted, func(d Device) bool { return !d.Busy }) {
			continue
		}
		if best == nil || g.slices > best.slices {
			best = g
		}
	}
	if best == nil {
		return false
	}
	o := Order{GPU: best.ID, Reason: t.reasonTogether("shown", wanted), Namespace: namespace}
	for _, d := range best.devices {
		if d.Hidden && !d.Busy {
			o.Show = append(o.Show, d)
			t.gets(d.Shape)
		}
	}
	delete(t.cordons, best.ID)
	t.order(best, o)
	t.keep(best, wanted)
	return true
}

// cutTogether cuts the GPU that has room for all that is wanted and whose free devices others miss least.
func (t *turn) cutTogether(wanted []int, namespace string) bool {
	var best cut
	for _, g := range t.gpus {
		c, cordoned := t.cordons[g.ID]
		if g.changed || !t.cuttable(g) || cordoned && c.drain && t.lack.pods[c.shape] > 0 {
			continue
		}
		old, shown, idle := t.freeOf(g)
		for _, l := range t.layoutsBeside(g.Model, g.model, g.busy) {
			if !has(l.devices, wanted, func(Device) bool { return true }) || t.aboveCeiling(l.count, old) {
				continue
			}
			gain := 0.0
			for k, n := range wanted {
				gain += float64(n * g.Model.Shapes[k].Compute)
			}
			c := cut{gpu: g, layout: l, score: gain - taken*t.loses(g, shown) + inUse*float64(g.slices) - destroyed*float64(idle)}
			if t.urgent(g.Model, l.count, shown) >= 0 && c.score > best.score {
				best = c
			}
		}
	}
	if best.gpu == nil {
		return false
	}
	t.apply(best, t.reasonTogether("cut", wanted), namespace)
	t.keep(best.gpu, wanted)
	return true
}

func (t *turn) reasonTogether(verb string, wanted []int) string {
	text := verb + " for a pod that waits for devices of one GPU:"
	for k, n := range wanted {
		if n > 0 {
			text += fmt.Sprintf(" %d %s", n, t.gpus[0].Model.Shapes[k].Name)
		}
	}
	return text
}
