package planner_test

import (
	"cmp"
	"container/heap"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"gpufabric.io/drivers/gpu/planner"
)

// The simulated cluster: 64 nodes of 8 H100s with NVIDIA's placements. A pod wants one device and keeps it until it ends.
const (
	nodes, perNode = 64, 8
	whole          = 3
	blind          = 300 * time.Millisecond // from an order to the withdrawal
	cutting        = 3 * time.Second        // from an order to the new devices
	showing        = time.Second            // until hidden devices are published again
)

func h100() *planner.Model {
	return &planner.Model{Compute: 7, Shapes: []planner.Shape{
		{Name: "1g.10gb", Compute: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
		{Name: "2g.20gb", Compute: 2, Size: 2, Starts: []int{0, 2, 4}},
		{Name: "3g.40gb", Compute: 3, Size: 4, Starts: []int{0, 4}},
		{Name: "whole", Compute: 7, Size: 8, Starts: []int{0}},
	}}
}

// pod is a pod of a trace. The times are since its beginning.
type pod struct {
	at, takes time.Duration
	shape     int
}

// mix returns how often each shape is wanted at a time.
type mix func(at time.Duration) [4]float64

func steady(time.Duration) [4]float64 { return [4]float64{5, 2, 2, 1} }

// jumping is by night for large pods, and by day for small ones, 90 minutes each.
func jumping(at time.Duration) [4]float64 {
	if at/(90*time.Minute)%2 == 1 {
		return [4]float64{2, 1, 2, 2}
	}
	return [4]float64{10, 3, 1, 0.2}
}

// trace makes the pods of some hours that fill the cluster to load: exponential times, 600 s on average.
func trace(seed uint64, wanted mix, load float64, length time.Duration) []pod {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a simulation
	shapes := h100().Shapes
	var pods []pod
	for at := time.Duration(0); at < length; {
		m := wanted(at)
		total, slices := 0.0, 0.0
		for s, share := range m {
			total += share
			slices += share * float64(shapes[s].Compute)
		}
		pick, s := random.Float64()*total, 0
		for pick -= m[0]; pick >= 0; pick -= m[s] {
			s++
		}
		pods = append(pods, pod{at: at, shape: s, takes: time.Duration(random.ExpFloat64() * 600 * float64(time.Second))})
		rate := load * nodes * perNode * 7 / (slices / total) / 600
		at += time.Duration(random.ExpFloat64() / rate * float64(time.Second))
	}
	return pods
}

// result is the outcome of a trace after its warm-up of an hour.
type result struct {
	used    float64 // compute slices in use, of all
	waits   [4][]time.Duration
	needed  float64 // pods that got a device which was cut after they came, of all
	changes float64 // cuts an hour
	aborted int     // cuts that a scheduler was faster than
}

func (r *result) wait(shape int, part float64) time.Duration {
	w := slices.Sorted(slices.Values(r.waits[shape]))
	if len(w) == 0 {
		return 0
	}
	return w[min(len(w)-1, int(part*float64(len(w))))]
}

// events is a heap of events by their time.
type events []event

type event struct {
	at    time.Duration
	order int
	do    func()
}

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].order, e[j].order)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// scheduler places a pod. It returns a function that ends it, nil where nothing is free, and when the device appeared.
type scheduler interface {
	place(shape int) (end func(), since time.Duration)
}

// cluster plays a trace.
type cluster struct {
	now     time.Duration
	events  events
	count   int
	queues  [4][]pod
	used    int
	area    float64
	last    time.Duration
	arrived []int
	fresh   int
	pods    int
	result  result
	scheduler
}

const warm = time.Hour

func (c *cluster) at(when time.Duration, do func()) {
	c.count++
	heap.Push(&c.events, event{when, c.count, do})
}

func (c *cluster) measure(change int) {
	if from := max(c.last, warm); c.now > from {
		c.area += float64(c.used) * (c.now - from).Seconds()
	}
	c.last = c.now
	c.used += change
}

// schedule gives devices to the pods that wait: within a shape by age, and across shapes the first that finds one.
func (c *cluster) schedule() {
	compute := [4]int{1, 2, 3, 7}
	order := []int{0, 1, 2, 3}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(c.oldest(a), c.oldest(b)) })
	for _, s := range order {
		for len(c.queues[s]) > 0 {
			end, since := c.place(s)
			if end == nil {
				break
			}
			p := c.queues[s][0]
			c.queues[s] = c.queues[s][1:]
			c.measure(compute[s])
			if p.at >= warm {
				c.pods++
				c.result.waits[s] = append(c.result.waits[s], c.now-p.at)
				if since > p.at {
					c.fresh++
				}
			}
			c.at(c.now+p.takes, func() {
				c.measure(-compute[s])
				end()
				c.schedule()
			})
		}
	}
}

func (c *cluster) oldest(shape int) time.Duration {
	if len(c.queues[shape]) == 0 {
		return math.MaxInt64
	}
	return c.queues[shape][0].at
}

func (c *cluster) run(pods []pod, length time.Duration) result {
	c.arrived = make([]int, 4)
	for _, p := range pods {
		c.at(p.at, func() {
			c.queues[p.shape] = append(c.queues[p.shape], p)
			c.arrived[p.shape]++
			c.schedule()
		})
	}
	for len(c.events) > 0 && c.events[0].at <= length {
		e := heap.Pop(&c.events).(event)
		c.now = e.at
		e.do()
	}
	c.now = length
	c.measure(0)
	for s, queue := range c.queues {
		for _, p := range queue {
			c.result.waits[s] = append(c.result.waits[s], length-p.at)
		}
	}
	c.result.used = c.area / (length - warm).Seconds() / (nodes * perNode * 7)
	c.result.needed = float64(c.fresh) / float64(max(c.pods, 1))
	c.result.changes /= length.Hours()
	return c.result
}

// counters is a scheduler for which every placement is open at any time, as with shared counters. It takes the placement after which
// the GPU can still hold most.
type counters struct {
	taken, compute [nodes * perNode]int
}

func (c *counters) place(shape int) (end func(), since time.Duration) {
	s := h100().Shapes[shape]
	bits, best, least := 0, -1, math.MaxInt
	for g := range c.taken {
		if c.compute[g]+s.Compute > 7 {
			continue
		}
		for _, at := range s.Starts {
			m := (1<<s.Size - 1) << at
			if c.taken[g]&m != 0 {
				continue
			}
			lost := potential(c.taken[g], c.compute[g]) - potential(c.taken[g]|m, c.compute[g]+s.Compute)
			if lost = lost*8 - c.compute[g]; lost < least {
				best, bits, least = g, m, lost
			}
		}
	}
	if best < 0 {
		return nil, 0
	}
	c.taken[best] |= bits
	c.compute[best] += s.Compute
	return func() {
		c.taken[best] &^= bits
		c.compute[best] -= s.Compute
	}, 0
}

// potential is the free space of a GPU for each shape, in slices.
func potential(taken, compute int) int {
	if v := potentials[taken][compute]; v != 0 {
		return v - 1
	}
	sum := 0
	for _, s := range h100().Shapes {
		t, c := taken, compute
		for _, at := range s.Starts {
			if m := (1<<s.Size - 1) << at; t&m == 0 && c+s.Compute <= 7 {
				t, c, sum = t|m, c+s.Compute, sum+s.Compute
			}
		}
	}
	potentials[taken][compute] = sum + 1
	return sum
}

var potentials [256][8]int // of a pure function

// planned is a cluster whose GPUs publish one layout each, which a planner changes.
type planned struct {
	*cluster
	planner *planner.Planner
	limits  []planner.Limits
	gpus    []planner.GPU
	since   [][8]time.Duration // when the device at a place appeared
	used    [nodes]int
	wrong   []string
}

func newPlanned(limits []planner.Limits) *planned {
	p := &planned{cluster: &cluster{}, planner: planner.New(planner.Options{}), limits: limits, since: make([][8]time.Duration, nodes*perNode)}
	model := h100()
	for i := range nodes * perNode {
		p.gpus = append(p.gpus, planner.GPU{ID: id(i), Model: model, Devices: []planner.Device{{Shape: whole}}})
	}
	p.scheduler = p
	p.at(0, p.tick)
	return p
}

func id(i int) string { return string([]rune{rune('A' + i/perNode), rune('a' + i%perNode)}) }

// place takes the first free device of the emptiest node, as kube-scheduler does.
func (p *planned) place(shape int) (end func(), since time.Duration) {
	best, place := -1, 0
	for i := range p.gpus {
		if best >= 0 && p.used[i/perNode] >= p.used[best/perNode] {
			continue
		}
		if at := slices.IndexFunc(p.gpus[i].Devices, func(d planner.Device) bool { return d.Shape == shape && !d.Busy && !d.Hidden }); at >= 0 {
			best, place = i, at
		}
	}
	if best < 0 {
		return nil, 0
	}
	g := &p.gpus[best]
	g.Devices[place].Busy = true
	start, compute := g.Devices[place].Start, g.Model.Shapes[shape].Compute
	p.used[best/perNode] += compute
	return func() {
		p.used[best/perNode] -= compute
		p.device(best, shape, start).Busy = false
	}, p.since[best][start]
}

func (p *planned) device(gpu, shape, start int) *planner.Device {
	i := slices.IndexFunc(p.gpus[gpu].Devices, func(d planner.Device) bool { return d.Shape == shape && d.Start == start })
	if i < 0 {
		return nil
	}
	return &p.gpus[gpu].Devices[i]
}

// tick runs the planner, and carries its orders out as a node and a controller do.
func (p *planned) tick() {
	p.at(p.now+500*time.Millisecond, p.tick)
	state := planner.State{Now: time.Unix(0, 0).Add(p.now), GPUs: p.gpus, Limits: p.limits, Arrived: slices.Clone(p.arrived)}
	clear(p.arrived)
	for s, queue := range p.queues {
		for _, w := range queue {
			state.Waiting = append(state.Waiting, planner.Waiting{Shape: s, Since: time.Unix(0, 0).Add(w.at), Namespace: "one"})
		}
	}
	for _, o := range p.planner.Plan(state) {
		i := slices.IndexFunc(p.gpus, func(g planner.GPU) bool { return g.ID == o.GPU })
		g := &p.gpus[i]
		if g.Changing != nil {
			p.wrong = append(p.wrong, "an order for a GPU that is being changed")
		}
		for _, d := range o.Hide {
			p.device(i, d.Shape, d.Start).Hidden = true
		}
		if o.Show != nil {
			g.Changing = o.Show
			p.at(p.now+showing, func() {
				g.Changing = nil
				for _, d := range o.Show {
					p.device(i, d.Shape, d.Start).Hidden = false
					p.since[i][d.Start] = p.now
				}
				p.schedule()
			})
		}
		if o.Layout != nil {
			p.cut(i, o)
		}
	}
}

func (p *planned) cut(i int, o planner.Order) {
	g := &p.gpus[i]
	p.check(g, o)
	g.Changing = []planner.Device{}
	for _, d := range o.Layout {
		if p.device(i, d.Shape, d.Start) == nil {
			g.Changing = append(g.Changing, d)
		}
	}
	stays := func(d planner.Device) bool {
		return slices.ContainsFunc(o.Layout, func(l planner.Device) bool { return l.Shape == d.Shape && l.Start == d.Start })
	}
	p.at(p.now+blind, func() {
		if slices.ContainsFunc(g.Devices, func(d planner.Device) bool { return d.Busy && !stays(d) }) {
			p.result.aborted++
			g.Changing = nil
			return
		}
		g.Devices = slices.DeleteFunc(g.Devices, func(d planner.Device) bool { return !stays(d) })
		for k := range g.Devices {
			g.Devices[k].Hidden = false
		}
		p.at(p.now+cutting-blind, func() {
			for _, d := range g.Changing {
				g.Devices = append(g.Devices, d)
				p.since[i][d.Start] = p.now
			}
			slices.SortFunc(g.Devices, func(a, b planner.Device) int { return cmp.Compare(a.Start, b.Start) })
			g.Changing, g.Changed = nil, time.Unix(0, 0).Add(p.now)
			p.result.changes++
			p.schedule()
		})
	})
}

// check records orders that a GPU could not carry out.
func (p *planned) check(g *planner.GPU, o planner.Order) {
	taken, compute := uint(0), 0
	for _, d := range o.Layout {
		s := g.Model.Shapes[d.Shape]
		m := uint(1<<s.Size-1) << d.Start
		if taken&m != 0 || !slices.Contains(s.Starts, d.Start) {
			p.wrong = append(p.wrong, "devices that overlap, or have no such place")
		}
		taken |= m
		compute += s.Compute
	}
	if compute > g.Model.Compute || bits.Len(taken) > 8 {
		p.wrong = append(p.wrong, "more slices than the GPU has")
	}
	for _, d := range g.Devices {
		if d.Busy && !slices.ContainsFunc(o.Layout, func(l planner.Device) bool { return l.Shape == d.Shape && l.Start == d.Start }) {
			p.wrong = append(p.wrong, "a device in use goes")
		}
	}
}
