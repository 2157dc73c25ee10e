package smi

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/state"
)

// migOptions are the arguments of nvidia-smi mig.
type migOptions struct {
	action     string
	value      string
	gpus       []string
	gi, ci     []string
	computeToo bool
}

func parseMIG(args []string) (migOptions, error) {
	var o migOptions
	for i := 0; i < len(args); i++ {
		next := func() (string, error) {
			if i++; i >= len(args) {
				return "", fmt.Errorf("mig: option %s needs a value", args[i-1])
			}
			return args[i], nil
		}
		var v string
		var err error
		switch a := args[i]; a {
		case "-lgip", "-lgipp", "-lgi", "-lcip", "-lci", "-dgi", "-dci":
			o.action = a
		case "-cgi":
			o.action = a
			o.value, err = next()
		case "-cci":
			o.action = a
			if i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				o.value, err = next()
			}
		case "-C", "--default-compute-instance":
			o.computeToo = true
		case "-i":
			v, err = next()
			o.gpus = split(v)
		case "-gi":
			v, err = next()
			o.gi = split(v)
		case "-ci":
			v, err = next()
			o.ci = split(v)
		default:
			return o, fmt.Errorf("mig: option %q is unknown; see nvidia-smi -h", a)
		}
		if err != nil {
			return o, err
		}
	}
	if o.action == "" {
		return o, errors.New("mig: an option is missing; see nvidia-smi -h")
	}
	return o, nil
}

func (c *Command) mig(args []string) error {
	o, err := parseMIG(args)
	if err != nil {
		return err
	}
	all, err := c.selected(o.gpus)
	if err != nil {
		return err
	}
	// Profiles are listed with MIG off too.
	profiles := o.action == "-lgip" || o.action == "-lgipp"
	var gpus []gpu
	for _, g := range all {
		if g.Core.MIGCurrent != 0 || profiles && g.model.MIGProfileCount > 0 {
			gpus = append(gpus, g)
		}
	}
	if len(gpus) == 0 {
		return c.noMIG(o.action, profiles)
	}
	if o.action == "-lgip" {
		if err := c.print("%s", profilesHead); err != nil {
			return err
		}
	}
	for _, g := range gpus {
		if err := c.migOn(g, o); err != nil {
			return err
		}
	}
	return nil
}

// noMIG reports that no GPU was found, in the real command's words, which scripts look for. To a listing of instances that is no error.
func (c *Command) noMIG(action string, profiles bool) error {
	const enabled = "No MIG-enabled devices found."
	switch {
	case profiles:
		return errors.New("No MIG-supported devices found.") //nolint:revive,staticcheck // the real command's words
	case strings.HasPrefix(action, "-l"):
		return c.print("%s\n", enabled)
	}
	return errors.New(enabled)
}

func (c *Command) migOn(g gpu, o migOptions) error {
	switch o.action {
	case "-lgip":
		return c.listProfiles(g)
	case "-lgipp":
		return c.listPlacements(g)
	case "-lgi":
		return c.listInstances(g)
	case "-lcip":
		return c.listComputeProfiles(g, o)
	case "-lci":
		return c.listCompute(g, o)
	}
	// The steps before a failed one remain, and the tree must show them.
	return errors.Join(c.changeOn(g, o), c.syncMIG())
}

func (c *Command) changeOn(g gpu, o migOptions) error {
	switch o.action {
	case "-cgi":
		return c.createInstances(g, o)
	case "-cci":
		return c.createCompute(g, o)
	case "-dgi":
		return c.destroyInstances(g, o)
	}
	return c.destroyCompute(g, o)
}

// fresh reads the GPU from the newest view of the state.
func (c *Command) fresh(g gpu) gpu {
	return gpu{GPU: c.body.GPUs[g.place], model: &c.body.Node.Model, index: g.index, place: g.place}
}

func profileName(p *state.MIGProfile) string { return state.String(p.Name[:]) }

const (
	profilesRule = "+-------------------------------------------------------------------------------+\n"
	profilesHead = profilesRule + "| GPU instance profiles:                                                        |\n" +
		"| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |\n" +
		"|                                Free/Total   GiB              CE    JPEG  OFA  |\n" +
		"|===============================================================================|\n"
)

func (c *Command) listProfiles(g gpu) error {
	var b strings.Builder
	for i, p := range mig.Profiles(g.model) {
		fmt.Fprintf(&b, "| %3d  MIG %-15s%3d     %d/%-2d       %-6.2f     No     %-3d   %2d    %2d   |\n", g.index, profileName(&p), p.ID,
			mig.Capacity(g.model, g.GPU, i), p.Max, float64(p.MemoryMiB)/1024, p.Multiprocessors, p.Decoders, p.Encoders)
		fmt.Fprintf(&b, "|                                                             %3d   %3d   %3d   |\n%s", p.CopyEngines, p.JPEG, p.OFA,
			profilesRule)
	}
	return c.print("%s", b.String())
}

func (c *Command) listPlacements(g gpu) error {
	for _, p := range mig.Profiles(g.model) {
		var starts []string
		for _, s := range p.Starts[:min(p.PlacementCount, state.MaxPlacements)] {
			starts = append(starts, fmt.Sprint(s))
		}
		word := "Placements:"
		if len(starts) == 1 {
			word = "Placement :"
		}
		if err := c.print("GPU %2d Profile ID %2d %s {%s}:%d\n", g.index, p.ID, word, strings.Join(starts, ","), p.Size); err != nil {
			return err
		}
	}
	return nil
}

// instances lists the GPU instances, or those with the given IDs, in the order of their IDs. It leaves out one of a damaged state,
// with an impossible profile.
func instances(g gpu, wanted []string) []*state.GPUInstance {
	var all []*state.GPUInstance
	for id := range uint32(mig.GPUInstanceIDs) {
		if gi := mig.FindGPUInstance(g.GPU, id); gi != nil && gi.Profile < state.MaxMIGProfiles && (wanted == nil || contains(wanted, id)) {
			all = append(all, gi)
		}
	}
	return all
}

// computes lists a GPU instance's compute instances likewise.
func computes(gi *state.GPUInstance, wanted []string) []*state.ComputeInstance {
	var all []*state.ComputeInstance
	for id := range uint32(mig.ComputeInstanceIDs) {
		if ci := mig.FindComputeInstance(gi, id); ci != nil && ci.Profile < state.MaxCIProfiles && (wanted == nil || contains(wanted, id)) {
			all = append(all, ci)
		}
	}
	return all
}

func contains(ids []string, id uint32) bool { return slices.Contains(ids, fmt.Sprint(id)) }

func (c *Command) listInstances(g gpu) error {
	all := instances(g, nil)
	if len(all) == 0 {
		return c.print("No GPU instances found: Not Found\n")
	}
	var b strings.Builder
	rule := "+---------------------------------------------------------+\n"
	b.WriteString(rule + "| GPU instances:                                          |\n" +
		"| GPU   Name               Profile  Instance   Placement  |\n" +
		"|                            ID       ID       Start:Size |\n" +
		"|=========================================================|\n")
	for _, gi := range all {
		p := &g.model.MIGProfiles[gi.Profile]
		fmt.Fprintf(&b, "| %3d  MIG %-14s %4d     %4d       %4d:%-4d   |\n%s", g.index, profileName(p), p.ID, gi.ID, gi.Start, p.Size, rule)
	}
	return c.print("%s", b.String())
}

func (c *Command) listComputeProfiles(g gpu, o migOptions) error {
	for _, gi := range instances(g, o.gi) {
		p := &g.model.MIGProfiles[gi.Profile]
		for i, q := range mig.ComputeProfiles(p) {
			if err := c.print("GPU %2d GPU Instance ID %2d Profile MIG %-16s ID %d Free/Total %d/%d SM %d\n", g.index, gi.ID, computeName(p, &q),
				q.ID,
				mig.ComputeCapacity(p, gi, i), q.Max, q.Multiprocessors); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Command) listCompute(g gpu, o migOptions) error {
	var b strings.Builder
	rule := "+--------------------------------------------------------------------+\n"
	b.WriteString(rule + "| Compute instances:                                                 |\n" +
		"| GPU     GPU       Name             Profile   Instance   Placement  |\n" +
		"|       Instance                       ID        ID       Start:Size |\n" +
		"|         ID                                                         |\n" +
		"|====================================================================|\n")
	found := false
	for _, gi := range instances(g, o.gi) {
		p := &g.model.MIGProfiles[gi.Profile]
		for _, ci := range computes(gi, o.ci) {
			found = true
			q := &p.CIProfiles[ci.Profile]
			fmt.Fprintf(&b, "| %3d     %4d       MIG %-11s %3d      %4d       %4d:%-4d   |\n%s", g.index, gi.ID, computeName(p, q), q.ID, ci.ID,
				ci.Start, q.Slices, rule)
		}
	}
	if !found {
		return c.print("No compute instances found: Not Found\n")
	}
	return c.print("%s", b.String())
}

// createInstances makes one GPU instance for each named profile, by ID or name, optionally with a start after a colon.
func (c *Command) createInstances(g gpu, o migOptions) error {
	for _, want := range split(o.value) {
		name, at, placed := strings.Cut(want, ":")
		index, err := findProfile(g, name)
		if err != nil {
			return err
		}
		start := uint64(mig.Anywhere)
		if placed {
			if start, err = strconv.ParseUint(at, 10, 31); err != nil {
				return fmt.Errorf("mig: %q: a placement is a number after the colon", want)
			}
		}
		p := &g.model.MIGProfiles[index]
		var id uint32
		err = c.change(g, func(m *state.Model, s *state.GPU) (err error) {
			id, err = mig.CreateGPUInstance(m, s, index, uint32(start))
			return err
		})
		if err != nil {
			return fmt.Errorf("unable to create a GPU instance on GPU %2d using profile %d: %w", g.index, p.ID, err)
		}
		if err := c.print("Successfully created GPU instance ID %2d on GPU %2d using profile MIG %s (ID %2d)\n", id, g.index, profileName(p),
			p.ID); err != nil {
			return err
		}
		if o.computeToo {
			if err := c.createComputeIn(g, mig.FindGPUInstance(c.fresh(g).GPU, id), ""); err != nil {
				return err
			}
		}
	}
	return nil
}

func findProfile(g gpu, want string) (int, error) {
	var known []string
	for i, p := range mig.Profiles(g.model) {
		if want == fmt.Sprint(p.ID) || strings.TrimPrefix(want, "MIG ") == profileName(&p) {
			return i, nil
		}
		known = append(known, fmt.Sprintf("%d (%s)", p.ID, profileName(&p)))
	}
	return 0, fmt.Errorf("mig: no GPU instance profile %q; there are %s", want, strings.Join(known, ", "))
}

func (c *Command) createCompute(g gpu, o migOptions) error {
	for _, gi := range instances(g, o.gi) {
		for _, want := range split(o.value) {
			if err := c.createComputeIn(g, gi, want); err != nil {
				return err
			}
		}
	}
	return nil
}

// createComputeIn makes a compute instance; no wish takes all slices of the GPU instance.
func (c *Command) createComputeIn(g gpu, gi *state.GPUInstance, want string) error {
	if gi == nil {
		return errors.New("mig: the GPU instance is gone; another command destroyed it")
	}
	p := &g.model.MIGProfiles[gi.Profile]
	for i, q := range mig.ComputeProfiles(p) {
		name := computeName(p, &q)
		if want == "" && q.Slices != p.Slices || want != "" && want != fmt.Sprint(q.ID) && want != name {
			continue
		}
		var id uint32
		err := c.change(g, func(m *state.Model, s *state.GPU) (err error) {
			id, err = mig.CreateComputeInstance(m, s, gi.ID, i, mig.Anywhere)
			return err
		})
		if err != nil {
			return fmt.Errorf("unable to create a compute instance on GPU %2d GPU instance ID %2d using profile %d: %w", g.index, gi.ID, q.ID, err)
		}
		return c.print("Successfully created compute instance ID %2d on GPU %2d GPU instance ID %2d using profile MIG %s (ID %2d)\n", id, g.index,
			gi.ID, name, q.ID)
	}
	return fmt.Errorf("mig: no compute instance profile %q in GPU instance %d", want, gi.ID)
}

func (c *Command) destroyInstances(g gpu, o migOptions) error {
	for _, gi := range instances(g, o.gi) {
		id := gi.ID
		if err := c.change(g, func(_ *state.Model, s *state.GPU) error { return mig.DestroyGPUInstance(s, id) }); err != nil {
			return fmt.Errorf("unable to destroy GPU instance ID %2d from GPU %2d: %w", id, g.index, err)
		}
		if err := c.print("Successfully destroyed GPU instance ID %2d from GPU %2d\n", id, g.index); err != nil {
			return err
		}
	}
	return nil
}

func (c *Command) destroyCompute(g gpu, o migOptions) error {
	for _, gi := range instances(g, o.gi) {
		for _, ci := range computes(gi, o.ci) {
			if err := c.change(g, func(_ *state.Model, s *state.GPU) error { return mig.DestroyComputeInstance(s, gi.ID, ci.ID) }); err != nil {
				return fmt.Errorf("unable to destroy compute instance ID %2d from GPU %2d GPU instance ID %2d: %w", ci.ID, g.index, gi.ID, err)
			}
			if err := c.print("Successfully destroyed compute instance ID %2d from GPU %2d GPU instance ID %2d\n", ci.ID, g.index,
				gi.ID); err != nil {
				return err
			}
		}
	}
	return nil
}
