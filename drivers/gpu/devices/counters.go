package devices

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/gpu/inventory"
)

// counterSetName is the counter set of one GPU.
func counterSetName(g *inventory.GPU) string { return fmt.Sprintf("gpu-%d", g.Minor) }

// engines are the counters beside memory, with each profile's share of them.
var engines = []struct {
	counter string
	of      func(inventory.Profile) int
}{
	{"multiprocessors", func(p inventory.Profile) int { return p.Multiprocessors }},
	{"copy-engines", func(p inventory.Profile) int { return p.CopyEngines }},
	{"decoders", func(p inventory.Profile) int { return p.Decoders }},
	{"encoders", func(p inventory.Profile) int { return p.Encoders }},
	{"jpeg-engines", func(p inventory.Profile) int { return p.JPEGEngines }},
	{"ofa-engines", func(p inventory.Profile) int { return p.OFAEngines }},
}

func memorySlice(i int) string { return fmt.Sprintf("memory-slice-%d", i) }

// profileSlots is the counter that holds a profile to the number of instances the hardware allows (1g.5gb+me: one).
func profileSlots(p inventory.Profile) string { return fmt.Sprintf("profile-%d", p.ID) }

// limited says whether placements alone would let more instances stand than the hardware does: each needs memory slices of its own, and what
// they leave open the profile's own counter closes.
func limited(p inventory.Profile) bool { return p.MaxInstances < disjoint(p.Placements) }

// disjoint is how many of the placements can stand side by side; NVML lists them in ascending order of start.
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

// counterSet is everything a GPU has. An engine's total is what the largest combination of one profile may hold: NVML says how many instances of
// a profile fit on an empty GPU.
func counterSet(g *inventory.GPU) resourceapi.CounterSet {
	counters := map[string]resourceapi.Counter{"memory": {Value: bytesOf(g.MemoryBytes)}}
	if g.MIG != nil {
		for _, e := range engines {
			total := 0
			for _, p := range g.MIG.Profiles {
				total = max(total, e.of(p)*max(p.MaxInstances, 1))
			}
			if total > 0 {
				counters[e.counter] = counter(int64(total))
			}
		}
		for i := range g.MIG.MemorySlices {
			counters[memorySlice(i)] = counter(1)
		}
		for _, p := range g.MIG.Profiles {
			if limited(p) && len(counters) < resourceapi.ResourceSliceMaxCountersPerCounterSet {
				counters[profileSlots(p)] = counter(int64(p.MaxInstances))
			}
		}
	}
	return resourceapi.CounterSet{Name: counterSetName(g), Counters: counters}
}

// multiprocessors are all that MIG can hand out of a GPU.
func multiprocessors(g *inventory.GPU) int {
	most := 0
	for _, p := range g.MIG.Profiles {
		most = max(most, p.Multiprocessors*max(p.MaxInstances, 1))
	}
	return most
}

// wholeDraw takes every counter of a GPU.
func wholeDraw(set resourceapi.CounterSet) []resourceapi.DeviceCounterConsumption {
	all := make(map[string]resourceapi.Counter, len(set.Counters))
	for name, c := range set.Counters {
		all[name] = c
	}
	return []resourceapi.DeviceCounterConsumption{{CounterSet: set.Name, Counters: all}}
}

// partitionDraw takes a placement's engines and memory slices. The memory counter is bounded by the share of the memory slices that a placement
// covers: drivers round an instance's memory up for some profiles, and two that fit side by side must not be refused for the rounding.
func partitionDraw(g *inventory.GPU, p inventory.Profile, at inventory.Placement) []resourceapi.DeviceCounterConsumption {
	memory := p.MemoryBytes
	if slices := g.MIG.MemorySlices; slices > 0 {
		memory = min(memory, g.MemoryBytes/uint64(slices)*uint64(at.Size)) //nolint:gosec // counts of slices are small and positive
	}
	counters := map[string]resourceapi.Counter{"memory": {Value: bytesOf(memory)}}
	for _, e := range engines {
		if n := e.of(p); n > 0 {
			counters[e.counter] = counter(int64(n))
		}
	}
	for i := range at.Size {
		counters[memorySlice(at.Start+i)] = counter(1)
	}
	if limited(p) {
		counters[profileSlots(p)] = counter(1)
	}
	return []resourceapi.DeviceCounterConsumption{{CounterSet: counterSetName(g), Counters: counters}}
}

// IsMemorySlice says whether a counter stands for one memory slice of a GPU: two placements that both draw on it overlap.
func IsMemorySlice(counter string) bool { return strings.HasPrefix(counter, "memory-slice-") }
