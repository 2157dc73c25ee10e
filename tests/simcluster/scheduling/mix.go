package scheduling

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/planner"
)

// mixed are the shapes of ten pods in turn: small, medium, large and whole in 5:2:2:1, as indices of mixShapes.
var mixed = [...]int{0, 1, 0, 2, 0, 3, 0, 1, 0, 2}

// mixShapes are the shapes of mixed rows, of an H100.
var mixShapes = [...]string{"1g.10gb", "2g.20gb", "3g.40gb", wholeShape}

const (
	wholeShape = "whole"
	// turns is how many decisions of the planner a day has. Between two of them a hundredth of the pods end, as in six seconds where they
	// run for ten minutes.
	turns   = 600
	between = 6 * time.Second
)

// claim is the claim of the i-th pod of a mixed row. classes: it requests the class of its profile.
func (d *day) claim(name string, i int, classes bool) *resourceapi.ResourceClaim {
	shape := mixShapes[d.wanted[i%len(d.wanted)]]
	if shape == wholeShape {
		return newClaim(name, classWhole, "", 1)
	}
	if classes {
		return newClaim(name, classProfile+shape, "", 1)
	}
	claim := newClaim(name, classMIG, "", 1)
	claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: ofProfile(shape)}}}
	return claim
}

// day is a cluster after some time with pods of mixed shapes, whose GPUs' layouts the planner decided. It is the planner of the
// controller; its orders are carried out at once.
type day struct {
	machine *Machine
	gpus    []planner.GPU // those of a node after each other
	running []place
	used    int // compute slices
	busy    []int
	// wanted are the shapes of pods in turn: of mixed those of which devices are free. On a full cluster whole GPUs are not.
	wanted []int
}

// place is a device in use.
type place struct{ gpu, shape, start int }

// newDay plays a day of a cluster in which a part of all compute slices is in use. Its reserves have a floor, so that pods find a device of
// each shape: 10 of the smallest and 2 whole GPUs for 64 nodes.
func newDay(m *Machine, nodes int, part float64) *day {
	model := mixModel(m.node.GPUs[0])
	d := &day{machine: m, busy: make([]int, nodes)}
	perNode := len(m.node.GPUs)
	for i := range nodes * perNode {
		d.gpus = append(d.gpus, planner.GPU{ID: fmt.Sprintf("%06d", i), Node: nodeName(i / perNode), Model: model,
			Devices: []planner.Device{{Shape: len(mixShapes) - 1}}})
	}
	floor := max(nodes/32, 1)
	limits := make([]planner.Limits, len(mixShapes))
	for _, shape := range mixed {
		limits[shape].Min += floor
		limits[shape].Max = 64
	}
	policy, random := planner.New(planner.Options{}), rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same day in every run
	now := time.Unix(0, 0)
	var waiting []planner.Waiting
	target := int(part * float64(model.Compute*len(d.gpus)))
	asked, next := 0, 0
	for range turns {
		now = now.Add(between)
		arrived := make([]int, len(mixShapes))
		d.end(random)
		for asked = d.used + slicesOfAll(model, waiting); ; next++ {
			shape := mixed[next%len(mixed)]
			if asked += model.Shapes[shape].Compute; asked > target {
				break
			}
			waiting = append(waiting, planner.Waiting{Shape: shape, Since: now, Namespace: namespace})
			arrived[shape]++
		}
		waiting = slices.DeleteFunc(waiting, func(w planner.Waiting) bool { return d.place(w.Shape) })
		for _, order := range policy.Plan(planner.State{Now: now, GPUs: d.gpus, Waiting: waiting, Arrived: arrived, Limits: limits}) {
			d.carryOut(order, now)
		}
	}
	free := d.free()
	for _, shape := range mixed {
		if free[shape] > 1 {
			d.wanted = append(d.wanted, shape)
		}
	}
	return d
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

func slicesOfAll(m *planner.Model, waiting []planner.Waiting) int {
	sum := 0
	for _, w := range waiting {
		sum += m.Shapes[w.Shape].Compute
	}
	return sum
}

// mixModel describes a GPU to the planner.
func mixModel(g *inventory.GPU) *planner.Model {
	m := &planner.Model{}
	size := 0
	for _, p := range g.MIG.Profiles {
		m.Compute = max(m.Compute, p.Slices)
		for _, at := range p.Placements {
			size = max(size, at.Start+at.Size)
		}
	}
	for _, name := range mixShapes[:len(mixShapes)-1] {
		p := profileOf(g, name)
		s := planner.Shape{Name: name, Compute: p.Slices, Size: p.Placements[0].Size}
		for _, at := range p.Placements {
			s.Starts = append(s.Starts, at.Start)
		}
		m.Shapes = append(m.Shapes, s)
	}
	m.Shapes = append(m.Shapes, planner.Shape{Name: wholeShape, Compute: m.Compute, Size: size, Starts: []int{0}})
	return m
}

func profileOf(g *inventory.GPU, name string) inventory.Profile {
	at := slices.IndexFunc(g.MIG.Profiles, func(p inventory.Profile) bool { return p.Name == name })
	if at < 0 {
		panic("the machine has no MIG profile " + name) // a mistake in this package: its rows are of an H100
	}
	return g.MIG.Profiles[at]
}

// end ends a hundredth of the pods.
func (d *day) end(random *rand.Rand) {
	d.running = slices.DeleteFunc(d.running, func(p place) bool {
		if random.IntN(100) > 0 {
			return false
		}
		g := &d.gpus[p.gpu]
		g.Devices[indexOf(g.Devices, p.shape, p.start)].Busy = false
		compute := g.Model.Shapes[p.shape].Compute
		d.used -= compute
		d.busy[p.gpu/len(d.machine.node.GPUs)] -= compute
		return true
	})
}

func indexOf(all []planner.Device, shape, start int) int {
	return slices.IndexFunc(all, func(v planner.Device) bool { return v.Shape == shape && v.Start == start })
}

// place takes the first free device of the emptiest node, as kube-scheduler does.
func (d *day) place(shape int) bool {
	best, at := -1, 0
	perNode := len(d.machine.node.GPUs)
	for i := range d.gpus {
		if best >= 0 && d.busy[i/perNode] >= d.busy[best/perNode] {
			continue
		}
		free := slices.IndexFunc(d.gpus[i].Devices, func(v planner.Device) bool { return v.Shape == shape && !v.Busy && !v.Hidden })
		if free >= 0 {
			best, at = i, free
		}
	}
	if best < 0 {
		return false
	}
	g := &d.gpus[best]
	g.Devices[at].Busy = true
	compute := g.Model.Shapes[shape].Compute
	d.used += compute
	d.busy[best/perNode] += compute
	d.running = append(d.running, place{best, shape, g.Devices[at].Start})
	return true
}

func (d *day) carryOut(o planner.Order, now time.Time) {
	i := slices.IndexFunc(d.gpus, func(g planner.GPU) bool { return g.ID == o.GPU })
	g := &d.gpus[i]
	if o.Layout != nil {
		g.Devices, g.Changed = slices.Clone(o.Layout), now
		for k := range g.Devices {
			g.Devices[k].Hidden = false
		}
	}
	for _, hidden := range o.Hide {
		g.Devices[indexOf(g.Devices, hidden.Shape, hidden.Start)].Hidden = true
	}
	for _, shown := range o.Show {
		g.Devices[indexOf(g.Devices, shown.Shape, shown.Start)].Hidden = false
	}
}

// of calls do with each device of a node, and its name.
func (d *day) of(node int, do func(g *inventory.GPU, v planner.Device, name string)) {
	for i, g := range d.machine.node.GPUs {
		for _, v := range d.gpus[node*len(d.machine.node.GPUs)+i].Devices {
			name := devices.WholeName(g)
			if shape := mixShapes[v.Shape]; shape != wholeShape {
				name = devices.MIGName(g, profileOf(g, shape), v.Start)
			}
			do(g, v, name)
		}
	}
}

// pools is what gpu-plugin publishes on a node.
func (d *day) pools(node int) []pool {
	o := devices.Options{Static: map[string][]devices.Instance{}, ByDemand: map[string]devices.Layout{}}
	for _, g := range d.machine.node.GPUs {
		o.ByDemand[g.UUID] = devices.Layout{}
	}
	d.of(node, func(g *inventory.GPU, v planner.Device, name string) {
		layout := o.ByDemand[g.UUID]
		if shape := mixShapes[v.Shape]; shape != wholeShape {
			layout.Instances = append(layout.Instances, devices.Placed{Profile: shape, Start: v.Start})
			o.Static[g.UUID] = append(o.Static[g.UUID], devices.Instance{ProfileID: profileOf(g, shape).ID, Start: v.Start})
		}
		if v.Hidden && !v.Busy {
			layout.Withdrawn = append(layout.Withdrawn, name)
		}
		o.ByDemand[g.UUID] = layout
	})
	return []pool{{driver: devices.Driver, name: "gpu", slices: devices.NewPool(d.machine.node, o).Slices(nil)}}
}

// given are the devices of a node that pods have, in a pool of that name.
func (d *day) given(node int, pool string) []unit {
	var out []unit
	d.of(node, func(_ *inventory.GPU, v planner.Device, name string) {
		if v.Busy {
			out = append(out, unit{driver: devices.Driver, pool: pool, device: name})
		}
	})
	return out
}

// free counts the devices that are published and free, by shape.
func (d *day) free() []int {
	free := make([]int, len(mixShapes))
	for i := range d.gpus {
		for _, v := range d.gpus[i].Devices {
			if !v.Busy && !v.Hidden {
				free[v.Shape]++
			}
		}
	}
	return free
}

// batch is how many pods can be bound at a time: one device of each shape is left for the pod that runs first.
func (d *day) batch() int {
	free := d.free()
	for n := 0; ; n++ {
		shape := d.wanted[n%len(d.wanted)]
		if free[shape] == 1 {
			return n
		}
		free[shape]--
	}
}
