package demand

import (
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/planner"
)

// unbounded is the maximum of a reserve without one.
const unbounded = 100_000

// shapes are the shapes of a layout with auto, the smallest first and the whole GPU last.
type shapes struct {
	names  []string
	limits []planner.Limits
}

func shapesOf(auto *v1alpha1.MIGAuto) shapes {
	sorted := slices.Clone(auto.Shapes)
	slices.SortStableFunc(sorted, func(a, b v1alpha1.MIGAutoShape) int { return slices.Compare(bulk(a.Profile), bulk(b.Profile)) })
	var s shapes
	for _, shape := range sorted {
		limits := planner.Limits{Min: int(shape.Reserve.Min), Max: int(shape.Reserve.Max), Ceiling: int(shape.Max)}
		if limits.Max == 0 {
			limits.Max = unbounded
		}
		if limits.Ceiling > 0 {
			limits.Max = min(limits.Max, limits.Ceiling)
		}
		s.names, s.limits = append(s.names, shape.Profile), append(s.limits, limits)
	}
	return s
}

// bulk is a profile's compute slices, gigabytes and number of extras.
func bulk(profile string) []int {
	if profile == v1alpha1.MIGWhole {
		return []int{1 << 20}
	}
	rest := profile
	if _, after, ok := strings.Cut(profile, "c."); ok {
		rest = after
	}
	slice, memory, _ := strings.Cut(rest, "g.")
	gigabytes, extras, _ := strings.Cut(memory, "gb")
	compute, _ := strconv.Atoi(slice)
	size, _ := strconv.Atoi(gigabytes)
	return []int{compute, size, len(extras)}
}

// model is a kind of GPU as the planner needs it, with the profiles of its devices.
type model struct {
	planner.Model
	profiles map[string]v1alpha1.MIGNodeProfile
}

// modelOf describes a GPU. A GPU that cannot be whole, or cannot be cut, lacks these shapes.
func modelOf(s shapes, entry *v1alpha1.MIGLayoutNode, g *v1alpha1.MIGNodeGPU) *model {
	m := &model{profiles: map[string]v1alpha1.MIGNodeProfile{}}
	size := 0
	for _, p := range entry.Profiles {
		if p.ProductName != g.ProductName || !plausible(p) {
			continue
		}
		m.profiles[p.Name] = p
		m.Compute = max(m.Compute, int(p.ComputeSlices))
		for _, start := range p.Starts {
			size = max(size, int(start+p.Size))
		}
	}
	for _, name := range s.names {
		shape := planner.Shape{Name: name}
		p, known := m.profiles[name]
		switch {
		case name == v1alpha1.MIGWhole:
			shape.Compute, shape.Size = m.Compute, size
			if g.Whole {
				shape.Starts = []int{0}
			}
		case known:
			shape.Compute, shape.Size, shape.Max = int(p.ComputeSlices), int(p.Size), int(p.Max)
			if g.MIG {
				for _, start := range p.Starts {
					shape.Starts = append(shape.Starts, int(start))
				}
			}
		}
		m.Shapes = append(m.Shapes, shape)
	}
	return m
}

// maxSlices is more compute or memory slices than a GPU has.
const maxSlices = 16

// plausible reports whether a profile can be one of a GPU's, whatever the node reports.
func plausible(p v1alpha1.MIGNodeProfile) bool {
	within := func(n int32) bool { return n >= 1 && n <= maxSlices }
	return within(p.ComputeSlices) && within(p.Size) && len(p.Starts) <= maxSlices &&
		!slices.ContainsFunc(p.Starts, func(start int32) bool { return start < 0 || start+p.Size > maxSlices })
}

// modelKey identifies models that are equal for the planner.
func modelKey(g *v1alpha1.MIGNodeGPU) string {
	return g.ProductName + "/" + strconv.FormatBool(g.Whole) + "/" + strconv.FormatBool(g.MIG)
}

// device is the name of a device of a GPU in ResourceSlices.
func (m *model) device(g *v1alpha1.MIGNodeGPU, profile string, start int) string {
	p, known := m.profiles[profile]
	if !known {
		return g.Device
	}
	minor, _ := strconv.Atoi(strings.TrimPrefix(g.Device, "gpu-"))
	return devices.MIGName(&inventory.GPU{Minor: minor}, inventory.Profile{Name: p.Name, ID: int(p.ID)}, start)
}

// samples are a device of each shape as nodes publish it, for each kind of GPU.
type samples map[string][]*resourceapi.Device

// add makes the samples of a kind of GPU from any of its published devices.
func (s samples) add(names []string, m *model, g *v1alpha1.MIGNodeGPU, like resourceapi.Device) {
	var out []*resourceapi.Device
	for i, name := range names {
		if len(m.Shapes[i].Starts) == 0 {
			out = append(out, nil)
			continue
		}
		if name == v1alpha1.MIGWhole {
			d := devices.SampleWhole(like, uint64(max(g.MemoryBytes, 0))) //nolint:gosec // not negative
			out = append(out, &d)
			continue
		}
		p := m.profiles[name]
		d := devices.SampleMIG(like, inventory.Profile{
			Name: p.Name, ID: int(p.ID), Slices: int(p.ComputeSlices), MemoryBytes: uint64(max(p.MemoryBytes, 0)), //nolint:gosec // not negative
			Multiprocessors: int(p.Multiprocessors), CopyEngines: int(p.CopyEngines), Decoders: int(p.Decoders), Encoders: int(p.Encoders),
			JPEGEngines: int(p.JPEGEngines), OFAEngines: int(p.OFAEngines),
		}, int(g.Multiprocessors))
		out = append(out, &d)
	}
	s[modelKey(g)] = out
}
