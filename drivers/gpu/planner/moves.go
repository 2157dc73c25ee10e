package planner

import (
	"cmp"
	"fmt"
	"slices"
)

// The worth of a recut in compute slices: those for pods count whole, and those for reserves forReserve; those taken from pods or
// reserves cost taken. A GPU with slices in use is taken before an empty one (inUse for each), and one that loses few devices before
// one that loses many (destroyed for each). Between equals the arrivals decide (forecast). The figures are those of the simulation.
const (
	forReserve = 0.3
	taken      = 0.7
	inUse      = 0.2
	destroyed  = 0.02
	forecast   = 0.01
)

// gpu is a GPU in one call of Plan.
type gpu struct {
	*GPU
	devices []Device // with the orders of this call
	busy    []Device
	slices  int    // compute slices in use
	model   string // its name
	changed bool   // it has an order, or a change in progress
	// promised are its devices, by shape, for pods that want several of one GPU.
	promised []int
}

// turn is one call of Plan.
type turn struct {
	*Planner
	state        State
	gpus         []*gpu
	byID         map[string]*gpu
	free, coming []int // devices by shape: free and published, and coming
	exist        []int // devices by shape, in use or not
	reserves     []int
	lack         lack
	need         []int // by shape: devices that pods or the reserve lack
	orders       []Order
}

func (p *Planner) begin(s State) *turn {
	n := len(s.Limits)
	t := &turn{Planner: p, state: s, byID: make(map[string]*gpu, len(s.GPUs)), free: make([]int, n), coming: make([]int, n),
		exist: make([]int, n), reserves: make([]int, n), need: make([]int, n)}
	names := map[*Model]string{}
	cuts := map[string]string{}
	cordons := map[string]cordon{}
	vain := map[string]vainCuts{}
	for i := range s.GPUs {
		g := &gpu{GPU: &s.GPUs[i], devices: s.GPUs[i].Devices}
		if len(g.Model.Shapes) != n {
			continue // another pool's
		}
		if names[g.Model] == "" {
			names[g.Model] = g.Model.name()
		}
		g.model = names[g.Model]
		hidden := false
		for _, d := range g.devices {
			t.exist[d.Shape]++
			switch {
			case d.Busy:
				g.busy = append(g.busy, Device{Shape: d.Shape, Start: d.Start})
				g.slices += g.Model.Shapes[d.Shape].Compute
			case !d.Hidden:
				t.free[d.Shape]++
			}
			hidden = hidden || d.Hidden
		}
		for _, d := range g.Changing {
			t.coming[d.Shape]++
			t.exist[d.Shape]++
		}
		g.changed = g.Pinned || g.Changing != nil
		if namespace, ok := p.cuts[g.ID]; ok && g.Changing != nil {
			cuts[g.ID] = namespace
		}
		c, ok := p.cordons[g.ID]
		if !ok && hidden && g.Changing == nil {
			c, ok = cordon{region: ^uint64(0)}, true // hidden by a planner before this one
		}
		if ok {
			cordons[g.ID] = c
		}
		if v := p.vain[g.ID].after(g, s.Now); v.count > 0 || v.ordered != nil {
			vain[g.ID] = v
		}
		t.gpus = append(t.gpus, g)
		t.byID[g.ID] = g
	}
	p.cuts, p.cordons, p.vain = cuts, cordons, vain // of GPUs that are there
	t.lack = p.lacking(s, t.free, t.coming)
	for i := range n {
		t.reserves[i] = p.reserve(i, s.Limits[i])
		t.need[i] = t.lack.pods[i] + t.reserves[i]
	}
	return t
}

// relieve ends drains for which no pod waits any more: their devices stay hidden until they are wanted.
func (t *turn) relieve() {
	for id, c := range t.cordons {
		if c.drain && !t.byID[id].changed && t.lack.pods[c.shape] <= 0 {
			t.cordons[id] = cordon{region: c.region, shape: c.shape}
		}
	}
}

// supply shows and recuts for the shapes that lack devices: first those that pods wait for, in turn, then reserves, large shapes first.
func (t *turn) supply() {
	var order []int
	for s := range t.need {
		if t.need[s] > 0 {
			order = append(order, s)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if c := cmp.Compare(t.lack.turn[a], t.lack.turn[b]); c != 0 {
			return c
		}
		return cmp.Compare(b, a)
	})
	moves := 0
	for _, s := range order {
		for t.need[s] > 0 && moves < t.options.Moves && t.allowed(s) && (t.show(s) || t.recut(s)) {
			moves++
		}
	}
}

// gets counts devices that come.
func (t *turn) gets(shape int) {
	t.coming[shape]++
	t.need[shape]--
	t.lack.pods[shape]--
	t.lack.urgent[shape] = max(0, t.lack.urgent[shape]-1)
	t.lack.tenants[shape] = t.lack.tenants[shape][min(1, len(t.lack.tenants[shape])):]
}

// show publishes hidden devices of the fullest GPU that hides the shape.
func (t *turn) show(shape int) bool {
	var best *gpu
	for id, c := range t.cordons {
		g := t.byID[id]
		if c.drain || g.changed || !slices.ContainsFunc(g.devices, func(d Device) bool { return d.Shape == shape && d.Hidden && !d.Busy }) {
			continue
		}
		if best == nil || g.slices > best.slices || g.slices == best.slices && g.ID < best.ID {
			best = g
		}
	}
	if best == nil {
		return false
	}
	o := Order{GPU: best.ID, Reason: t.reason("shown", shape), Namespace: t.namespace(shape)}
	for _, d := range best.devices {
		if d.Hidden && !d.Busy {
			o.Show = append(o.Show, d)
			t.gets(d.Shape)
		}
	}
	delete(t.cordons, best.ID)
	t.order(best, o)
	return true
}

func (t *turn) order(g *gpu, o Order) {
	g.changed = true
	if o.Namespace != "" {
		t.cuts[g.ID] = o.Namespace
	}
	t.orders = append(t.orders, o)
}

// namespace is the next namespace for whose pods of a shape a GPU may be cut, empty where only the reserve lacks devices.
func (t *turn) namespace(shape int) string {
	if t.lack.pods[shape] > 0 {
		for _, namespace := range t.lack.tenants[shape] {
			if t.running(namespace) < t.options.Cuts {
				return namespace
			}
		}
	}
	return ""
}

// allowed reports whether an order for a shape is for no namespace's pods, or for those of one that may have a further cut in progress.
func (t *turn) allowed(shape int) bool {
	return t.lack.pods[shape] <= 0 || len(t.lack.tenants[shape]) == 0 || t.namespace(shape) != ""
}

// running is the number of cuts in progress for a namespace.
func (t *turn) running(namespace string) int {
	n := 0
	for _, other := range t.cuts {
		if other == namespace {
			n++
		}
	}
	return n
}

func (t *turn) reason(verb string, shape int) string {
	name := "a device"
	if len(t.gpus) > 0 {
		name = t.gpus[0].Model.Shapes[shape].Name
	}
	if t.lack.pods[shape] > 0 {
		return fmt.Sprintf("%s for %s: %d wait, %d are free", verb, name, t.lack.waiting[shape], t.free[shape])
	}
	return fmt.Sprintf("%s for the reserve of %d of %s: %d are free", verb, t.reserves[shape], name, t.free[shape])
}

// cut is a layout that a GPU could get.
type cut struct {
	gpu    *gpu
	layout layout
	// urgent is its worth for the pods of the highest priority, where priorities differ; score its worth for all.
	urgent, score float64
}

// better reports whether a cut is worth more than another; the zero cut is worth nothing.
func (c cut) better(than cut) bool {
	if c.urgent != than.urgent {
		return c.urgent > than.urgent
	}
	return c.score > than.score
}

// recut gives the free part of a GPU the layout that is worth most, where one is worth anything.
func (t *turn) recut(shape int) bool {
	var best cut
	seen := map[string]bool{}
	for _, g := range t.gpus {
		if g.changed || len(g.Model.Shapes[shape].Starts) == 0 || t.drainedForOthers(g, shape) {
			continue
		}
		if t.lack.pods[shape] <= 0 && !g.Changed.IsZero() && t.state.Now.Sub(g.Changed) < t.options.Settle {
			continue
		}
		if !t.cuttable(g) {
			continue
		}
		alike := g.model + key(g.devices)
		if seen[alike] {
			continue
		}
		seen[alike] = true
		if c := t.bestCut(g, shape); c.better(best) {
			best = c
		}
	}
	if best.gpu == nil {
		return false
	}
	t.apply(best, t.reason("cut", shape), t.namespace(shape))
	return true
}

// cuttable reports whether a part of a GPU is free, unless earlier cuts of it did not help.
func (t *turn) cuttable(g *gpu) bool {
	if len(g.busy) == len(g.devices) && len(g.devices) > 0 {
		return false
	}
	v, ok := t.vain[g.ID]
	return !ok || t.state.Now.Sub(v.last) >= v.pause(t.options.Settle)
}

// drainedForOthers reports whether a GPU is kept for pods of another shape, which wait.
func (t *turn) drainedForOthers(g *gpu, shape int) bool {
	c, ok := t.cordons[g.ID]
	return ok && c.drain && c.shape != shape && t.lack.pods[c.shape] > 0
}

// loses returns the worth of a GPU's free devices to others, in compute slices: those that pods wait for, or that a reserve lacks then.
func (t *turn) loses(g *gpu, gone []int) float64 {
	loss := 0
	for k, n := range gone {
		if n > 0 {
			spare := t.free[k] - t.lack.waiting[k] - t.reserves[k]
			loss += g.Model.Shapes[k].Compute * max(0, min(n, n-spare))
		}
	}
	return float64(loss)
}

// freeOf counts a GPU's free devices by shape: all, those that are published, and their number.
func (t *turn) freeOf(g *gpu) (all, shown []int, number int) {
	all, shown = make([]int, len(t.need)), make([]int, len(t.need))
	for _, d := range g.devices {
		if d.Busy {
			continue
		}
		number++
		all[d.Shape]++
		if !d.Hidden {
			shown[d.Shape]++
		}
	}
	return all, shown, number
}

func (t *turn) bestCut(g *gpu, shape int) cut {
	old, shown, idle := t.freeOf(g)
	loss := t.loses(g, shown)
	if loss > 0 && t.lack.pods[shape] <= 0 {
		return cut{} // the reserve of one shape is no reason to take another's
	}
	var best cut
	for _, l := range t.layoutsBeside(g.Model, g.model, g.busy) {
		if l.count[shape] == 0 || slices.Equal(l.count, old) || t.aboveCeiling(l.count, old) {
			continue
		}
		gain, extra := 0.0, 0.0
		for k, n := range l.count {
			compute := float64(g.Model.Shapes[k].Compute)
			pods := max(t.lack.pods[k], 0)
			take := min(n, pods)
			more := min(n-take, max(t.need[k]-pods, 0))
			gain += compute * (float64(take) + forReserve*float64(more))
			extra += compute * compute * float64(n-take-more) * t.rates[k]
		}
		c := cut{gpu: g, layout: l, urgent: t.urgent(g.Model, l.count, shown)}
		c.score = gain - taken*loss + forecast*extra + inUse*float64(g.slices) - destroyed*float64(idle)
		if c.better(best) {
			best = c
		}
	}
	return best
}

// urgent is how many compute slices more pods of the highest priority get by a layout than by the devices that are there.
func (t *turn) urgent(m *Model, comes, gone []int) float64 {
	worth := 0
	for k, n := range comes {
		kept := min(t.lack.served[k], max(0, t.free[k]-gone[k])+t.coming[k]+n)
		worth += m.Shapes[k].Compute * (kept - min(t.lack.served[k], t.free[k]+t.coming[k]))
		worth += m.Shapes[k].Compute * min(t.lack.urgent[k], max(0, n-gone[k]))
	}
	return float64(worth)
}

// aboveCeiling reports whether a layout has more of a shape than the administrator allows.
func (t *turn) aboveCeiling(count, old []int) bool {
	for k, n := range count {
		if ceiling := t.state.Limits[k].Ceiling; ceiling > 0 && n > old[k] && t.exist[k]+n-old[k] > ceiling {
			return true
		}
	}
	return false
}

// apply orders a cut. Free devices that are in the new layout stay.
func (t *turn) apply(c cut, reason, namespace string) {
	g := c.gpu
	o := Order{GPU: g.ID, Reason: reason, Namespace: namespace}
	stays := func(d Device) bool {
		return slices.ContainsFunc(c.layout.devices, func(l Device) bool { return l.Shape == d.Shape && l.Start == d.Start })
	}
	for _, d := range g.devices {
		switch {
		case d.Busy:
			o.Layout = append(o.Layout, d)
			continue
		case stays(d):
			if d.Hidden {
				t.gets(d.Shape)
			}
			continue
		}
		t.exist[d.Shape]--
		if !d.Hidden {
			t.free[d.Shape]--
			t.need[d.Shape]++
			t.lack.pods[d.Shape]++
		}
	}
	v := t.vain[g.ID]
	v.ordered = nil
	for _, d := range c.layout.devices {
		o.Layout = append(o.Layout, d)
		if !slices.ContainsFunc(g.devices, func(h Device) bool { return !h.Busy && h.Shape == d.Shape && h.Start == d.Start }) {
			v.ordered = append(v.ordered, d)
			t.exist[d.Shape]++
			t.gets(d.Shape)
		}
	}
	t.vain[g.ID] = v
	if rest := (vainCuts{count: v.count + 1}).pause(t.options.Settle); rest > 0 {
		o.Reason += fmt.Sprintf("; cuts of it in vain before: %d, so it rests for %s unless a pod takes one of its new devices", v.count, rest)
	}
	slices.SortFunc(o.Layout, func(a, b Device) int { return cmp.Compare(a.Start, b.Start) })
	delete(t.cordons, g.ID)
	t.order(g, o)
}
