package partition_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
)

// cuttable is a GPU in MIG mode, as the driver and as its user see it.
func cuttable(t *testing.T) (*gputest.GPU, *inventory.GPU) {
	t.Helper()
	machine, gpu := whole(t)
	if err := partition.SetMode(gpu, true); err != nil {
		t.Fatal(err)
	}
	return machine, gpu
}

func whole(t *testing.T) (*gputest.GPU, *inventory.GPU) {
	t.Helper()
	m := gputest.New(t, 1)
	place := func(id string) (inventory.Place, error) { return inventory.Place{BusID: id}, nil }
	node, err := inventory.Reader{NVML: m, Locate: place}.Read()
	if err != nil || len(node.GPUs) != 1 || node.GPUs[0].MIG == nil {
		t.Fatalf("%d GPUs: %v", len(node.GPUs), err)
	}
	return m.GPUs[0], node.GPUs[0]
}

func profile(t *testing.T, g *inventory.GPU, name string) inventory.Profile {
	t.Helper()
	at := slices.IndexFunc(g.MIG.Profiles, func(p inventory.Profile) bool { return p.Name == name })
	if at < 0 {
		t.Fatalf("%s has no profile %s", g.UUID, name)
	}
	return g.MIG.Profiles[at]
}

func list(t *testing.T, g *inventory.GPU) []partition.Instance {
	t.Helper()
	standing, err := partition.List(g)
	if err != nil {
		t.Fatal(err)
	}
	return standing
}

func TestInstanceIsMadeOnceAndRemovedOnce(t *testing.T) {
	_, gpu := cuttable(t)
	p := profile(t, gpu, "3g.20gb")
	made, err := partition.Create(gpu, p, inventory.Placement{Start: 4, Size: 4})
	if err != nil || !made.Whole() || made.Start != 4 || made.Size != 4 || !strings.HasPrefix(made.UUID, "MIG-") {
		t.Fatalf("made %+v: %v", made, err)
	}
	if again, err := partition.Create(gpu, p, inventory.Placement{Start: 4, Size: 4}); err != nil || again != made {
		t.Errorf("the second time it is %+v: %v", again, err)
	}
	if standing := list(t, gpu); !slices.Equal(standing, []partition.Instance{made}) {
		t.Errorf("standing are %+v", standing)
	}
	if found, ok := partition.At(list(t, gpu), p.ID, 4); !ok || found != made {
		t.Errorf("at memory slice 4 stands %+v", found)
	}
	if _, ok := partition.At(list(t, gpu), p.ID, 0); ok {
		t.Error("an instance stands where none was made")
	}
	for range 2 { // a missing instance is no error
		if err := partition.Destroy(gpu, p, 4); err != nil {
			t.Fatal(err)
		}
	}
	if standing := list(t, gpu); len(standing) > 0 {
		t.Errorf("still standing are %+v", standing)
	}
}

func TestInstanceThatIsNotFilledIsUndoneOrFilled(t *testing.T) {
	machine, gpu := cuttable(t)
	p, at := profile(t, gpu, "1g.5gb"), inventory.Placement{Start: 2, Size: 1}
	machine.FailCompute = 1
	if _, err := partition.Create(gpu, p, at); err == nil || !strings.Contains(err.Error(), "make the compute instance") {
		t.Errorf("error %v", err)
	}
	if standing := list(t, gpu); len(standing) > 0 {
		t.Errorf("a failure leaves %+v", standing)
	}
	if _, err := partition.Create(gpu, p, at); err != nil {
		t.Fatal(err)
	}
	machine.DropCompute() // as a crash between the two steps leaves it
	if standing := list(t, gpu); len(standing) != 1 || standing[0].Whole() || standing[0].UUID != "" {
		t.Errorf("half an instance is listed as %+v", standing)
	}
	if made, err := partition.Create(gpu, p, at); err != nil || !made.Whole() {
		t.Errorf("half an instance becomes %+v: %v", made, err)
	}
}

func TestInstanceInUseIsReportedAsBusy(t *testing.T) {
	machine, gpu := cuttable(t)
	p := profile(t, gpu, "1g.5gb")
	if _, err := partition.Create(gpu, p, inventory.Placement{Start: 0, Size: 1}); err != nil {
		t.Fatal(err)
	}
	machine.Busy = 1
	if err := partition.Destroy(gpu, p, 0); !errors.Is(err, partition.ErrBusy) || !strings.Contains(err.Error(), gpu.UUID) {
		t.Errorf("error %v", err)
	}
	if err := partition.Destroy(gpu, p, 0); err != nil || len(list(t, gpu)) > 0 {
		t.Errorf("once nothing uses it: %v", err)
	}
}

func TestInstancesDoNotOverlap(t *testing.T) {
	_, gpu := cuttable(t)
	if _, err := partition.Create(gpu, profile(t, gpu, "3g.20gb"), inventory.Placement{Start: 0, Size: 4}); err != nil {
		t.Fatal(err)
	}
	_, err := partition.Create(gpu, profile(t, gpu, "1g.5gb"), inventory.Placement{Start: 3, Size: 1})
	if !errors.Is(err, nvml.ERROR_INSUFFICIENT_RESOURCES) || !strings.Contains(err.Error(), "1g.5gb at memory slice 3") {
		t.Errorf("error %v", err)
	}
	standing := list(t, gpu)[0]
	for start, overlaps := range map[int]bool{0: true, 3: true, 4: false} {
		if standing.Overlaps(inventory.Placement{Start: start, Size: 1}) != overlaps {
			t.Errorf("%+v and memory slice %d: overlap %t", standing, start, !overlaps)
		}
	}
}

func TestInstancesNeedMIGMode(t *testing.T) {
	_, gpu := whole(t)
	if standing := list(t, gpu); len(standing) > 0 {
		t.Errorf("standing are %+v", standing)
	}
	if err := partition.Destroy(gpu, profile(t, gpu, "1g.5gb"), 0); err != nil {
		t.Error(err)
	}
	if _, err := partition.Create(gpu, profile(t, gpu, "1g.5gb"), inventory.Placement{Size: 1}); err == nil {
		t.Error("an instance was made without MIG mode")
	}
}
