package planner

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// rate adds the pods that arrived to the rates by shape.
func (p *Planner) rate(s State) {
	if len(p.rates) != len(s.Limits) {
		p.rates = make([]float64, len(s.Limits))
	}
	average := p.options.Average.Seconds()
	fade := math.Exp(-s.Now.Sub(p.rated).Seconds() / average)
	for i := range p.rates {
		p.rates[i] *= fade
		if i < len(s.Arrived) {
			p.rates[i] += float64(s.Arrived[i]) / average
		}
	}
	p.rated = s.Now
}

// reserve is how many devices of a shape are to be free for pods that are not there yet: those that arrive during Lead, and two
// standard deviations.
func (p *Planner) reserve(shape int, l Limits) int {
	x := p.rates[shape] * p.options.Lead.Seconds()
	return max(l.Min, min(l.Max, int(math.Ceil(x+2*math.Sqrt(x)))))
}

// lack is the unmet demand of waiting pods, beyond the devices that are free or come.
type lack struct {
	waiting []int // pods by shape
	// pods by shape: positive where pods wait for a cut that may be made for them, negative where devices are spare.
	pods    []int
	oldest  []time.Time // by shape: of the pods that wait
	turn    []int       // by shape: whose turn it is, the lowest first
	tenants [][]string  // by shape: the namespaces of pods, in turn
	// urgent are the pods of the highest priority that lack a device, served those that have one free or coming, by shape. They are
	// empty where all pods have the same priority.
	urgent, served []int
}

// lacking gives devices to pods, the namespaces in turn, each with its oldest first. Of pods that get none, as many of a shape count for
// each namespace as it may have further cuts in progress, so that none can take all GPUs by many requests. Each shape counts by itself: no
// GPU may be free for a large one, and pods of small ones do not wait for that.
func (p *Planner) lacking(s State, free, coming []int) lack {
	n := len(free)
	l := lack{waiting: make([]int, n), pods: make([]int, n), oldest: make([]time.Time, n), turn: make([]int, n), tenants: make([][]string, n)}
	running := map[string]int{}
	for _, namespace := range p.cuts {
		running[namespace]++
	}
	type kind struct {
		namespace string
		shape     int
	}
	counted := map[kind]int{}
	left := make([]int, n)
	for i := range left {
		left[i] = free[i] + coming[i]
		l.turn[i] = math.MaxInt
	}
	order := inTurn(s.Waiting)
	differ := len(order) > 0 && order[0].Priority != order[len(order)-1].Priority
	l.urgent, l.served = make([]int, n), make([]int, n)
	for turn, w := range order {
		urgent := 0
		if differ && w.Priority == order[0].Priority {
			urgent = 1
		}
		if w.Shape < 0 || w.Shape >= n || len(w.Beside) > 0 {
			continue
		}
		l.waiting[w.Shape]++
		if l.oldest[w.Shape].IsZero() || w.Since.Before(l.oldest[w.Shape]) {
			l.oldest[w.Shape] = w.Since
		}
		if left[w.Shape] > 0 {
			left[w.Shape]--
			l.served[w.Shape] += urgent
			continue
		}
		k := kind{w.Namespace, w.Shape}
		if running[w.Namespace]+counted[k] >= p.options.Cuts {
			continue
		}
		counted[k]++
		l.pods[w.Shape]++
		l.urgent[w.Shape] += urgent
		l.turn[w.Shape] = min(l.turn[w.Shape], turn)
		l.tenants[w.Shape] = append(l.tenants[w.Shape], w.Namespace)
	}
	for i := range left {
		if l.waiting[i] < free[i]+coming[i] {
			l.pods[i] = -left[i]
		}
	}
	return l
}

// inTurn orders pods by priority. Those of the same priority are ordered by age within each namespace, and the namespaces in turn.
func inTurn(waiting []Waiting) []Waiting {
	type queued struct {
		Waiting
		place int // among those of its namespace
	}
	sorted := slices.Clone(waiting)
	slices.SortStableFunc(sorted, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	type queue struct {
		namespace string
		priority  int32
	}
	places := map[queue]int{}
	all := make([]queued, len(sorted))
	for i, w := range sorted {
		q := queue{w.Namespace, w.Priority}
		all[i] = queued{w, places[q]}
		places[q]++
	}
	slices.SortStableFunc(all, func(a, b queued) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.place, b.place))
	})
	for i := range all {
		sorted[i] = all[i].Waiting
	}
	return sorted
}
