package mig_test

import (
	"errors"
	"slices"
	"testing"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/state"
)

// Indexes of the profiles of model, an H100 with 80 GB, as nvidia-smi mig -lgip and -lgipp list them (MIG user guide, H100 MIG profiles).
const (
	oneSlice = iota // 1g.10gb
	half            // 3g.40gb
	whole           // 7g.80gb
)

func model() *state.Model {
	m := &state.Model{MIGSlices: 7, MIGMemorySlices: 8, MIGProfileCount: 3, Architecture: 9} // Hopper
	profiles := []state.MIGProfile{
		{ID: 19, Slices: 1, Max: 7, Size: 1, PlacementCount: 7, Starts: [state.MaxPlacements]uint32{0, 1, 2, 3, 4, 5, 6}},
		{ID: 9, Slices: 3, Max: 2, Size: 4, PlacementCount: 2, Starts: [state.MaxPlacements]uint32{0, 4}},
		{ID: 0, Slices: 7, Max: 1, Size: 8, PlacementCount: 1},
	}
	for i := range profiles {
		profiles[i].CICount = 2
		profiles[i].CIProfiles[0] = state.CIProfile{ID: 0, Slices: 1}
		profiles[i].CIProfiles[1] = state.CIProfile{ID: 7, Slices: profiles[i].Slices}
	}
	copy(m.MIGProfiles[:], profiles)
	return m
}

func enabled() *state.GPU { return &state.GPU{Core: state.Core{MIGCurrent: 1, MIGPending: 1}} }

func mustCreate(t *testing.T, m *state.Model, g *state.GPU, profile int, start uint32) uint32 {
	t.Helper()
	id, err := mig.CreateGPUInstance(m, g, profile, start)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestCreateGPUInstanceFollowsThePlacements(t *testing.T) {
	m := model()
	for name, c := range map[string]struct {
		before  []uint32 // starts of 3g.40gb
		profile int
		start   uint32
		want    error
	}{
		"a free placement":            {nil, half, 4, nil},
		"no placement of the profile": {nil, half, 2, mig.ErrInvalid},
		"a taken placement":           {[]uint32{4}, half, 4, mig.ErrInsufficientResources},
		"below another profile's":     {[]uint32{0}, oneSlice, 3, mig.ErrInsufficientResources},
		"beside another profile's":    {[]uint32{0}, oneSlice, 4, nil},
		"the whole beside a part":     {[]uint32{0}, whole, mig.Anywhere, mig.ErrInsufficientResources},
	} {
		t.Run(name, func(t *testing.T) {
			g := enabled()
			for _, start := range c.before {
				mustCreate(t, m, g, half, start)
			}
			if _, err := mig.CreateGPUInstance(m, g, c.profile, c.start); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestCreateGPUInstanceFailsWhenModeIsOffOrGPUIsBusy(t *testing.T) {
	m, off, busy := model(), &state.GPU{}, enabled()
	if _, err := mig.CreateGPUInstance(m, off, half, mig.Anywhere); !errors.Is(err, mig.ErrNotSupported) {
		t.Errorf("mode off: %v", err)
	}
	busy.Core.MIGBusy = 1
	if _, err := mig.CreateGPUInstance(m, busy, half, mig.Anywhere); !errors.Is(err, mig.ErrInUse) {
		t.Errorf("busy: %v", err)
	}
}

func TestCreateGPUInstanceLeavesRoomForOthersWhenStartIsAnywhere(t *testing.T) {
	m, g := model(), enabled()
	mustCreate(t, m, g, oneSlice, 5)
	mustCreate(t, m, g, oneSlice, mig.Anywhere)
	if n := mig.Capacity(m, g, half); n != 1 {
		t.Errorf("%d of 3g.40gb fit, want 1: the second small instance has to be beside the first", n)
	}
}

func TestCapacityCountsSlicesAndPlacements(t *testing.T) {
	m, g := model(), enabled()
	capacities := func() []int {
		return []int{mig.Capacity(m, g, oneSlice), mig.Capacity(m, g, half), mig.Capacity(m, g, whole)}
	}
	if got := capacities(); !slices.Equal(got, []int{7, 2, 1}) {
		t.Errorf("empty: %v", got)
	}
	first, second := mustCreate(t, m, g, half, 0), mustCreate(t, m, g, half, 4)
	if got := capacities(); !slices.Equal(got, []int{0, 0, 0}) {
		t.Errorf("two halves: %v; no memory slice is left for the seventh compute slice", got)
	}
	if first != 1 || second != 2 {
		t.Errorf("the halves have the IDs %d and %d, want 1 and 2", first, second)
	}
	if err := mig.DestroyGPUInstance(g, second); err != nil {
		t.Fatal(err)
	}
	if got := capacities(); !slices.Equal(got, []int{3, 1, 0}) {
		t.Errorf("one half: %v", got)
	}
}

func TestDestroyGPUInstanceFailsWhileItIsUsed(t *testing.T) {
	m, g := model(), enabled()
	id := mustCreate(t, m, g, half, 0)
	compute, err := mig.CreateComputeInstance(m, g, id, 1, mig.Anywhere)
	if err != nil {
		t.Fatal(err)
	}
	if err := mig.DestroyGPUInstance(g, id); !errors.Is(err, mig.ErrInUse) {
		t.Errorf("with a compute instance: %v", err)
	}
	g.Processes[0] = state.Process{PID: 1, GPUInstance: id, ComputeInstance: compute}
	if err := mig.DestroyComputeInstance(g, id, compute); !errors.Is(err, mig.ErrInUse) {
		t.Errorf("with a process: %v", err)
	}
	g.Processes[0] = state.Process{}
	if err := errors.Join(mig.DestroyComputeInstance(g, id, compute), mig.DestroyGPUInstance(g, id)); err != nil {
		t.Error(err)
	}
	if err := mig.DestroyGPUInstance(g, id); !errors.Is(err, mig.ErrInvalid) {
		t.Errorf("destroyed twice: %v", err)
	}
}

func TestCreateComputeInstanceDividesTheGPUInstance(t *testing.T) {
	m, g := model(), enabled()
	id := mustCreate(t, m, g, half, 0)
	instance := mig.FindGPUInstance(g, id)
	seen := map[[16]byte]bool{}
	for n := 3; n > 0; n-- {
		if got := mig.ComputeCapacity(&m.MIGProfiles[half], instance, 0); got != n {
			t.Fatalf("%d compute slices are free, want %d", got, n)
		}
		compute, err := mig.CreateComputeInstance(m, g, id, 0, mig.Anywhere)
		if err != nil {
			t.Fatal(err)
		}
		seen[mig.FindComputeInstance(instance, compute).UUID] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d UUIDs of 3 MIG devices", len(seen))
	}
	if _, err := mig.CreateComputeInstance(m, g, id, 0, mig.Anywhere); !errors.Is(err, mig.ErrInsufficientResources) {
		t.Errorf("a fourth: %v", err)
	}
	if _, err := mig.CreateComputeInstance(m, g, id, 0, 3); !errors.Is(err, mig.ErrInvalid) {
		t.Errorf("past the end: %v", err)
	}
}

func TestSetModeWaitsForAResetOnlyOnAmpere(t *testing.T) {
	hopper, ampere, without := model(), model(), &state.Model{}
	ampere.Architecture = 7
	for name, c := range map[string]struct {
		model             *state.Model
		others            bool
		want              error
		activation        error
		current, rebooted uint32
	}{
		"Hopper":                  {hopper, true, nil, nil, 1, 1},
		"Ampere":                  {ampere, false, nil, mig.ErrResetRequired, 0, 1},
		"Ampere, NVML is open":    {ampere, true, nil, mig.ErrInUse, 0, 1},
		"a GPU that has no slice": {without, false, mig.ErrNotSupported, nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := &state.GPU{}
			err, activation := mig.SetMode(c.model, g, true, c.others)
			if !errors.Is(err, c.want) || !errors.Is(activation, c.activation) || g.Core.MIGCurrent != c.current {
				t.Errorf("%v, %v, mode %d; want %v, %v, %d", err, activation, g.Core.MIGCurrent, c.want, c.activation, c.current)
			}
			if mig.Restart(g); g.Core.MIGCurrent != c.rebooted {
				t.Errorf("after a boot the mode is %d, want %d", g.Core.MIGCurrent, c.rebooted)
			}
		})
	}
}

func TestResetRemovesInstancesUnlessAProcessRuns(t *testing.T) {
	m, g := model(), enabled()
	mustCreate(t, m, g, half, 0)
	g.Processes[0].PID = 1
	if err := mig.Reset(g, false); !errors.Is(err, mig.ErrInUse) {
		t.Errorf("with a process: %v", err)
	}
	g.Processes[0].PID = 0
	if err := mig.Reset(g, true); !errors.Is(err, mig.ErrInUse) {
		t.Errorf("with another client: %v", err)
	}
	if err := mig.Reset(g, false); err != nil || mig.Capacity(m, g, half) != 2 {
		t.Errorf("%v; %d of 3g.40gb fit, want 2", err, mig.Capacity(m, g, half))
	}
}
