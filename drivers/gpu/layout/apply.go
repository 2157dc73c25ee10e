package layout

import (
	"fmt"
	"slices"

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

// Done says whether a GPU is as planned.
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

// Apply changes a GPU according to the plan. Nothing may run on it, and nobody else may change it meanwhile. Instances that are
// right already stay.
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
