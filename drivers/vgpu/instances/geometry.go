package instances

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/settings"
)

// at is a profile at a place.
type at struct {
	profile   inventory.Profile
	placement inventory.Placement
}

// seats returns the placements that Volcano's `[group-position]` can mean on a GPU. The first is the instance at that position
// of the group, counted in the order in which the group names them. Equal instances follow, since Volcano gives one slot to
// several pods of a session: instances of that profile at other positions of the group, and then anywhere on the GPU. The
// layouts are the administrator's knownMigGeometries for the model. Without them, there is one group for each profile that NVML
// offers, smallest first, with as many instances as fit.
func seats(g *inventory.GPU, known []settings.Geometry, slot annotation.MIGSlot) ([]at, error) {
	groups, err := layouts(g, known)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, geometry := range known {
		names = append(names, geometry.Name)
	}
	number, found := slot.Place(names)
	if !found || number >= len(groups) {
		return nil, fmt.Errorf("%s: MIG slot %s is of geometry %s, where 0 to %d are supported for %s%s", g.UUID, slot, slot.Group, len(groups)-1,
			g.ProductName, listed(names))
	}
	group := groups[number]
	if slot.Position >= len(group) {
		return nil, fmt.Errorf("%s: MIG slot %s is position %d of a geometry of %d instances", g.UUID, slot, slot.Position, len(group))
	}
	placements, ok := pack(group)
	if !ok {
		return nil, fmt.Errorf("%s: the %d instances of MIG geometry %s do not fit the GPU together; correct knownMigGeometries", g.UUID,
			len(group), slot.Group)
	}
	profile := group[slot.Position]
	out := []at{{profile, placements[slot.Position]}}
	add := func(placement inventory.Placement) {
		if where := (at{profile, placement}); !slices.ContainsFunc(out, func(a at) bool { return a.placement == placement }) {
			out = append(out, where)
		}
	}
	for i, other := range group {
		if other.ID == profile.ID {
			add(placements[i])
		}
	}
	for _, placement := range profile.Placements {
		add(placement)
	}
	return out, nil
}

// listed returns the geometries' names for the end of an error.
func listed(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ", named " + strings.Join(names, ", ")
}

// Overstated returns the memory sizes in an administrator's geometries that exceed the driver's: a scheduler that believes them
// admits pods that want more than their instance has.
func Overstated(g *inventory.GPU, known []settings.Geometry) []error {
	var errs []error
	for _, geometry := range known {
		for _, i := range geometry.Instances {
			p, err := named(g, i.Profile)
			if err != nil {
				continue // layouts reports that
			}
			if has := int64(p.MemoryBytes >> 20); i.MemoryMiB > has { //nolint:gosec // MiB
				errs = append(errs, fmt.Errorf("knownMigGeometries, geometry %q: %s is listed with %d MiB, and the driver of %s gives it %d: a pod "+
					"that requests more gets less than it requested; write %d", geometry.Name, i.Profile, i.MemoryMiB, g.UUID, has, has))
			}
		}
	}
	return errs
}

// layouts lists each group's instances, one element for each.
func layouts(g *inventory.GPU, known []settings.Geometry) ([][]inventory.Profile, error) {
	var out [][]inventory.Profile
	for _, group := range known {
		var list []inventory.Profile
		for _, i := range group.Instances {
			p, err := named(g, i.Profile)
			if err != nil {
				return nil, fmt.Errorf("knownMigGeometries, geometry %q: %w", group.Name, err)
			}
			list = append(list, slices.Repeat([]inventory.Profile{p}, i.Count)...)
		}
		out = append(out, list)
	}
	if len(known) > 0 {
		return out, nil
	}
	for _, p := range ascending(g) {
		out = append(out, slices.Repeat([]inventory.Profile{p}, p.MaxInstances))
	}
	return out, nil
}

func named(g *inventory.GPU, name string) (inventory.Profile, error) {
	var offered []string
	for _, p := range g.MIG.Profiles {
		if p.Name == name {
			return p, nil
		}
		offered = append(offered, p.Name)
	}
	return inventory.Profile{}, fmt.Errorf("%s is not a MIG profile of %s; its driver offers %s", name, g.UUID, strings.Join(offered, ", "))
}

// pack places a list of instances so that none overlap, the largest first and each as low as it can be. The same list always gets
// the same places.
func pack(list []inventory.Profile) ([]inventory.Placement, bool) {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(list[b].MemoryBytes, list[a].MemoryBytes) })
	placed := make([]inventory.Placement, len(list))
	var place func(n int) bool
	place = func(n int) bool {
		if n == len(order) {
			return true
		}
		for _, candidate := range list[order[n]].Placements {
			if slices.ContainsFunc(order[:n], func(i int) bool { return overlap(placed[i], candidate) }) {
				continue
			}
			placed[order[n]] = candidate
			if place(n + 1) {
				return true
			}
		}
		return false
	}
	return placed, place(0)
}

func overlap(a, b inventory.Placement) bool {
	return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size
}

// ascending returns a GPU's profiles, smallest first: by memory, then by compute slices, then by their media engines, which only
// few instances can have.
func ascending(g *inventory.GPU) []inventory.Profile {
	media := func(p inventory.Profile) int { return p.Decoders + p.Encoders + p.JPEGEngines + p.OFAEngines }
	return slices.SortedFunc(slices.Values(g.MIG.Profiles), func(a, b inventory.Profile) int {
		return cmp.Or(cmp.Compare(a.MemoryBytes, b.MemoryBytes), cmp.Compare(a.Slices, b.Slices), cmp.Compare(media(a), media(b)),
			cmp.Compare(a.ID, b.ID))
	})
}

// choose finds the smallest instance with at least that much memory (MiB) and that percentage of the GPU's cores that fits beside
// the used instances. Of its placements it takes one with an idle instance, else the one that blocks the fewest placements of other
// profiles.
func choose(g *inventory.GPU, memoryMiB int64, cores int, standing []partition.Instance, held []inventory.Placement) (at, error) {
	free := func(p inventory.Placement) bool {
		return !slices.ContainsFunc(held, func(h inventory.Placement) bool { return overlap(h, p) })
	}
	slicesOfAll := 0
	for _, p := range g.MIG.Profiles {
		slicesOfAll = max(slicesOfAll, p.Slices)
	}
	fits := 0
	for _, profile := range ascending(g) {
		if int64(profile.MemoryBytes>>20) < memoryMiB || profile.Slices*100 < cores*slicesOfAll { //nolint:gosec // MiB
			continue
		}
		fits++
		var best *at
		least := 0
		for _, placement := range profile.Placements {
			if !free(placement) {
				continue
			}
			blocks := blocked(g, placement, free)
			for _, i := range standing {
				switch {
				case i.Profile == profile.ID && i.Start == placement.Start:
					blocks = -1
				case i.Overlaps(placement):
					blocks += 1000 // an idle instance would have to be removed first
				}
			}
			if best == nil || blocks < least {
				best, least = &at{profile, placement}, blocks
			}
		}
		if best != nil {
			return *best, nil
		}
	}
	if fits == 0 {
		return at{}, fmt.Errorf("%s: no MIG instance of %s has %d MiB and %d percent of its cores", g.UUID, g.ProductName, memoryMiB, cores)
	}
	return at{}, fmt.Errorf("%s: none of the %d kinds of MIG instance with at least %d MiB and %d percent of its cores has room left", g.UUID,
		fits, memoryMiB, cores)
}

// blocked counts the free placements that would no longer be free.
func blocked(g *inventory.GPU, placement inventory.Placement, free func(inventory.Placement) bool) int {
	count := 0
	for _, p := range g.MIG.Profiles {
		for _, other := range p.Placements {
			if free(other) && overlap(other, placement) {
				count++
			}
		}
	}
	return count
}

// Slots lists the memory in MiB of each slot that `[group-position]` can name on a GPU, group by group. A group whose instances do
// not fit on the GPU together is empty, so that later groups keep their numbers.
func Slots(g *inventory.GPU, known []settings.Geometry) ([][]int64, error) {
	groups, err := layouts(g, known)
	if err != nil {
		return nil, err
	}
	out := make([][]int64, len(groups))
	for i, group := range groups {
		out[i] = []int64{}
		if _, ok := pack(group); !ok {
			continue
		}
		for _, p := range group {
			out[i] = append(out[i], int64(p.MemoryBytes>>20)) //nolint:gosec // MiB
		}
	}
	return out, nil
}
