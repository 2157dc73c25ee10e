package instances

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/settings"
)

// node is a machine of two A100-40 and the manager on it.
type node struct {
	*Manager
	t       *testing.T
	machine *gputest.Machine
	read    *inventory.Node
	options Options
}

func start(t *testing.T, known ...settings.Geometry) *node {
	n := &node{t: t, machine: gputest.New(t, 2)}
	var err error
	n.read, err = inventory.Reader{NVML: n.machine, Locate: func(busID string) (inventory.Place, error) {
		return inventory.Place{BusID: busID},
			nil
	}}.Read()
	if err != nil {
		t.Fatal(err)
	}
	n.options = Options{Directory: t.TempDir(), Boot: "boot-1", GPU: n.read.ByUUID,
		Geometries: func(string) []settings.Geometry { return known }}
	n.again()
	return n
}

// again restarts the manager, as after a kill.
func (n *node) again() {
	n.t.Helper()
	m, unreadable, err := New(n.options)
	if err != nil || len(unreadable) > 0 {
		n.t.Fatal(err, unreadable)
	}
	n.Manager = m
}

func owner(name string) Owner {
	return Owner{PodUID: "uid-" + name, Container: "main", Namespace: "default", Pod: name}
}

func (n *node) give(name string, asks ...Ask) ([]Instance, error) {
	n.t.Helper()
	return n.Give(n.t.Context(), owner(name), asks)
}

func (n *node) memory(gpu int, mib int64) Ask { return Ask{GPU: n.read.GPUs[gpu], MemoryMiB: mib} }

func (n *node) slot(group, position int) Ask {
	return Ask{GPU: n.read.GPUs[0], Slot: annotation.SlotAt(group, position)}
}

// stands compares the instances on the first GPU ("19@0": profile 19 at memory slice 0).
func (n *node) stands(want ...string) {
	n.t.Helper()
	got := n.machine.GPUs[0].Instances()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		n.t.Errorf("%v stand, want %v", got, want)
	}
}

// end ends a pod and waits until nothing is left to do.
func (n *node) end(name string) {
	n.t.Helper()
	n.End("uid-" + name)
	if left := n.sweep(n.t.Context()); left > 0 {
		n.t.Errorf("%d owners are not ended", left)
	}
}

func TestAllocateGivesTheSmallestInstance(t *testing.T) {
	for _, test := range []struct {
		memory int64
		cores  int
		want   string
	}{
		{3000, 0, "1g.5gb"}, {4864, 0, "1g.5gb"}, {4865, 0, "1g.10gb"}, {3000, 20, "2g.10gb"}, {12000, 0, "3g.20gb"}, {12000, 50, "4g.20gb"},
		{30000, 0, "7g.40gb"}, {0, 0, "7g.40gb"},
	} {
		t.Run(fmt.Sprintf("%d MiB and %d percent", test.memory, test.cores), func(t *testing.T) {
			n := start(t)
			ask := n.memory(0, test.memory)
			ask.Cores = test.cores
			given, err := n.give("train", ask)
			if err != nil {
				t.Fatal(err)
			}
			if given[0].Profile != test.want || given[0].AskedMiB != test.memory || !strings.HasPrefix(given[0].UUID, "MIG-") {
				t.Errorf("given %+v, want %s", given[0], test.want)
			}
		})
	}
}

func TestSevenFitAndTheEighthIsRefusedInWords(t *testing.T) {
	n := start(t)
	seen := map[string]bool{}
	for i := range 7 {
		given, err := n.give(fmt.Sprint("train-", i), n.memory(0, 3000))
		if err != nil {
			t.Fatal(err)
		}
		if seen[given[0].UUID] {
			t.Errorf("%s is two pods'", given[0].UUID)
		}
		seen[given[0].UUID] = true
	}
	if _, err := n.give("one-more", n.memory(0, 3000)); err == nil || !strings.Contains(err.Error(), "has room left") {
		t.Errorf("got %v, want a refusal", err)
	}
	n.end("train-3")
	if _, err := n.give("one-more", n.memory(0, 3000)); err != nil {
		t.Error(err)
	}
}

func TestAllocateTakesThePlacementThatBlocksFewest(t *testing.T) {
	n := start(t)
	for i, memory := range []int64{3000, 19000} {
		if _, err := n.give(fmt.Sprint("train-", i), n.memory(0, memory)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.give("large", n.memory(0, 19000)); err == nil {
		t.Error("two 3g.20gb were given beside a 1g.5gb")
	}
	n.stands("19@6", "9@0") // the small one is where only one large one could be
}

var groups = []settings.Geometry{
	{Name: "small", Instances: []settings.Instances{{Profile: "1g.5gb", MemoryMiB: 5120, Count: 7}}},
	{Name: "mixed", Instances: []settings.Instances{{Profile: "1g.5gb", MemoryMiB: 5120, Count: 1},
		{Profile: "2g.10gb", MemoryMiB: 10240, Count: 3}}},
	{Name: "other driver's", Instances: []settings.Instances{{Profile: "1g.6gb", MemoryMiB: 6144, Count: 1}}},
	{Name: "impossible", Instances: []settings.Instances{{Profile: "7g.40gb", MemoryMiB: 40960, Count: 2}}},
}

// whole is the layout of a GPU with a single instance.
var whole = settings.Geometry{Instances: []settings.Instances{{Profile: "7g.40gb", MemoryMiB: 39936, Count: 1}}}

func TestSlotIsAPlaceInItsGeometry(t *testing.T) {
	for _, test := range []struct {
		group, position int
		want            string // the existing instances, or the error
	}{
		{0, 0, "19@0"}, {0, 6, "19@6"}, {1, 0, "19@6"}, {1, 1, "14@0"}, {1, 3, "14@4"},
		{0, 7, "position 7 of a geometry of 7"}, {9, 0, "0 to 3 are supported"},
	} {
		t.Run(fmt.Sprintf("[%d-%d]", test.group, test.position), func(t *testing.T) {
			known := groups[:2]
			if test.group >= 2 {
				known = slices.Concat(groups[:2], groups[:2])
			}
			n := start(t, known...)
			_, err := n.give("train", n.slot(test.group, test.position))
			if strings.Contains(test.want, "@") {
				if err != nil {
					t.Fatal(err)
				}
				n.stands(test.want)
			} else if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestSlotRejectsAGeometryThatTheGPULacks(t *testing.T) {
	for group, want := range map[int]string{2: "1g.6gb is not a MIG profile", 3: "do not fit the GPU together"} {
		n := start(t, groups[group])
		if _, err := n.give("train", n.slot(0, 0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestSlotRefusalDoesNotNamePodsOfOtherNamespaces(t *testing.T) {
	n := start(t, whole, groups[0])
	if _, err := n.Give(t.Context(), Owner{PodUID: "u1", Container: "main", Namespace: "secret", Pod: "payroll"},
		[]Ask{n.slot(0, 0)}); err != nil {
		t.Fatal(err)
	}
	_, err := n.give("attacker", n.slot(1, 0))
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "which a pod of another namespace has") {
		t.Errorf("the attacker reads %v", err)
	}
	t.Logf("attacker sees: %v", err)
}

// Volcano writes a geometry's name (mig.go of its scheduler, encodeMIGID); ours writes its index in the list.
func TestSlotIsNamedByGeometryOrPlace(t *testing.T) {
	named := slices.Clone(groups[:2])
	named[0].Name, named[1].Name = "group1", "group2"
	for slot, want := range map[annotation.MIGSlot]string{
		{Group: "group1", Position: 6}: "19@6", {Group: "group2", Position: 1}: "14@0", {Group: "1", Position: 1}: "14@0",
		{Group: "group3", Position: 0}: "geometry group3, where 0 to 1 are supported for NVIDIA A100-SXM4-40GB, named group1, group2",
		{Group: "2", Position: 0}:      "geometry 2",
	} {
		n := start(t, named...)
		_, err := n.give("train", Ask{GPU: n.read.GPUs[0], Slot: &slot})
		if strings.Contains(want, "@") && err == nil {
			n.stands(want)
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("slot %s: got %v, want %q", slot, err, want)
		}
	}
}

// Volcano does not count a slot as given within a session (device_info.go of its scheduler), so it gives one to several pods.
func TestSlotInUseIsReplacedByAnEqualFreeOne(t *testing.T) {
	n := start(t, groups[:2]...)
	for i, want := range []string{"14@0", "14@2", "14@4"} {
		given, err := n.give(fmt.Sprintf("pod-%d", i), n.slot(1, 1))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d@%d", given[0].ProfileID, given[0].Start); got != want {
			t.Errorf("pod %d was given %s, want %s", i, got, want)
		}
	}
	if _, err := n.give("late", n.slot(1, 1)); err == nil || !strings.Contains(err.Error(),
		"default/pod-0, container main has, and the GPU has no free slot") {
		t.Errorf("got %v, want a refusal that names the holder", err)
	}
	// The same pod keeps its instances, and released ones are given out again.
	if again, err := n.give("pod-1", n.slot(1, 1)); err != nil || again[0].Start != 2 {
		t.Errorf("started again, it was given %+v (%v)", again, err)
	}
	n.end("pod-1")
	if given, err := n.give("late", n.slot(1, 1)); err != nil || given[0].Start != 2 {
		t.Errorf("given %+v (%v), want the place that was given back", given, err)
	}
}

func TestSlotIsNeverGivenTwice(t *testing.T) {
	n := start(t, whole, groups[0])
	if _, err := n.give("first", n.slot(0, 0)); err != nil {
		t.Fatal(err)
	}
	for _, taken := range []Ask{n.slot(0, 0), n.slot(1, 1)} { // the same, and one of another geometry that overlaps it
		if _, err := n.give("second", taken); err == nil || !strings.Contains(err.Error(), "default/first, container main has") {
			t.Errorf("got %v, want a refusal that names the holder", err)
		}
	}
	n.end("first")
	if _, err := n.give("second", n.slot(1, 1)); err != nil {
		t.Error(err)
	}
	n.stands("19@1")
}

func TestGeometriesThatPromiseMoreThanTheDriverGivesAreNamed(t *testing.T) {
	n := start(t)
	if errs := Overstated(n.read.GPUs[0], groups[:1]); len(errs) != 1 || !strings.Contains(errs[0].Error(), "gives it 4864") {
		t.Errorf("got %v, want 5120 MiB of a 1g.5gb named", errs)
	}
}

func TestAllocateGivesTheSameInstancesAfterARestart(t *testing.T) {
	n := start(t)
	first, err := n.give("train", n.memory(0, 3000), n.memory(1, 9000))
	if err != nil {
		t.Fatal(err)
	}
	n.again()
	second, err := n.give("train", n.memory(0, 3000), n.memory(1, 9000))
	if err != nil || !slices.Equal(first, second) {
		t.Errorf("given %+v (%v), want %+v", second, err, first)
	}
}

func TestInstancesAreConsistentAfterACrash(t *testing.T) {
	n := start(t)
	for _, name := range []string{"lives", "ended"} {
		if _, err := n.give(name, n.memory(0, 3000)); err != nil {
			t.Fatal(err)
		}
	}
	n.machine.GPUs[0].DropCompute() // the state that a kill between two NVML calls leaves
	n.again()
	n.Keep(map[string]bool{"uid-lives": true})
	if left := n.sweep(t.Context()); left != 0 || n.Len() != 1 {
		t.Errorf("%d to end, %d kept; want the living pod's alone", left, n.Len())
	}
	given, err := n.give("lives", n.memory(0, 3000))
	if err != nil {
		t.Fatal(err)
	}
	n.stands(fmt.Sprintf("19@%d", given[0].Start))
}

func TestInstancesAreMadeAgainAfterAReboot(t *testing.T) {
	n := start(t)
	before, err := n.give("train", n.memory(0, 3000))
	if err != nil {
		t.Fatal(err)
	}
	n.machine.Boot(t, "boot-2")
	n.again()
	after, err := n.give("train", n.memory(0, 3000))
	if err != nil || after[0].Start != before[0].Start {
		t.Errorf("given %+v (%v), want the place at %d again", after, err, before[0].Start)
	}
}

func TestAllocateUsesAndKeepsAnIdleInstance(t *testing.T) {
	n := start(t)
	if _, err := n.give("before", n.memory(0, 3000)); err != nil {
		t.Fatal(err)
	}
	if err := n.store.Delete(owner("before").id()); err != nil { // without an owner, as an administrator's own instance
		t.Fatal(err)
	}
	given, err := n.give("train", n.memory(0, 4000))
	if err != nil || !given[0].Found {
		t.Fatalf("given %+v (%v), want the one that exists", given, err)
	}
	n.end("train")
	n.stands("19@6")
	if _, err := n.give("large", n.memory(0, 40000)); err != nil { // it is removed to make room
		t.Fatal(err)
	}
	n.stands("0@0")
}

func TestAllocateUndoesAHalfMadeAllocation(t *testing.T) {
	n := start(t)
	n.machine.GPUs[1].FailCompute = 1
	if _, err := n.give("train", n.memory(0, 3000), n.memory(1, 3000)); err == nil {
		t.Fatal("given although the second could not be made")
	}
	n.stands()
	if n.Len() != 0 {
		t.Errorf("%d owners are kept", n.Len())
	}
}

func TestInstancesInUseAreRemovedWhenFree(t *testing.T) {
	n := start(t)
	if _, err := n.give("train", n.memory(0, 3000)); err != nil {
		t.Fatal(err)
	}
	n.machine.GPUs[0].Busy = 1
	n.End("uid-train")
	if left := n.sweep(t.Context()); left != 1 || n.Len() != 1 {
		t.Errorf("%d to end, %d kept while a process uses it; want 1 and 1", left, n.Len())
	}
	n.end("train")
	n.stands()
}

func TestAllocateSkipsAFaultyPlacement(t *testing.T) {
	n := start(t)
	n.options.Faulty = func(_ string, at inventory.Placement) error {
		if at.Start >= 4 {
			return errors.New("XID 48")
		}
		return nil
	}
	n.again()
	given, err := n.give("train", n.memory(0, 3000))
	if err != nil || given[0].Start >= 4 {
		t.Errorf("given %+v (%v), want a place away from the fault", given, err)
	}
}

func TestAllocateFindsASlowAllocationAtTheNextTry(t *testing.T) {
	n := start(t)
	proceed := make(chan struct{})
	n.machine.GPUs[0].BeforeMIG = func() { <-proceed }
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Give(over, owner("train"), []Ask{n.memory(0, 3000)}); !errors.Is(err, ErrPending) {
		t.Fatalf("got %v, want ErrPending", err)
	}
	close(proceed)
	n.work.Wait()
	n.stands("19@6")
	given, err := n.give("train", n.memory(0, 3000))
	if err != nil || given[0].Found {
		t.Errorf("given %+v (%v), want the one that was made", given, err)
	}
	n.stands("19@6")
}

// A pod is deleted while its instance waits for another's to be made on the same GPU.
func TestAllocateUndoesAnAllocationToAnEndedPod(t *testing.T) {
	n := start(t)
	unlock, err := n.gpus.Lock(t.Context(), n.read.GPUs[0].UUID)
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Give(over, owner("train"), []Ask{n.memory(0, 3000)}); !errors.Is(err, ErrPending) {
		t.Fatalf("got %v, want ErrPending", err)
	}
	n.End("uid-train")
	n.sweep(t.Context())
	unlock()
	n.work.Wait()
	if left := n.sweep(t.Context()); left > 0 || n.Len() > 0 {
		t.Errorf("%d to end, %d kept; want none", left, n.Len())
	}
	n.stands()
}

func FuzzPack(f *testing.F) {
	f.Add([]byte{0, 0, 1})
	f.Fuzz(func(t *testing.T, picks []byte) {
		n := &inventory.MIG{Profiles: []inventory.Profile{
			{MemoryBytes: 1, Placements: []inventory.Placement{{Start: 0, Size: 1}, {Start: 1, Size: 1}, {Start: 2, Size: 1}, {Start: 3, Size: 1}}},
			{MemoryBytes: 2, Placements: []inventory.Placement{{Start: 0, Size: 2}, {Start: 2, Size: 2}}},
			{MemoryBytes: 4, Placements: []inventory.Placement{{Start: 0, Size: 4}}},
		}}
		var list []inventory.Profile
		for _, pick := range picks[:min(len(picks), 7)] {
			list = append(list, n.Profiles[int(pick)%len(n.Profiles)])
		}
		placed, ok := pack(list)
		if !ok {
			return
		}
		for i, a := range placed {
			for _, b := range placed[:i] {
				if overlap(a, b) {
					t.Errorf("%v overlap", placed)
				}
			}
		}
	})
}
