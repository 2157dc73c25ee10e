package devices

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpufabric.io/drivers/gpu/inventory"
)

// Pool is every device of a node, by name.
type Pool struct {
	devices map[string]*Device
	// order is the order of publication: by GPU, and within a GPU whole, shared, then MIG by size. The allocator takes the first that fits.
	order []*Device
	sets  []resourceapi.CounterSet
	// Problems are devices that could not be offered.
	Problems []error
}

// Options say how a node's GPUs are offered.
type Options struct {
	// Share is what a share of a GPU gets that asks for nothing; the zero value is a tenth of the GPU.
	Share Share
	// Profiles are the named ways to cut the node's GPUs into shares.
	Profiles []Profile
	// Static lists the MIG instances that stand on GPUs whose layout an administrator made, by GPU UUID. A GPU with an entry is offered as
	// those instances alone.
	Static map[string][]Instance
	// NoMIG offers no MIG placements on GPUs without static instances.
	NoMIG bool
}

// Instance is a MIG instance that stands: a GPU instance with one compute instance that fills it.
type Instance struct {
	ProfileID int
	Start     int
	// Held marks an instance that was made for a claim: it is removed with the claim.
	Held bool
}

// NewPool lays out the devices of a node.
func NewPool(n *inventory.Node, o Options) *Pool {
	p := &Pool{devices: map[string]*Device{}}
	for _, g := range n.GPUs {
		set := counterSet(g)
		p.sets = append(p.sets, set)
		if instances, ok := o.Static[g.UUID]; ok {
			p.addStatic(n, g, instances)
			continue
		}
		if g.CanBeWhole() {
			p.addWhole(n, g, wholeDraw(set), o)
		}
		if !g.CanBeCut() || o.NoMIG {
			if !g.CanBeWhole() {
				p.Problems = append(p.Problems, fmt.Errorf("%s is in MIG mode without instances, and GPUs are not cut on demand: nothing of it is offered; make instances by a "+
					"MIGLayout or nvidia-smi mig, or switch the mode off (nvidia-smi -i %d -mig 0) and reset the GPU", g.UUID, g.Index))
			}
			continue
		}
		for _, profile := range bySize(g.MIG.Profiles) {
			m := mouldOf(n, g, profile)
			for _, at := range profile.Placements {
				p.add(m.partition(g, profile, at))
			}
		}
	}
	return p
}

// addWhole offers the forms of a GPU that is not divided.
func (p *Pool) addWhole(n *inventory.Node, g *inventory.GPU, draw []resourceapi.DeviceCounterConsumption, o Options) {
	p.add(whole(n, g, draw))
	p.add(shared(n, g, draw, o.Share.of(g)))
	for _, profile := range o.Profiles {
		if profile.fits(g) {
			p.add(profiled(n, g, draw, profile))
		}
	}
}

// addStatic offers the instances that stand, and nothing else of that GPU.
func (p *Pool) addStatic(n *inventory.Node, g *inventory.GPU, instances []Instance) {
	for _, i := range instances {
		profile, ok := g.MIG.Profile(i.ProfileID)
		at := slices.IndexFunc(profile.Placements, func(at inventory.Placement) bool { return at.Start == i.Start })
		if !ok || at < 0 {
			p.Problems = append(p.Problems, fmt.Errorf("%s: a MIG instance of profile %d at %d stands there, which NVML does not list among its profiles and placements; it is not offered", g.UUID, i.ProfileID, i.Start))
			continue
		}
		d := mouldOf(n, g, profile).partition(g, profile, profile.Placements[at])
		d.Static = !i.Held
		p.add(d)
	}
}

func (p *Pool) add(d *Device) {
	p.devices[d.Name()] = d
	p.order = append(p.order, d)
}

// bySize puts small profiles first, so that a request that any profile satisfies takes the smallest, and those with extras after those without.
func bySize(profiles []inventory.Profile) []inventory.Profile {
	sorted := slices.Clone(profiles)
	slices.SortStableFunc(sorted, func(a, b inventory.Profile) int {
		if a.Slices != b.Slices {
			return a.Slices - b.Slices
		}
		if a.MemoryBytes != b.MemoryBytes {
			if a.MemoryBytes < b.MemoryBytes {
				return -1
			}
			return 1
		}
		return a.Number - b.Number
	})
	return sorted
}

// Device finds a device by name, nil where the pool has none. A share of a profile that is not known (yet, or any more) is a share all the same:
// what it may use stands in its claim.
func (p *Pool) Device(name string) *Device {
	if d := p.devices[name]; d != nil {
		return d
	}
	gpu, _, shared := strings.Cut(name, "-shared-")
	if !shared {
		return nil
	}
	return p.devices[gpu+"-shared"]
}

// Devices are all devices in the order of publication.
func (p *Pool) Devices() []*Device { return p.order }

// Slices lays the pool out in ResourceSlices: counter sets first (at most 8 a slice), then each GPU's devices in slices of their own (at most 64
// devices a slice, since they draw on counters). taints are added to the devices they name.
func (p *Pool) Slices(taints map[string][]resourceapi.DeviceTaint) []resourceslice.Slice {
	var out []resourceslice.Slice
	for sets := range slices.Chunk(p.sets, resourceapi.ResourceSliceMaxCounterSets) {
		out = append(out, resourceslice.Slice{SharedCounters: sets})
	}
	for from := 0; from < len(p.order); {
		to := from
		for to < len(p.order) && p.order[to].GPU == p.order[from].GPU {
			to++
		}
		for chunk := range slices.Chunk(p.order[from:to], resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
			slice := resourceslice.Slice{Devices: make([]resourceapi.Device, 0, len(chunk))}
			for _, d := range chunk {
				api := d.API
				api.Taints = taints[d.Name()]
				slice.Devices = append(slice.Devices, api)
			}
			out = append(out, slice)
		}
		from = to
	}
	return out
}
