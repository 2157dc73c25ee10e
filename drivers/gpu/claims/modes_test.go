package claims

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/atomicfile"
)

// The record of a mode that a claim could not switch on would let the driver switch off a mode that an administrator switches on later.
func TestCutForgetsTheModeWhenTheSwitchIsRefused(t *testing.T) {
	m := gputest.New(t, 1)
	node, err := inventory.Reader{NVML: m, Locate: func(id string) (inventory.Place, error) { return inventory.Place{BusID: id}, nil }}.Read()
	if err != nil {
		t.Fatal(err)
	}
	g := node.GPUs[0]
	g.MIG.NeedsReset = false
	if ret, _ := g.Handle.SetMigMode(nvml.DEVICE_MIG_DISABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	path := filepath.Join(t.TempDir(), "modes.json")
	modes, err := openModes(path, atomicfile.Writer{}, node.GPUs)
	if err != nil {
		t.Fatal(err)
	}
	k := &Preparer{modes: modes}
	switched := m.GPUs[0].SetMigModeFunc
	m.GPUs[0].SetMigModeFunc = func(int) (nvml.Return, nvml.Return) { return nvml.SUCCESS, nvml.ERROR_NO_PERMISSION }
	if err := k.cut(g); err == nil {
		t.Fatal("the mode was switched")
	}
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), g.UUID) {
		t.Errorf("the record has the refused mode (%v): %s", err, text)
	}
	m.GPUs[0].SetMigModeFunc = switched
	if err := k.cut(g); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), g.UUID) {
		t.Errorf("the record lacks the mode that a claim switched on (%v): %s", err, text)
	}
}

func TestCutDoesNotSwitchTheModeUntilItIsStored(t *testing.T) {
	m := gputest.New(t, 1)
	node, err := inventory.Reader{NVML: m, Locate: func(id string) (inventory.Place, error) { return inventory.Place{BusID: id}, nil }}.Read()
	if err != nil {
		t.Fatal(err)
	}
	g := node.GPUs[0]
	g.MIG.NeedsReset = false
	if ret, _ := g.Handle.SetMigMode(nvml.DEVICE_MIG_DISABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	var full error
	writer := atomicfile.Writer{Before: func(atomicfile.Step, string) error { return full }}
	modes, err := openModes(filepath.Join(t.TempDir(), "modes.json"), writer, node.GPUs)
	if err != nil {
		t.Fatal(err)
	}
	k := &Preparer{modes: modes}
	full = syscall.ENOSPC
	for try := range 2 {
		if err := k.cut(g); !errors.Is(err, syscall.ENOSPC) || divided(g) {
			t.Fatalf("try %d on a full disk: %v, in MIG mode: %t", try+1, err, divided(g))
		}
	}
	full = nil
	if err := k.cut(g); err != nil || !divided(g) {
		t.Errorf("with room again: %v, in MIG mode: %t", err, divided(g))
	}
}
