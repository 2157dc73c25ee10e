package layout

import (
	"fmt"
	"slices"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
)

// Standing lists the existing instances of a GPU, as a plan does.
func Standing(g *inventory.GPU) ([]Wanted, error) {
	instances, err := partition.List(g)
	if err != nil {
		return nil, err
	}
	var out []Wanted
	for _, i := range instances {
		p, ok := g.MIG.Profile(i.Profile)
		if !ok {
			return nil, fmt.Errorf("%s: MIG instance %d has profile %d, which NVML does not list", g.UUID, i.ID, i.Profile)
		}
		out = append(out, Wanted{Profile: p, Placement: inventory.Placement{Start: i.Start, Size: i.Size}})
	}
	return out, nil
}

// Done reports whether a GPU is as planned.
func (p Plan) Done() (bool, error) {
	if p.GPU.MIG == nil {
		return !p.MIG, nil
	}
	standing, err := Standing(p.GPU)
	if err != nil {
		return false, err
	}
	if !p.MIG {
		// A GPU without instances can be given out in every form, in MIG mode or not, unless its mode waits for a reset.
		return len(standing) == 0 && p.GPU.CanBeWhole() && !p.GPU.MIG.ModeIsPending(), nil
	}
	if !p.GPU.CanBeCut() || p.GPU.MIG.ModeIsPending() {
		return false, nil
	}
	return len(standing) == len(p.Instances) && !slices.ContainsFunc(standing, func(s Wanted) bool { return !p.has(s) }), nil
}

func (p Plan) has(s Wanted) bool {
	return slices.ContainsFunc(p.Instances, func(w Wanted) bool { return w.Profile.ID == s.Profile.ID && w.Placement == s.Placement })
}

// Apply changes a GPU according to the plan. The GPU must be idle, and have no other writer. Instances that are right already stay.
func (p Plan) Apply() error {
	standing, err := Standing(p.GPU)
	if err != nil {
		return err
	}
	for _, s := range standing {
		if p.MIG && p.has(s) {
			continue
		}
		if err := partition.Destroy(p.GPU, s.Profile, s.Placement.Start); err != nil {
			return err
		}
	}
	if err := partition.SetMode(p.GPU, p.MIG); err != nil {
		return err
	}
	for _, w := range p.Instances {
		if _, err := partition.Create(p.GPU, w.Profile, w.Placement); err != nil {
			return err
		}
	}
	return nil
}

// Change has the steps for a GPU that keeps the rest of its instances.
type Change struct {
	GPU *inventory.GPU
	// Doomed are the instances to destroy, Missing those to create.
	Doomed, Missing []Wanted
}

// Changes compares a GPU with its planned instances. The error is a profile or a placement that the GPU does not have.
func Changes(g *inventory.GPU, planned []v1alpha1.MIGLayoutInstance) (Change, error) {
	c := Change{GPU: g}
	plan := Plan{GPU: g}
	for _, p := range planned {
		w, err := placed(g, p)
		if err != nil {
			return c, err
		}
		plan.Instances = append(plan.Instances, w)
	}
	if err := plan.apart(); err != nil {
		return c, err
	}
	standing, err := Standing(g)
	if err != nil {
		return c, err
	}
	c.Doomed = slices.DeleteFunc(slices.Clone(standing), plan.has)
	c.Missing = slices.DeleteFunc(plan.Instances, Plan{Instances: standing}.has)
	return c, nil
}

// placed finds the profile and the placement of a planned instance.
func placed(g *inventory.GPU, p v1alpha1.MIGLayoutInstance) (Wanted, error) {
	if g.MIG == nil {
		return Wanted{}, fmt.Errorf("%s (%s) cannot be cut: it has no MIG", g.UUID, g.ProductName)
	}
	i := slices.IndexFunc(g.MIG.Profiles, func(profile inventory.Profile) bool { return profile.Name == p.Profile })
	if i < 0 {
		return Wanted{}, fmt.Errorf("%s (%s) has no MIG profile %q; it has %s", g.UUID, g.ProductName, p.Profile, profileNames(g))
	}
	at := slices.IndexFunc(g.MIG.Profiles[i].Placements, func(at inventory.Placement) bool { return at.Start == int(p.Start) })
	if at < 0 {
		return Wanted{}, fmt.Errorf("%s (%s): no MIG instance %s can begin at memory slice %d", g.UUID, g.ProductName, p.Profile, p.Start)
	}
	return Wanted{Profile: g.MIG.Profiles[i], Placement: g.MIG.Profiles[i].Placements[at]}, nil
}

// apart returns an error where two planned instances share a memory slice.
func (p Plan) apart() error {
	for i, a := range p.Instances {
		for _, b := range p.Instances[:i] {
			if a.Placement.Start < b.Placement.Start+b.Placement.Size && b.Placement.Start < a.Placement.Start+a.Placement.Size {
				return fmt.Errorf("%s: MIG instances %s at memory slice %d and %s at %d overlap", p.GPU.UUID, b.Profile.Name, b.Placement.Start,
					a.Profile.Name, a.Placement.Start)
			}
		}
	}
	return nil
}

// None reports whether nothing is to be done.
func (c Change) None() bool { return len(c.Doomed)+len(c.Missing) == 0 }

// Apply destroys and creates the instances. The memory slices of both must be unused, and the GPU must have no other writer. Instances in
// neither list stay as they are, and may be in use.
func (c Change) Apply() error {
	for _, d := range c.Doomed {
		if err := partition.Destroy(c.GPU, d.Profile, d.Placement.Start); err != nil {
			return err
		}
	}
	if len(c.Missing) > 0 {
		if err := partition.SetMode(c.GPU, true); err != nil {
			return err
		}
	}
	for _, m := range c.Missing {
		if _, err := partition.Create(c.GPU, m.Profile, m.Placement); err != nil {
			return err
		}
	}
	return nil
}
