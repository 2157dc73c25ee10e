package sharedgpus

import (
	"fmt"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/settings"
)

func node(n int, memoryMiB uint64, mig *inventory.MIG) *inventory.Node {
	node := &inventory.Node{}
	for i := range n {
		node.GPUs = append(node.GPUs, &inventory.GPU{
			Index: i, Minor: i, UUID: fmt.Sprintf("GPU-%08d-4e5f-6071-8293-a4b5c6d7e8f9", i), ProductName: "NVIDIA L40S",
			MemoryBytes: memoryMiB << 20, Place: inventory.Place{NUMANode: i / 4}, MIG: mig,
		})
	}
	return node
}

func TestLayGivesTheCountsOfAnL40SNode(t *testing.T) {
	s := settings.Default()
	s.MemoryFactor = 10
	set, err := Compute(node(8, 49140, nil), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, m, c := len(set.Number()), len(set.Memory()), len(set.Cores()); n != 80 || m != 39312 || c != 800 {
		t.Errorf("number %d, memory %d, cores %d; want 80, 39312, 800", n, m, c)
	}
	first := set.Number()[79]
	if first.ID != "GPU-00000007-4e5f-6071-8293-a4b5c6d7e8f9-9" || first.NUMANodes[0] != 1 {
		t.Errorf("the last slot is %+v", first)
	}
	if got := UUIDOf(first.ID); got != "GPU-00000007-4e5f-6071-8293-a4b5c6d7e8f9" {
		t.Errorf("the slot's GPU is %q", got)
	}
	const want = "GPU-00000000-4e5f-6071-8293-a4b5c6d7e8f9,10,4914,NVIDIA-L40S,true,hami-core:"
	if got := annotation.FormatGPUs(set.Registered()[:1]); got != want {
		t.Errorf("registered as %s", got)
	}
}

func TestLayChoosesTheFactorByItselfAndKeepsTheClusters(t *testing.T) {
	for name, test := range map[string]struct{ inForce, want int }{
		"the first node":              {0, 16},
		"a cluster of smaller GPUs":   {4, 16},
		"a cluster with a larger one": {64, 64},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Compute(node(8, 183359, nil), settings.Default(), test.inForce)
			if err != nil {
				t.Fatal(err)
			}
			if set.Factor != test.want {
				t.Errorf("factor %d, want %d", set.Factor, test.want)
			}
		})
	}
}

func TestCoresFollowScaling(t *testing.T) {
	for scaling, want := range map[float64]int{0.29: 29, 0.57: 57, 1: 100, 1.15: 115, 0.001: 1} {
		s := settings.Default()
		s.CoreScaling = scaling
		set, err := Compute(node(1, 49140, nil), s, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(set.Cores()); got != want {
			t.Errorf("scaling %g: %d, want %d", scaling, got, want)
		}
	}
}

func TestLayRefusesMIGModeOnAGPUWithoutIt(t *testing.T) {
	s := settings.Default()
	s.Mode = annotation.ModeMIG
	for name, test := range map[string]struct {
		mig  *inventory.MIG
		want string
	}{
		"a GPU that cannot":      {nil, "cannot be partitioned"},
		"a GPU without profiles": {&inventory.MIG{}, "cannot be partitioned"},
		"a GPU that can":         {&inventory.MIG{Profiles: []inventory.Profile{{MaxInstances: 7}, {MaxInstances: 1}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Compute(node(1, 40960, test.mig), s, 0)
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" {
				if len(set.Cards) != 1 || set.Cards[0].Slots != 7 {
					t.Errorf("cards %+v, want one of 7 slots", set.Cards)
				}
				return
			}
			if len(set.Cards) != 0 || len(set.Refused) != 1 || !strings.Contains(set.Refused[0].Error(), test.want) {
				t.Errorf("cards %v, refused %v; want none and %q", set.Cards, set.Refused, test.want)
			}
		})
	}
}

func TestLayLeavesHiddenGPUsOut(t *testing.T) {
	s := settings.Default()
	s.HiddenIndexes = []int{1}
	s.HiddenUUIDs = []string{"GPU-00000002-4e5f-6071-8293-a4b5c6d7e8f9"}
	set, err := Compute(node(4, 1000, nil), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Cards) != 2 || set.ByUUID("GPU-00000003-4e5f-6071-8293-a4b5c6d7e8f9") == nil || set.ByUUID(s.HiddenUUIDs[0]) != nil {
		t.Errorf("cards %+v, want GPUs 0 and 3", set.Cards)
	}
}

// Volcano's scheduler uses the mode of a node's last GPU for all of them, and takes the unit of memory only from gpuMemoryFactor.
func TestSetReportsGPUsThatVolcanoCannotFollow(t *testing.T) {
	mig := &inventory.MIG{Profiles: []inventory.Profile{{Name: "1g.5gb", MaxInstances: 7}}}
	for name, test := range map[string]struct {
		mode   annotation.Mode
		other  annotation.Mode // of the second GPU
		factor int             // that the settings have
		agreed int
		who    settings.Scheduler
		shared int
		words  string
	}{
		"one mode": {mode: annotation.ModeSoftware, who: settings.Volcano, shared: 2},
		"two modes": {mode: annotation.ModeSoftware, other: annotation.ModeMIG, who: settings.Volcano, shared: 1,
			words: "Volcano supports one mode per node"},
		"two modes, and our scheduler": {mode: annotation.ModeSoftware, other: annotation.ModeMIG, who: settings.GPUFabric, shared: 2},
		"MIG in a unit that was chosen": {mode: annotation.ModeMIG, agreed: 4, who: settings.Volcano, shared: 0,
			words: "Set gpuMemoryFactor: 4"},
		"MIG in a unit that Volcano is told":     {mode: annotation.ModeMIG, factor: 4, who: settings.Volcano, shared: 2},
		"MIG in a unit of 1 MiB":                 {mode: annotation.ModeMIG, who: settings.Volcano, shared: 2},
		"MIG in a chosen unit, by our scheduler": {mode: annotation.ModeMIG, agreed: 4, who: settings.GPUFabric, shared: 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(2, 40960, mig)
			s := settings.Default()
			s.Mode, s.MemoryFactor, s.Scheduler = test.mode, test.factor, test.who
			if test.other != "" {
				s.GPUModes = map[string]annotation.Mode{n.GPUs[1].UUID: test.other}
			}
			set, err := Compute(n, s, test.agreed)
			if err != nil {
				t.Fatal(err)
			}
			said := fmt.Sprint(set.Refused)
			if len(set.Cards) != test.shared || len(set.Refused) != 2-test.shared || !strings.Contains(said, test.words) {
				t.Errorf("%d GPUs are shared, refused %s; want %d and %q", len(set.Cards), said, test.shared, test.words)
			}
		})
	}
}

func TestLayNamesConfigurationWithoutEffect(t *testing.T) {
	const absent = "GPU-99999999-4e5f-6071-8293-a4b5c6d7e8f9"
	n := node(2, 49140, nil)
	s := settings.Default()
	s.HiddenUUIDs, s.HiddenIndexes = []string{n.GPUs[0].UUID, absent}, []int{1, 7}
	s.GPUModes = map[string]annotation.Mode{absent: annotation.ModeSoftware, n.GPUs[1].UUID: annotation.ModeSoftware}
	set, err := Compute(n, s, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(set.WithoutEffect, "\n")
	for _, want := range []string{"filterdevices.uuid[1]: " + absent + " names no GPU", "filterdevices.index[1]: 7 names no GPU",
		"gpumodes[" + absent + "] names no GPU", "gpumodes[" + n.GPUs[1].UUID + "] names a GPU that filterdevices"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if len(set.WithoutEffect) != 4 {
		t.Errorf("%d entries, want 4:\n%s", len(set.WithoutEffect), got)
	}
}
