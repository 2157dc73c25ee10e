package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/fabricpartition"
	"gpufabric.io/drivers/gpu/passthrough/passthroughtest"
	"gpufabric.io/drivers/hardware/nvfm"
	"gpufabric.io/drivers/hardware/pci"
	fake "gpufabric.io/fakes/nvfm"
)

const (
	otherGPU  = "0000:5e:00.0"
	otherName = "gpu-vfio-0000-5e-00-0"
)

// board is the NVSwitches of a node with two GPUs, of modules 1 and 2: partition 1 has both, 2 and 3 have one each.
type board struct {
	fabricpartition.Manager
	fake   *fake.Manager
	kernel *passthroughtest.Kernel
}

func (b *board) modules(context.Context) (map[pci.Address]int, error) {
	return map[pci.Address]int{passedGPU: 1, otherGPU: 2}, nil
}

// Activate is that of a fabric manager that trains links through NVIDIA's driver, as on an HGX A100.
func (b *board) Activate(ctx context.Context, id int) error {
	for gpu, partitions := range map[string][]int{passedGPU: {1, 2}, otherGPU: {1, 3}} {
		if slices.Contains(partitions, id) && b.kernel.Driver(gpu) != "nvidia" {
			return nvfm.Status(-10)
		}
	}
	return b.Manager.Activate(ctx, id)
}

// Deactivate is that of one whose virtual machines must have ended.
func (b *board) Deactivate(ctx context.Context, id int) error {
	if id == 1 && (b.kernel.Driver(passedGPU) == "vfio-pci" || b.kernel.Driver(otherGPU) == "vfio-pci") {
		return errors.New("deactivated below a virtual machine")
	}
	return b.Manager.Deactivate(ctx, id)
}

// boardBench runs the role on a node with NVSwitches, and the GPUs in form vfio.
func boardBench(t *testing.T) *bench {
	t.Helper()
	library := fake.Library(t)
	b, k := passBench(t, vfioForms, false)
	b.stop()
	k.Add(passthroughtest.Function{Address: "0000:05:00.0", Vendor: "0x10de", Device: "0x22a3", Class: "0x068000", Group: 2})
	m := fake.New(t, []fake.Partition{{ID: 1, GPUs: map[int]string{1: "", 2: ""}}, {ID: 2, GPUs: map[int]string{1: ""}},
		{ID: 3, GPUs: map[int]string{2: ""}}})
	client := &nvfm.Client{Address: m.Address, Open: func() (string, error) { return library, nil }}
	b.board = &board{Manager: client, fake: m, kernel: k}
	b.options.FabricManager = m.Address
	b.start()
	// The slice of the run before, which had no NVSwitches, has the same devices.
	b.await(func() bool {
		all := b.slices()
		return len(all) == 1 && !slices.ContainsFunc(all[0].Spec.Devices, func(d resourceapi.Device) bool {
			return d.Attributes["gpuModuleID"].IntValue == nil
		})
	}, "the devices have their places in partitions")
	return b
}

func (b *bench) wantPartitions(when string, want ...int) {
	b.Helper()
	if got := b.board.fake.Active(); !slices.Equal(got, want) {
		b.Errorf("%s: active partitions are %v, want %v", when, got, want)
	}
}

func TestPluginActivatesPartitionWhileClaimHasItsGPUs(t *testing.T) {
	b := boardBench(t)
	b.awaitNames(passedName, otherName)
	for _, d := range b.slices()[0].Spec.Devices {
		module, pair := d.Attributes["gpuModuleID"].IntValue, d.Attributes["partition2"].IntValue
		if module == nil || pair == nil || *pair != 1 || d.Attributes["partition1"].IntValue == nil ||
			d.Attributes["partition4"].IntValue != nil {
			t.Errorf("device %s has attributes %v", d.Name, d.Attributes)
		}
	}
	both := b.claim("both", nil, device{name: passedName}, device{name: otherName})
	b.mustPrepare(both)
	b.wantPartitions("prepared", 1)
	b.mustPrepare(both)
	b.wantPartitions("prepared again", 1)
	if problem := b.unprepare(both); problem != "" {
		t.Fatal(problem)
	}
	b.wantPartitions("released")
	one := b.claim("one", nil, device{name: otherName})
	b.mustPrepare(one)
	b.wantPartitions("one GPU", 3)
}

func TestPluginRefusesGPUsOutsideOfAPartition(t *testing.T) {
	b := boardBench(t)
	b.awaitNames(passedName, otherName)
	b.stop()
	b.board.fake.Replace("partition 1 0", "partition 1 0 8:-")
	b.start()
	b.awaitNames(passedName, otherName)
	if _, problem := b.prepare(b.claim("both", nil, device{name: passedName}, device{name: otherName})); !strings.Contains(problem,
		"not a partition of Fabric Manager") {
		t.Errorf("got %q", problem)
	}
	if len(b.board.kernel.Writes) > 0 {
		t.Errorf("a refused claim changed drivers: %v", b.board.kernel.Writes)
	}
	b.wantPartitions("refused")
}

func TestPluginOffersNoGPUBehindNVSwitchesWithoutFabricManager(t *testing.T) {
	b := boardBench(t)
	b.awaitNames(passedName, otherName)
	b.stop()
	b.board.fake.Stop()
	b.start()
	b.await(func() bool {
		c := b.formsCondition()
		return c.Reason == "FormNotOnGPU" && strings.Contains(c.Message, "FM_ST_CONNECTION_NOT_VALID")
	}, "the condition names the fabric manager")
	b.awaitNames()
}

// A restart finds the partitions of its machines, and deactivates that of a claim without a record.
func TestPluginDeactivatesPartitionOfLostClaimWhenItStarts(t *testing.T) {
	b := boardBench(t)
	b.awaitNames(passedName, otherName)
	one, two := b.claim("v1", nil, device{name: passedName}), b.claim("v2", nil, device{name: otherName})
	b.mustPrepare(one)
	b.mustPrepare(two)
	b.wantPartitions("both", 2, 3)
	b.stop()
	b.board.fake.Restart(true)
	if err := os.Remove(filepath.Join(b.options.StateDir, "claims", "v2.claim")); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.await(func() bool { return slices.Equal(b.board.fake.Active(), []int{2}) }, "only the partition of the claim that is left is active")
	if problem := b.unprepare(one); problem != "" {
		t.Fatal(problem)
	}
	b.wantPartitions("released")
}

func TestPluginReleasesClaimWhileThereIsNoFabricManager(t *testing.T) {
	b := boardBench(t)
	b.stop()
	b.recheck = 50 * time.Millisecond
	b.start()
	b.awaitNames(passedName, otherName)
	claim := b.claim("v1", nil, device{name: passedName})
	b.mustPrepare(claim)
	b.wantPartitions("prepared", 2)
	b.board.fake.Stop()
	if problem := b.unprepare(claim); problem != "" {
		t.Fatal(problem)
	}
	b.board.fake.Start()
	b.await(func() bool { return len(b.board.fake.Active()) == 0 }, "the partition is deactivated when the fabric manager is back")
	b.mustPrepare(b.claim("v2", nil, device{name: passedName}, device{name: otherName}))
	b.wantPartitions("both", 1)
}

func TestPluginOffersGPUsWithoutNVSwitchesWhereThereIsNoFabricManager(t *testing.T) {
	b, _ := passBench(t, vfioForms, false)
	b.stop()
	b.options.FabricManager = filepath.Join(t.TempDir(), "socket")
	b.start()
	b.awaitNames(passedName, otherName)
	claim := b.claim("v1", nil, device{name: passedName}, device{name: otherName})
	b.mustPrepare(claim)
	if problem := b.unprepare(claim); problem != "" {
		t.Error(problem)
	}
}
