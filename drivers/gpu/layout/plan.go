// Package layout plans which MIG instances a GPU gets from a MIGLayout, and makes and removes instances accordingly.
package layout

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/inventory"
)

// Wanted is one planned instance of a GPU.
type Wanted struct {
	Profile   inventory.Profile
	Placement inventory.Placement
}

// Plan is the planned state of a GPU.
type Plan struct {
	GPU *inventory.GPU
	// MIG reports whether its MIG mode is on.
	MIG bool
	// Instances are the planned instances with their places.
	Instances []Wanted
}

// Plans computes the plans of a node's GPUs from a layout. It leaves out GPUs that no entry applies to. standing returns the
// existing instances of a GPU; they keep their places where the layout allows it.
func Plans(gpus []*inventory.GPU, entries []v1alpha1.MIGPartedEntry, standing func(*inventory.GPU) []Wanted) ([]Plan, error) {
	var plans []Plan
	for _, g := range gpus {
		entry, err := entryFor(g, entries)
		if err != nil {
			return nil, err
		}
		if entry == nil {
			continue
		}
		if !entry.MIGEnabled {
			plans = append(plans, Plan{GPU: g})
			continue
		}
		if g.MIG == nil {
			return nil, fmt.Errorf("GPU %d (%s, %s) cannot be cut: it has no MIG; exclude it by device-filter or devices", g.Index, g.ProductName,
				g.UUID)
		}
		wanted, err := place(g, entry.MIGDevices, standing(g))
		if err != nil {
			return nil, err
		}
		plans = append(plans, Plan{GPU: g, MIG: true, Instances: wanted})
	}
	return plans, nil
}

// entryFor returns the one entry that applies to a GPU, nil where none does.
func entryFor(g *inventory.GPU, entries []v1alpha1.MIGPartedEntry) (*v1alpha1.MIGPartedEntry, error) {
	var found *v1alpha1.MIGPartedEntry
	for i := range entries {
		e := &entries[i]
		if !e.Devices.All && !slices.Contains(e.Devices.Indices, int32(g.Index)) { //nolint:gosec // GPUs are counted in tens
			continue
		}
		if len(e.DeviceFilter) > 0 && !slices.ContainsFunc(e.DeviceFilter, func(id string) bool {
			return strings.EqualFold(id, deviceID(g))
		}) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("two entries of the layout select GPU %d (%s): narrow one by devices or device-filter", g.Index, g.UUID)
		}
		found = e
	}
	return found, nil
}

// WithoutEffect describes the indices and device filters of entries that match no GPU of the node, which a layout for several kinds of
// nodes may have, and a mistyped one has too.
func WithoutEffect(gpus []*inventory.GPU, entries []v1alpha1.MIGPartedEntry) []string {
	var out []string
	for i, e := range entries {
		var none []string
		for _, index := range e.Devices.Indices {
			if !slices.ContainsFunc(gpus, func(g *inventory.GPU) bool { return int(index) == g.Index }) {
				none = append(none, strconv.Itoa(int(index)))
			}
		}
		if len(none) > 0 {
			out = append(out, fmt.Sprintf("entry %d: devices %s: the node has no such GPU, it has %s", i, strings.Join(none, ", "), indices(gpus)))
		}
		for _, id := range e.DeviceFilter {
			if !slices.ContainsFunc(gpus, func(g *inventory.GPU) bool { return strings.EqualFold(id, deviceID(g)) }) {
				out = append(out, fmt.Sprintf("entry %d: device-filter %s: no GPU of the node has this ID", i, id))
			}
		}
	}
	return out
}

func indices(gpus []*inventory.GPU) string {
	var out []string
	for _, g := range gpus {
		out = append(out, strconv.Itoa(g.Index))
	}
	return strings.Join(out, ", ")
}

// deviceID is a GPU's PCI device ID in mig-parted's form.
func deviceID(g *inventory.GPU) string { return fmt.Sprintf("0x%08X", g.PCIDevice) }

// place finds a placement for every instance. Existing instances keep their places first. The others follow, the largest first,
// each as low as it fits.
func place(g *inventory.GPU, counts map[string]int32, standing []Wanted) ([]Wanted, error) {
	var want []inventory.Profile
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		i := slices.IndexFunc(g.MIG.Profiles, func(p inventory.Profile) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("mig-devices %q: GPU %d (%s) has no such profile; it has %s", name, g.Index, g.ProductName, profileNames(g))
		}
		for range counts[name] {
			want = append(want, g.MIG.Profiles[i])
		}
	}
	slices.SortStableFunc(want, func(a, b inventory.Profile) int { return size(b) - size(a) })
	var kept []Wanted
	left := slices.Clone(want)
	for _, s := range standing {
		if i := slices.IndexFunc(left, func(p inventory.Profile) bool { return p.ID == s.Profile.ID }); i >= 0 {
			kept = append(kept, s)
			left = slices.Delete(left, i, i+1)
		}
	}
	if placed, ok := fit(left, kept); ok {
		return placed, nil
	}
	if placed, ok := fit(want, nil); ok {
		return placed, nil
	}
	return nil, fmt.Errorf("mig-devices %v do not fit on GPU %d (%s) together", counts, g.Index, g.ProductName)
}

// profileNames lists the MIG profiles of a GPU.
func profileNames(g *inventory.GPU) string {
	var names []string
	for _, p := range g.MIG.Profiles {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

func size(p inventory.Profile) int {
	if len(p.Placements) == 0 {
		return 0
	}
	return p.Placements[0].Size
}

// fit places profiles beside those already placed, and tries every combination.
func fit(left []inventory.Profile, placed []Wanted) ([]Wanted, bool) {
	if len(left) == 0 {
		return placed, true
	}
	p := left[0]
	number := 0
	for _, w := range placed {
		if w.Profile.ID == p.ID {
			number++
		}
	}
	if p.MaxInstances > 0 && number >= p.MaxInstances {
		return nil, false
	}
	for _, at := range p.Placements {
		free := !slices.ContainsFunc(placed, func(w Wanted) bool {
			return w.Placement.Start < at.Start+at.Size && at.Start < w.Placement.Start+w.Placement.Size
		})
		if !free {
			continue
		}
		if out, ok := fit(left[1:], append(slices.Clone(placed), Wanted{p, at})); ok {
			return out, true
		}
	}
	return nil, false
}
