package fabricpartition_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/fabricpartition"
	"gpufabric.io/drivers/hardware/nvfm"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
	fake "gpufabric.io/fakes/nvfm"
)

// The partitions of fake.HGX: 1 has all GPUs, 2 and 3 have four, 4 to 7 two, 8 to 15 one.
const pair, nextPair, four, single = 4, 5, 2, 8

// board is a node with eight GPUs behind NVSwitches, and the keeper's journal.
type board struct {
	*fake.Manager
	t       *testing.T
	library string
	journal string
	modules int // calls of nvidia-smi
}

func newBoard(t *testing.T, library string) *board {
	return &board{t: t, Manager: fake.New(t, fake.HGX()), library: library,
		journal: filepath.Join(t.TempDir(), "partitions.json")}
}

func gpu(module int) pci.Address { return pci.Address(fmt.Sprintf("0000:%02x:00.0", 0x10+module)) }

func gpus(modules ...int) []pci.Address {
	var out []pci.Address
	for _, m := range modules {
		out = append(out, gpu(m))
	}
	return out
}

func all() []pci.Address { return gpus(1, 2, 3, 4, 5, 6, 7, 8) }

// start is a start of the program: it reads the journal that the last one left. step, where it is not nil, is called before each write
// of the journal, and before and after each call that changes partitions.
func (b *board) start(step func() error) *fabricpartition.Keeper {
	b.t.Helper()
	var writer atomicfile.Writer
	if step != nil {
		writer.Before = func(_ atomicfile.Step, _ string) error { return step() }
	}
	j, err := fabricpartition.OpenJournal(b.journal, writer)
	if err != nil {
		b.t.Fatal(err)
	}
	manager := &interrupted{Manager: &nvfm.Client{Address: b.Address, Open: func() (string, error) { return b.library, nil }}, step: step}
	return &fabricpartition.Keeper{Journal: j, Manager: manager, Modules: func(context.Context) (map[pci.Address]int, error) {
		b.modules++
		found := map[pci.Address]int{}
		for m := 1; m <= 8; m++ {
			found[gpu(m)] = m
		}
		return found, nil
	}}
}

// refreshed is a start that has read the partitions.
func (b *board) refreshed() *fabricpartition.Keeper {
	b.t.Helper()
	k := b.start(nil)
	if lost, err := k.Refresh(b.t.Context(), all()); err != nil || len(lost) > 0 {
		b.t.Fatalf("refresh: lost %v, %v", lost, err)
	}
	return k
}

func (b *board) activate(k *fabricpartition.Keeper, claim types.UID, id int) {
	b.t.Helper()
	if err := k.Activate(b.t.Context(), claim, id); err != nil {
		b.t.Fatal(err)
	}
}

func (b *board) want(when string, ids ...int) {
	b.t.Helper()
	if got := b.Active(); !slices.Equal(got, ids) {
		b.t.Errorf("%s: active are %v, want %v", when, got, ids)
	}
}

// interrupted is a fabric manager whose caller is killed before or after a call.
type interrupted struct {
	fabricpartition.Manager
	step func() error
}

func (i *interrupted) between(do func() error) error {
	if i.step == nil {
		return do()
	}
	if err := i.step(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return i.step()
}

func (i *interrupted) Activate(ctx context.Context, id int) error {
	return i.between(func() error { return i.Manager.Activate(ctx, id) })
}

func (i *interrupted) Deactivate(ctx context.Context, id int) error {
	return i.between(func() error { return i.Manager.Deactivate(ctx, id) })
}

func (i *interrupted) SetActivated(ctx context.Context, ids []int) error {
	return i.between(func() error { return i.Manager.SetActivated(ctx, ids) })
}

func TestKeeperActivatesExactlyTheClaimsPartition(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	k := b.refreshed()
	if g, found := k.GPU(gpu(3)); !found || g.Module != 3 || len(g.Partitions) != 4 || g.Partitions[2] != nextPair {
		t.Errorf("GPU of module 3 is %+v", g)
	}
	id, err := k.Match(gpus(2, 1))
	if err != nil || id != pair {
		t.Fatalf("partition %d, %v", id, err)
	}
	for range 2 {
		b.activate(k, "a", id)
		b.want("activated", pair)
	}
	b.activate(k, "b", nextPair)
	if err := k.Activate(t.Context(), "c", four); !errors.Is(err, nvfm.InUse) || !strings.Contains(err.Error(), "[4 5]") {
		t.Errorf("a partition of the same GPUs: %v", err)
	}
	if err := k.Activate(t.Context(), "c", pair); err == nil || !strings.Contains(err.Error(), "claim a") {
		t.Errorf("another claim's partition: %v", err)
	}
	for range 2 {
		if err := k.Deactivate(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		b.want("deactivated", nextPair)
	}
}

func TestKeeperRefusesGPUsOutsideOfAPartition(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	k := b.refreshed()
	for name, c := range map[string]struct {
		gpus []pci.Address
		want []string
	}{
		"two of two partitions": {gpus(1, 3), []string{"0000:11:00.0 0000:13:00.0", "4 (0000:11:00.0 0000:12:00.0)",
			"gpu.nvidia.com/partition2"}},
		"three":                      {gpus(1, 2, 3), []string{"none of 3 GPUs", "[1 2 4 8]"}},
		"one that is not on the bus": {gpus(1, 9), []string{"0000:19:00.0"}},
	} {
		_, err := k.Match(c.gpus)
		if !errors.Is(err, fabricpartition.ErrNone) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range c.want {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: %v lacks %q", name, err, want)
			}
		}
	}
}

var errCrash = errors.New("killed")

// TestKeeperRecoversWhenKilledAtAnyStep kills the program at each write of the journal and around each call, and starts another, beside
// a claim that keeps its partition. With a restart of the fabric manager in between as well.
func TestKeeperRecoversWhenKilledAtAnyStep(t *testing.T) {
	library := fake.Library(t)
	for _, restart := range []bool{false, true} {
		for n := 1; ; n++ {
			b := newBoard(t, library)
			b.activate(b.refreshed(), "other", nextPair)
			count := 0
			killed := b.start(func() error {
				if count++; count >= n {
					return errCrash
				}
				return nil
			})
			_, err := killed.Refresh(t.Context(), all())
			if err == nil {
				err = killed.Activate(t.Context(), "claim", pair)
			}
			if err == nil {
				err = killed.Deactivate(t.Context(), "claim")
			}
			if err == nil {
				if n < 10 {
					t.Fatalf("the whole way took only %d steps", n-1)
				}
				break
			}
			if !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			when := fmt.Sprintf("killed at step %d (fabric manager restarted: %t)", n, restart)
			if restart {
				b.Restart(true)
			}
			k := b.refreshed()
			if n%2 == 0 { // the claim goes on, and ends later
				b.activate(k, "claim", pair)
				b.want(when+", prepared again", pair, nextPair)
			}
			if err := b.refreshed().Deactivate(t.Context(), "claim"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if !restart || n%2 == 0 {
				b.want(when, nextPair)
			} else if got := b.Active(); !slices.Contains(got, nextPair) {
				t.Errorf("%s: active are %v", when, got)
			}
			if left := b.start(nil).Journal.Claims(); !slices.Equal(left, []types.UID{"other"}) {
				t.Errorf("%s: the journal has %v", when, left)
			}
		}
	}
}

func TestKeeperGivesRestartedFabricManagerItsPartitions(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	k := b.refreshed()
	b.Restart(true)
	if _, err := k.Refresh(t.Context(), all()); err != nil { // with none active, it must be given the empty list
		t.Fatal(err)
	}
	b.activate(k, "a", four)
	b.Restart(true)
	if lost, err := k.Refresh(t.Context(), all()); err != nil || len(lost) > 0 {
		t.Errorf("lost %v, %v", lost, err)
	}
	b.want("restarted", four)
	b.Restart(true)
	b.activate(k, "b", 6) // a claim is the first to notice
	b.want("restarted again", four, 6)
	b.Restart(false)
	if lost, err := k.Refresh(t.Context(), all()); err != nil || !slices.Equal(lost, []int{four, 6}) {
		t.Errorf("restarted in the mode that forgets: lost %v, %v", lost, err)
	}
	for _, claim := range []types.UID{"a", "b"} {
		if err := k.Deactivate(t.Context(), claim); err != nil {
			t.Error(err)
		}
	}
}

func TestKeeperKeepsPartitionsOfOthers(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	b.Replace("partition 8 0", "partition 8 1")
	k := b.refreshed()
	if err := k.Activate(t.Context(), "a", pair); !errors.Is(err, nvfm.InUse) || !strings.Contains(err.Error(), "[8]") {
		t.Errorf("beside the partition of others: %v", err)
	}
	if err := k.Deactivate(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	b.want("given up", single)
}

func TestKeeperFindsGPUsWithRecordedModuleID(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	b.refreshed()
	k := b.start(nil)
	k.Modules = func(context.Context) (map[pci.Address]int, error) { return nil, errors.New("vfio-pci has all GPUs") }
	if _, err := k.Refresh(t.Context(), all()); err != nil || b.modules != 1 {
		t.Errorf("%v after %d calls of nvidia-smi", err, b.modules)
	}
	if id, err := k.Match(gpus(7, 8)); err != nil || id != 7 {
		t.Errorf("partition %d, %v", id, err)
	}
}

func TestKeeperFindsGPUsByPCIAddressWhereFabricManagerReportsIt(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	b.Manager = fake.New(t, []fake.Partition{{ID: 3, GPUs: map[int]string{0: "00000000:11:00.0", 1: "00000000:12:00.0"}},
		{ID: 4, GPUs: map[int]string{5: "00000000:55:00.0"}}})
	k := b.refreshed()
	if id, err := k.Match(gpus(1, 2)); err != nil || id != 3 || b.modules > 0 {
		t.Errorf("partition %d, %v, %d calls of nvidia-smi", id, err, b.modules)
	}
	if _, found := k.GPU("0000:55:00.0"); found {
		t.Error("a GPU that is not on the bus is in a partition")
	}
}

func TestKeeperReportsFabricManagerThatDoesNotServe(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	k := b.refreshed()
	b.Replace("mode shared", "mode baremetal")
	if _, err := k.Refresh(t.Context(), all()); !errors.Is(err, nvfm.NotSupported) || !strings.Contains(err.Error(), "FABRIC_MODE=1") {
		t.Errorf("without shared NVSwitch mode: %v", err)
	}
	b.Stop()
	if err := k.Activate(t.Context(), "a", pair); !errors.Is(err, nvfm.NotConnected) {
		t.Errorf("without a fabric manager: %v", err)
	}
}

func TestParseModulesReadsEveryDriversLine(t *testing.T) {
	text := "\n==============NVSMI LOG==============\n\nAttached GPUs : 3\nGPU 00000000:1B:00.0\n" +
		"    FRU Part Number : N/A\n    Module ID       : 4\n" +
		"    Platform Info\n        Module Id : 9\nGPU 00000000:43:00.0\n    GPU Module ID : 2\nGPU 00000001:52:00.0\n    Module ID : N/A\n" +
		"    Platform Info\n        Module Id : 1\n"
	want := map[pci.Address]int{"0000:1b:00.0": 4, "0000:43:00.0": 2, "0001:52:00.0": 1}
	if got := fabricpartition.ParseModules(text); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestKeeperDeactivatesWhenTheDiskIsFull(t *testing.T) {
	b := newBoard(t, fake.Library(t))
	b.activate(b.refreshed(), "claim", pair)
	var full error
	k := b.start(func() error { return nil })
	j, err := fabricpartition.OpenJournal(b.journal, atomicfile.Writer{Before: func(atomicfile.Step, string) error { return full }})
	if err != nil {
		t.Fatal(err)
	}
	k.Journal, full = j, syscall.ENOSPC
	if err := k.Deactivate(t.Context(), "claim"); err != nil {
		t.Fatal(err)
	}
	b.want("deactivated on a full disk")
	if left := k.Journal.Claims(); len(left) > 0 {
		t.Errorf("claims %v still have partitions", left)
	}
	// The journal on disk still has the claim: the next start deactivates a partition that is not active.
	k = b.start(nil)
	if err := k.Deactivate(t.Context(), "claim"); err != nil || len(k.Journal.Claims()) > 0 {
		t.Errorf("after a restart: %v, %v", err, k.Journal.Claims())
	}
}
