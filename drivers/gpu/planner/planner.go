// Package planner decides which MIG layout each GPU of a pool publishes, from the pods that wait and the devices that are free.
//
// A GPU publishes one layout at a time, as devices without counters, so that a scheduler considers no alternatives. The planner
// changes layouts for pods that wait:
//
//   - Show: devices that were hidden are offered again, on the fullest GPU that hides the shape.
//   - Recut: the free part of a GPU gets another layout while instances in use stay. Over all GPUs and all maximal layouts beside their
//     instances in use, the best is taken: slices for pods that wait, less for reserves, minus slices taken from others.
//   - Reserve: of each shape some devices stay free, by the arrivals of the last ten minutes, between the administrator's bounds.
//   - Pack: free devices of the emptiest GPUs are hidden while there are plenty, so that these GPUs become empty as a whole.
//   - Drain: for pods of large shapes that have waited for long, the GPU that has least to wait for is hidden until it is free.
//   - Together: devices that must be of one GPU are kept, shown or cut on one.
//
// No layout is changed by a timer: two small instances become a larger one when a pod or a reserve wants it. A Planner does nothing by
// itself: its caller gives it the state, and carries out the orders.
package planner

import (
	"slices"
	"time"
)

// Shape is a kind of device: a MIG profile, or the whole GPU.
type Shape struct {
	Name string
	// Compute and Size are its compute and memory slices: those of the GPU for a whole one.
	Compute, Size int
	// Starts are the memory slices at which it may begin; a model that lacks the shape has none.
	Starts []int
	// Max is how many a GPU can have, 0 for as many as fit: one of "1g.10gb+me".
	Max int
}

// Model is a kind of GPU. All models of a State have the same shapes in the same order.
type Model struct {
	Shapes  []Shape
	Compute int // slices
}

// Device is a device of a GPU's layout.
type Device struct {
	Shape, Start int  // an index of Model.Shapes, and the memory slice at which it begins
	Busy         bool // a claim has it
	Hidden       bool // it is not published
	// Taken: a claim has it, or has had it since the last call.
	Taken bool
}

// at reports whether another device is of the same shape at the same place.
func (d Device) at(other Device) bool { return d.Shape == other.Shape && d.Start == other.Start }

// GPU is a GPU as it is published.
type GPU struct {
	ID, Node string
	Model    *Model
	Devices  []Device
	// Changing are the devices that appear when the change in progress ends. It is nil where none is.
	Changing []Device
	// Changed is when its layout was changed the last time.
	Changed time.Time
	// Pinned GPUs get no orders.
	Pinned bool
}

// Waiting is a pod that waits for a device of a shape. A pod that wants several devices is there several times.
type Waiting struct {
	Shape int
	// Beside are the shapes of further devices that must be of the same GPU.
	Beside    []int
	Since     time.Time
	Namespace string
	// Priority is the pod's: pods of a higher one get devices, and cuts, first.
	Priority int32
}

// Limits are the administrator's bounds for a shape, in devices of all GPUs together.
type Limits struct {
	Min, Max int // of the reserve
	Ceiling  int // of all devices of the shape that cuts for it may lead to; 0 for none
}

// State is all that a decision depends on.
type State struct {
	Now     time.Time
	GPUs    []GPU
	Waiting []Waiting
	Arrived []int    // pods by shape since the last call
	Limits  []Limits // by shape
}

// Order is a change of one GPU. Either Layout is there, or Hide or Show.
type Order struct {
	GPU string
	// Layout is the new layout, whole: devices in use are in it.
	Layout []Device
	// Hide and Show are devices of the present layout.
	Hide, Show []Device
	// Reason explains the order to an administrator.
	Reason string
	// Namespace is the namespace of the pod for which the GPU is cut, empty where it is cut for a reserve.
	Namespace string
}

// Options tune the policy. The zero value of a field is its default.
type Options struct {
	// Average is over which time arrivals are averaged; 10 minutes.
	Average time.Duration
	// Lead is for how long the reserve lasts at that rate; 6 seconds, twice the time of a cut.
	Lead time.Duration
	// Settle is how long a layout stays before it is changed for a reserve; 1 minute. For pods it is changed at once.
	Settle time.Duration
	// DrainAfter is how long a pod of a large shape waits before a GPU is drained for it; 1 minute.
	DrainAfter time.Duration
	// Drains is how many GPUs are drained for a shape at a time; 8.
	Drains int
	// PackEvery is the time between two rounds of packing, each of PackGPUs; 2 seconds, 8 GPUs.
	PackEvery time.Duration
	PackGPUs  int
	// Cuts is how many cuts a namespace may have in progress; 8.
	Cuts int
	// Moves is how many orders one call returns at most for shapes that lack devices; 32.
	Moves int
}

func (o Options) withDefaults() Options {
	duration := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	number := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	duration(&o.Average, 10*time.Minute)
	duration(&o.Lead, 6*time.Second)
	duration(&o.Settle, time.Minute)
	duration(&o.DrainAfter, time.Minute)
	duration(&o.PackEvery, 2*time.Second)
	number(&o.Drains, 8)
	number(&o.PackGPUs, 8)
	number(&o.Cuts, 8)
	number(&o.Moves, 32)
	return o
}

// Planner stores between calls the number of arrived pods, the reasons for hidden devices, and the pods for which GPUs are cut. Its
// memory only makes its decisions better: a new one goes on from any state.
type Planner struct {
	options Options
	rates   []float64 // pods a second, by shape
	rated   time.Time
	packed  time.Time
	cordons map[string]cordon   // by GPU
	cuts    map[string]string   // GPU: the namespace that it is cut for
	vain    map[string]vainCuts // by GPU
	layouts map[string][]layout // by model and devices in use
}

// cordon is why free devices of a GPU are hidden.
type cordon struct {
	region uint64 // memory slices
	shape  int    // the shape that a drained GPU is for
	drain  bool   // else it is packed
}

// vainCuts are a GPU's latest cuts of whose new devices a claim has taken none.
type vainCuts struct {
	count   int
	last    time.Time
	devices []Device // of the last cut
	// ordered are the new devices of a cut in progress. It counts once they are there: its order may not have been written, because the
	// API server was away, or may have been taken back.
	ordered []Device
}

// vainFree is how many vain cuts a GPU may have in a row without a pause between them, vainLongest bounds the pause. Without it, pods
// that want shapes that exclude each other, and that no scheduler places, would have a GPU cut back and forth for ever.
const (
	vainFree    = 2
	vainLongest = time.Hour
)

// after returns the cuts with the one in progress, if the state of the GPU shows how it ended.
func (v vainCuts) after(g *gpu, now time.Time) vainCuts {
	if v.ordered != nil && g.Changing == nil {
		missing := func(d Device) bool { return !slices.ContainsFunc(g.devices, d.at) }
		if !slices.ContainsFunc(v.ordered, missing) {
			v.count, v.last, v.devices = v.count+1, now, v.ordered
		}
		v.ordered = nil
	}
	if slices.ContainsFunc(g.devices, v.served) {
		return vainCuts{ordered: v.ordered}
	}
	return v
}

// served reports whether a claim has taken a device that the last of the cuts made.
func (v vainCuts) served(d Device) bool {
	return (d.Busy || d.Taken) && slices.ContainsFunc(v.devices, d.at)
}

// pause is how long the GPU is not cut after the last of its vain cuts: Settle, twice as long after each further one.
func (v vainCuts) pause(settle time.Duration) time.Duration {
	if v.count < vainFree {
		return 0
	}
	return min(vainLongest, settle<<min(v.count-vainFree, 16))
}

// New returns a Planner without memory.
func New(o Options) *Planner {
	return &Planner{options: o.withDefaults(), cordons: map[string]cordon{}, cuts: map[string]string{}, vain: map[string]vainCuts{},
		layouts: map[string][]layout{}}
}

// Plan returns the orders for a state, at most one for each GPU. It does not change the state. Call it about twice a second.
func (p *Planner) Plan(s State) []Order {
	p.rate(s)
	t := p.begin(s)
	if len(t.free) == 0 {
		return nil
	}
	t.relieve()
	t.together()
	t.supply()
	if s.Now.Sub(p.packed) >= p.options.PackEvery {
		p.packed = s.Now
		t.pack()
	}
	t.drain()
	t.rehide()
	return t.orders
}
