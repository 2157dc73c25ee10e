package partition_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/partition"
)

func TestModeThatChangesAtOnceIsSwitchedForAClaim(t *testing.T) {
	_, gpu := whole(t)
	for _, on := range []bool{true, true, false} {
		if err := partition.Require(gpu, on); err != nil {
			t.Fatalf("MIG mode %t: %v", on, err)
		}
		if current, _, _ := gpu.Handle.GetMigMode(); current == nvml.DEVICE_MIG_ENABLE != on {
			t.Errorf("MIG mode is %d, want %t", current, on)
		}
	}
}

// NVIDIA's MIG user guide ("GPU reset on Ampere"): the mode is pending until the GPU is reset.
func TestModeThatNeedsAResetIsNotSwitched(t *testing.T) {
	machine, gpu := whole(t)
	gpu.MIG.NeedsReset = true
	machine.SetProcesses(1)
	err := partition.Require(gpu, true)
	if !errors.Is(err, partition.ErrNeedsReset) {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{gpu.UUID, "disabled", "nvidia-smi -i 0 -mig 1", "gpufabric drain", "process "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	if current, pending, _ := gpu.Handle.GetMigMode(); current != nvml.DEVICE_MIG_DISABLE || pending != nvml.DEVICE_MIG_DISABLE {
		t.Errorf("the mode was touched: %d, pending %d", current, pending)
	}
	if err := partition.Require(gpu, false); err != nil {
		t.Errorf("the mode is right: %v", err)
	}
}

func TestProcessesAreNamedOnce(t *testing.T) {
	machine, gpu := whole(t)
	machine.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 7}, {Pid: 12}}, nvml.SUCCESS
	}
	machine.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return []nvml.ProcessInfo{{Pid: 7}}, nvml.SUCCESS }
	machine.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	if got := strings.Join(partition.Processes(gpu), ", "); got != "process 12, process 7" {
		t.Errorf("processes %q", got)
	}
}
