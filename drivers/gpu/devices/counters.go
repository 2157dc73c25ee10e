package devices

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/gpu/inventory"
)

// counterSetName is the counter set of one GPU.
func counterSetName(g *inventory.GPU) string { return fmt.Sprintf("gpu-%d", g.Minor) }

// engine is a part of a GPU, besides its memory slices, that MIG placements share.
type engine struct {
	counter  string
	capacity resourceapi.QualifiedName
	of       func(inventory.Profile) int
}

// engines are all kinds of engine.
var engines = []engine{
	{"multiprocessors", CapMultiprocessors, func(p inventory.Profile) int { return p.Multiprocessors }},
	{"copy-engines", CapCopyEngines, func(p inventory.Profile) int { return p.CopyEngines }},
	{"decoders", CapDecoders, func(p inventory.Profile) int { return p.Decoders }},
	{"encoders", CapEncoders, func(p inventory.Profile) int { return p.Encoders }},
	{"jpeg-engines", CapJPEGEngines, func(p inventory.Profile) int { return p.JPEGEngines }},
	{"ofa-engines", CapOFAEngines, func(p inventory.Profile) int { return p.OFAEngines }},
}

// total is how many of an engine a GPU has: the number that the largest combination of one profile can hold. NVML reports how many
// instances of a profile fit on an empty GPU.
func (e engine) total(g *inventory.GPU) int {
	total := 0
	for _, p := range g.MIG.Profiles {
		total = max(total, e.of(p)*max(p.MaxInstances, 1))
	}
	return total
}

func memorySlice(i int) string { return fmt.Sprintf("memory-slice-%d", i) }

// profileSlots is the counter that limits a profile to the number of instances that the hardware allows (1g.5gb+me: one).
func profileSlots(p inventory.Profile) string { return fmt.Sprintf("profile-%d", p.ID) }

// limited reports whether memory slices alone would allow more instances of a profile than the hardware does. The profile's own
// counter then sets the limit.
func limited(p inventory.Profile) bool { return p.MaxInstances < disjoint(p.Placements) }

// disjoint is how many of the placements fit side by side; NVML lists them in ascending order of start.
func disjoint(placements []inventory.Placement) int {
	n, end := 0, 0
	for _, p := range placements {
		if p.Start >= end {
			n, end = n+1, p.Start+p.Size
		}
	}
	return n
}

func counter(value int64) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(value, resource.DecimalSI)}
}

// wholeCounter is the single counter of a GPU that is offered in several forms without MIG: each form takes the whole GPU.
const wholeCounter = "gpu"

// exclusive reports whether some of a GPU's devices exclude each other, so that the scheduler needs counters. A GPU that is one
// device, or whose MIG placements can all exist at once, needs none.
func exclusive(all []*Device) bool {
	if len(all) < 2 {
		return false
	}
	var placements []inventory.Placement
	for _, d := range all {
		if d.Form != MIG {
			return true
		}
		placements = append(placements, d.Placement)
	}
	slices.SortFunc(placements, func(a, b inventory.Placement) int { return cmp.Compare(a.Start, b.Start) })
	if disjoint(placements) < len(placements) {
		return true
	}
	return len(scarce(all[0].GPU, all)) > 0
}

// counterSet is the counter set of a GPU: its memory slices, and only those other counters without which parts would be allocated
// twice. The scheduler compares every counter of every set of a node for each device that it considers.
func counterSet(g *inventory.GPU, all []*Device) resourceapi.CounterSet {
	counters := map[string]resourceapi.Counter{}
	set := resourceapi.CounterSet{Name: counterSetName(g), Counters: counters}
	if !slices.ContainsFunc(all, func(d *Device) bool { return d.Form == MIG }) {
		counters[wholeCounter] = counter(1)
		return set
	}
	for i := range g.MIG.MemorySlices {
		counters[memorySlice(i)] = counter(1)
	}
	for name, total := range scarce(g, all) {
		if len(counters) < resourceapi.ResourceSliceMaxCountersPerCounterSet {
			counters[name] = counter(int64(total))
		}
	}
	return set
}

// scarce are the counters that placements need besides memory slices, with their totals. They are those of profiles of which the
// hardware allows fewer instances than would fit (1g.5gb+me: one), and those of engines that would still run out.
func scarce(g *inventory.GPU, all []*Device) map[string]int {
	out, capped := map[string]int{}, map[int]int{}
	for _, d := range all {
		if d.Form == MIG && limited(d.Profile) {
			capped[d.Profile.ID] = d.Profile.MaxInstances
			out[profileSlots(d.Profile)] = d.Profile.MaxInstances
		}
	}
	for _, e := range engines {
		if total := e.total(g); most(all, e.of, capped) > total {
			out[e.counter] = total
		}
	}
	return out
}

// most is how much of an engine MIG placements that fit side by side could take, given their memory slices and the limits of the
// profiles in capped.
func most(all []*Device, of func(inventory.Profile) int, capped map[int]int) int {
	byStart, end := map[int][]*Device{}, 0
	for _, d := range all {
		if d.Form == MIG {
			byStart[d.Placement.Start] = append(byStart[d.Placement.Start], d)
			end = max(end, d.Placement.Start+d.Placement.Size)
		}
	}
	left, known := maps.Clone(capped), map[string]int{}
	var from func(start int) int
	from = func(start int) int {
		if start >= end {
			return 0
		}
		key := fmt.Sprint(start, left)
		if best, ok := known[key]; ok {
			return best
		}
		best := from(start + 1)
		for _, d := range byStart[start] {
			n, isCapped := left[d.Profile.ID]
			if isCapped && n == 0 {
				continue
			}
			if isCapped {
				left[d.Profile.ID]--
			}
			best = max(best, of(d.Profile)+from(start+d.Placement.Size))
			if isCapped {
				left[d.Profile.ID]++
			}
		}
		known[key] = best
		return best
	}
	return from(0)
}

// multiprocessors are all that MIG can give out of a GPU.
func multiprocessors(g *inventory.GPU) int {
	most := 0
	for _, p := range g.MIG.Profiles {
		most = max(most, p.Multiprocessors*max(p.MaxInstances, 1))
	}
	return most
}

// draw is a device's consumption of its GPU's counters: a placement takes its memory slices and engines, every other form takes
// everything.
func draw(set resourceapi.CounterSet, d *Device) []resourceapi.DeviceCounterConsumption {
	counters := make(map[string]resourceapi.Counter, len(set.Counters))
	take := func(name string, n int) {
		if _, counted := set.Counters[name]; counted && n > 0 {
			counters[name] = counter(int64(n))
		}
	}
	if d.Form != MIG {
		maps.Copy(counters, set.Counters)
	} else {
		for i := range d.Placement.Size {
			take(memorySlice(d.Placement.Start+i), 1)
		}
		for _, e := range engines {
			take(e.counter, e.of(d.Profile))
		}
		take(profileSlots(d.Profile), 1)
	}
	return []resourceapi.DeviceCounterConsumption{{CounterSet: set.Name, Counters: counters}}
}

// IsMemorySlice reports whether a counter is one memory slice of a GPU. Two placements that both use it overlap.
func IsMemorySlice(counter string) bool { return strings.HasPrefix(counter, "memory-slice-") }
