package plugin

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/gpu/gputest"
)

const withMPS = `{"strategy":"MPS"}`

// An administrator makes an instance between the claim's look at the placement and its own attempt.
func TestUnprepareKeepsInstanceOfOthersWhenTheClaimsWasRefused(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	g := b.machine.GPUs[0]
	create := g.CreateGpuInstanceWithPlacementFunc
	g.CreateGpuInstanceWithPlacementFunc = func(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance,
		nvml.Return) {
		_, _ = create(info, at)
		return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	c := b.claim("u1", nil, device{name: "gpu-0-mig-1g5gb-19-0"})
	if _, problem := b.prepare(c); problem == "" {
		t.Fatal("the instance was made")
	}
	b.stop() // the record is all that is left
	b.start()
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	if diff := cmp.Diff([]string{"19@0-"}, g.Instances()); diff != "" {
		t.Errorf("the administrator's instance (-want +got):\n%s", diff)
	}
}

func TestUnprepareKeepsComputeModeOfAdministrator(t *testing.T) {
	m := gputest.New(t, 2)
	mpsControl(t, m)
	if ret := m.GPUs[0].SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	b := newBench(t, m)
	b.stop()
	b.enter = plainly
	b.start()
	c := b.claim("u1", []string{gpuConfig(withMPS)}, device{name: "gpu-0"}, device{name: "gpu-1"})
	b.mustPrepare(c)
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	for i, want := range []nvml.ComputeMode{nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.COMPUTEMODE_DEFAULT} {
		if got := m.GPUs[i].ComputeMode(); got != want {
			t.Errorf("GPU %d has compute mode %d after the claim, want %d", i, got, want)
		}
	}
}

func TestComputeModeIsNeverUndoneWhenItWasRefusedOrNotTried(t *testing.T) {
	for name, devices := range map[string][]device{
		"refused":                                {{name: "gpu-1"}},
		"not tried after a MIG device's failure": {{name: "gpu-0-mig-1g5gb-19-0"}, {name: "gpu-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := gputest.New(t, 2)
			m.GPUs[0].CreateGpuInstanceWithPlacementFunc = func(*nvml.GpuInstanceProfileInfo, *nvml.GpuInstancePlacement) (nvml.GpuInstance,
				nvml.Return) {
				return nil, nvml.ERROR_UNKNOWN
			}
			undone := 0
			m.GPUs[1].SetComputeModeFunc = func(mode nvml.ComputeMode) nvml.Return {
				if mode == nvml.COMPUTEMODE_DEFAULT {
					undone++
				}
				return nvml.ERROR_NO_PERMISSION
			}
			b := newBench(t, m)
			c := b.claim("u1", []string{gpuConfig(withMPS)}, devices...)
			for range 2 { // the kubelet tries again
				if _, problem := b.prepare(c); problem == "" || strings.Contains(problem, "InvalidConfig") {
					t.Fatalf("it is refused with %q", problem)
				}
			}
			b.stop()
			b.start()
			if problem := b.unprepare(c); problem != "" {
				t.Fatal(problem)
			}
			b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1"}))
			if undone > 0 {
				t.Errorf("a compute mode that was never set is undone %d times", undone)
			}
		})
	}
}
