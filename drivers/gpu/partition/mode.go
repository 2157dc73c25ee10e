package partition

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/inventory"
)

// ErrNeedsReset is wrapped by the error where the hardware needs a reset first.
var ErrNeedsReset = errors.New("the GPU must be reset before its MIG mode changes")

// word is a mode as nvidia-smi writes it.
func word(mode int) string {
	if mode == nvml.DEVICE_MIG_ENABLE {
		return "enabled"
	}
	return "disabled"
}

func mode(on bool) int {
	if on {
		return nvml.DEVICE_MIG_ENABLE
	}
	return nvml.DEVICE_MIG_DISABLE
}

// SetMode switches a GPU's MIG mode for an administrator. Where the mode waits for a reset, the error reports that (errors.Is
// ErrNeedsReset), and the obstacles to the reset. It does nothing where the mode is right.
func SetMode(g *inventory.GPU, on bool) error {
	want := mode(on)
	current, pending, ret := g.Handle.GetMigMode()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("%s: query its MIG mode: %w", g.UUID, ret)
	}
	if current == want && pending == want {
		return nil
	}
	activation, ret := g.Handle.SetMigMode(want)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("%s: switch its MIG mode: %w", g.UUID, ret)
	}
	if current, _, ret = g.Handle.GetMigMode(); ret != nvml.SUCCESS {
		return fmt.Errorf("%s: query its MIG mode: %w", g.UUID, ret)
	}
	if current == want {
		return nil
	}
	err := fmt.Errorf("%s: its MIG mode is pending %s until the reset: %w; %s", g.UUID, word(want), ErrNeedsReset, HowToReset(g))
	if activation != nvml.SUCCESS {
		err = fmt.Errorf("%w (%w)", err, activation)
	}
	return err
}

// Require makes sure that a GPU is in the MIG mode that a claim needs. Where only a reset changes the mode, an administrator must
// do it: Require leaves such a GPU alone, and returns an error where its mode is wrong.
func Require(g *inventory.GPU, on bool) error {
	if g.MIG == nil || !g.MIG.NeedsReset {
		return SetMode(g, on)
	}
	current, _, ret := g.Handle.GetMigMode()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("%s: query its MIG mode: %w", g.UUID, ret)
	}
	if want := mode(on); current != want {
		return fmt.Errorf("%s: its MIG mode is %s, and claims do not change the mode of a GPU of this kind: %w; for mode %s run nvidia-smi -i "+
			"%d "+
			"-mig %d, then reset it; %s",
			g.UUID, word(current), ErrNeedsReset, word(want), g.Index, want, HowToReset(g))
	}
	return nil
}

// HowToReset reports how to reset a GPU, and the obstacles: NVIDIA's driver refuses while any program has it open, including this
// one.
func HowToReset(g *inventory.GPU) string {
	held := append([]string{"this driver"}, Processes(g)...)
	return fmt.Sprintf("a reset needs a GPU that no program has open; now %s have it, and maybe programs that the driver does not list "+
		"(monitors, nvidia-persistenced): "+
		"run gpufabric drain, end those that it names, then nvidia-smi --gpu-reset -i %d, then gpufabric undrain; or reboot",
		strings.Join(held, ", "), g.Index)
}

// Processes lists the programs that run on a GPU according to NVML, as "process 4711". It does not include those that only have it
// open.
func Processes(g *inventory.GPU) []string {
	seen := map[uint32]bool{}
	for _, list := range []func() ([]nvml.ProcessInfo, nvml.Return){
		g.Handle.GetComputeRunningProcesses, g.Handle.GetGraphicsRunningProcesses, g.Handle.GetMPSComputeRunningProcesses,
	} {
		running, ret := list()
		if ret != nvml.SUCCESS {
			continue // without an answer there is nothing to list
		}
		for _, p := range running {
			seen[p.Pid] = true
		}
	}
	var out []string
	for pid := range seen {
		out = append(out, fmt.Sprintf("process %d", pid))
	}
	slices.Sort(out)
	return out
}
