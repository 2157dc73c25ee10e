package plugin

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
	nvidiasmi "gpufabric.io/fakes/smi"
	"gpufabric.io/fakes/state"
)

// administrator runs nvidia-smi on a fake node.
func administrator(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := (&nvidiasmi.Command{Root: root, Stdout: &out, Now: time.Now()}).Run(args)
	return out.String(), err
}

// mode returns a GPU's MIG mode and the pending one.
func mode(t *testing.T, root string, gpu int) (current, pending bool) {
	t.Helper()
	f, err := state.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	return b.GPUs[gpu].Core.MIGCurrent == 1, b.GPUs[gpu].Core.MIGPending == 1
}

// forms returns the forms in which a GPU is published.
func (b *bench) forms(gpu string) []string {
	b.Helper()
	var out []string
	for _, s := range b.slices() {
		for _, d := range s.Spec.Devices {
			if d.Name == gpu || strings.HasPrefix(d.Name, gpu+"-") {
				if kind := *d.Attributes["type"].StringValue; !slices.Contains(out, kind) {
					out = append(out, kind)
				}
			}
		}
	}
	return sorted(out)
}

// Only a reset changes the MIG mode of an A100 or A30. Such a GPU is offered only in the forms of its mode, and no claim changes
// the mode.
func TestAmpereGPUIsOfferedInItsModeOnly(t *testing.T) {
	for name, partitioned := range map[string]string{"a100-40": "gpu-0-mig-1g5gb-19-3", "a30-4": "gpu-0-mig-1g6gb-14-3"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := renderFake(t, name)
			b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
			b.stop()
			b.recheck = 50 * time.Millisecond
			b.start()
			b.taints("gpu-0", "")
			if got := b.forms("gpu-0"); slices.Contains(got, "mig") || !slices.Contains(got, "gpu") {
				t.Errorf("with MIG off it is offered as %v", got)
			}
			stays := func(enabled bool, when string) {
				t.Helper()
				if current, pending := mode(t, root, 0); current != enabled || pending != enabled {
					t.Errorf("%s: mode %t, pending %t; want both %t", when, current, pending, enabled)
				}
			}
			if _, problem := b.prepare(b.claim("u1", nil, device{name: partitioned})); problem == "" {
				t.Error("a MIG device was prepared on a GPU whose MIG mode is off")
			}
			stays(false, "after a claim of a MIG device")

			if out, err := administrator(t, root, "-i", "0", "-mig", "1"); err != nil || !strings.Contains(out, "pending") {
				t.Fatal(out, err)
			}
			b.event("Node", "MIGModePending")
			if got := b.forms("gpu-0"); slices.Contains(got, "mig") {
				t.Errorf("while the mode is pending it is offered as %v", got)
			}
			if _, err := administrator(t, root, "-i", "0", "--gpu-reset"); err == nil {
				t.Error("the GPU was reset while the plugin has NVML open")
			}
			whole := b.claim("u2", nil, device{name: "gpu-0"})
			b.mustPrepare(whole)
			if _, pending := mode(t, root, 0); !pending {
				t.Error("a claim took the administrator's pending mode back")
			}
			if problem := b.unprepare(whole); problem != "" {
				t.Error(problem)
			}

			if err := fault.Apply(root, "mig-mode", fault.Arguments{"gpu": "0"}); err != nil {
				t.Fatal(err)
			}
			b.await(func() bool { return slices.Equal(b.forms("gpu-0"), []string{string(devices.MIG)}) },
				"the GPU in MIG mode is offered in MIG devices alone")
			c := b.claim("u3", nil, device{name: partitioned})
			b.mustPrepare(c)
			if problem := b.unprepare(c); problem != "" {
				t.Error(problem)
			}
			stays(true, "after the claim of a MIG device has ended")
			if _, problem := b.prepare(b.claim("u4", nil, device{name: "gpu-0"})); problem == "" {
				t.Error("the GPU was handed out whole in MIG mode")
			}
			stays(true, "after a claim of the whole GPU")
		})
	}
}
