package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/node/atomicfile"
)

// Instances of GPU 1 as the driver numbers them: profile 9 is 3g.20gb, 14 is 2g.10gb, 19 is 1g.5gb.
const (
	firstGPU  = "GPU-00000001-0000-4000-8000-000000000000"
	secondGPU = "GPU-00000002-0000-4000-8000-000000000000"
)

// byDemand writes the MIGLayout that the controller makes for the node, as its next generation.
func (b *bench) byDemand(generation int64, gpus ...v1alpha1.MIGLayoutGPU) {
	b.Helper()
	raw, err := json.Marshal(v1alpha1.MIGLayoutSpec{GPUs: gpus})
	if err != nil {
		b.Fatal(err)
	}
	spec := map[string]any{}
	if err := json.Unmarshal(raw, &spec); err != nil {
		b.Fatal(err)
	}
	if generation == 1 {
		b.create("miglayouts", "MIGLayout", "auto-n1", spec, map[string]any{v1alpha1.MIGByDemandLabel: "parent"})
		return
	}
	layouts := b.objects.Resource(v1alpha1.SchemeGroupVersion().WithResource("miglayouts"))
	object, err := layouts.Get(context.Background(), "auto-n1", metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	object.SetGeneration(generation)
	if err := unstructured.SetNestedMap(object.Object, spec, "spec"); err != nil {
		b.Fatal(err)
	}
	if _, err := layouts.Update(context.Background(), object, metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
}

func gpuLayout(uuid string, instances ...string) v1alpha1.MIGLayoutGPU {
	g := v1alpha1.MIGLayoutGPU{UUID: uuid}
	for _, text := range instances {
		profile, start, _ := strings.Cut(text, "@")
		g.Instances = append(g.Instances, v1alpha1.MIGLayoutInstance{Profile: profile, Start: int32(start[0] - '0')})
	}
	return g
}

// awaitDevices waits until the slices have exactly these devices.
func (b *bench) awaitDevices(want ...string) {
	b.Helper()
	var got []string
	b.await(func() bool {
		got = nil
		for _, s := range b.slices() {
			for _, d := range s.Spec.Devices {
				got = append(got, d.Name)
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	}, "the devices are "+strings.Join(want, " "))
}

// awaitGeneration waits for the report on a generation in a state, and returns it.
func (b *bench) awaitGeneration(generation int64, state v1alpha1.MIGLayoutState) v1alpha1.MIGLayoutNode {
	b.Helper()
	var last v1alpha1.MIGLayoutNode
	b.await(func() bool {
		select {
		case last = <-b.reports:
		default:
		}
		return last.ObservedGeneration == generation && last.State == state
	}, "the node reports "+string(state))
	return last
}

func TestLayoutByDemandRecutsBesideInstanceInUse(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	b.byDemand(1, gpuLayout(firstGPU), gpuLayout(secondGPU, "3g.20gb@0", "1g.5gb@4", "1g.5gb@5"))
	entry := b.awaitGeneration(1, v1alpha1.MIGLayoutApplied)
	if len(entry.GPUs) != 2 || entry.GPUs[1].Device != "gpu-1" || !entry.GPUs[1].Whole || !entry.GPUs[1].MIG ||
		len(entry.GPUs[1].Instances) != 3 {
		t.Errorf("the entry describes the GPUs as %+v", entry.GPUs)
	}
	if i := slices.IndexFunc(entry.Profiles, func(p v1alpha1.MIGNodeProfile) bool { return p.Name == "3g.20gb" }); i < 0 ||
		entry.Profiles[i].Size != 4 || entry.Profiles[i].ComputeSlices != 3 || !slices.Equal(entry.Profiles[i].Starts, []int32{0, 4}) {
		t.Errorf("the entry describes the profiles as %+v", entry.Profiles)
	}
	b.awaitDevices("gpu-0", "gpu-1-mig-1g5gb-19-4", "gpu-1-mig-1g5gb-19-5", "gpu-1-mig-3g20gb-9-0")
	holder := b.claim("u1", nil, device{name: "gpu-1-mig-3g20gb-9-0"})
	b.mustPrepare(holder)
	// The part beside the instance in use becomes another one.
	b.byDemand(2, gpuLayout(firstGPU, "1g.5gb@6"), gpuLayout(secondGPU, "3g.20gb@0", "2g.10gb@4"))
	b.awaitGeneration(2, v1alpha1.MIGLayoutApplied)
	b.awaitDevices("gpu-0-mig-1g5gb-19-6", "gpu-1-mig-2g10gb-14-4", "gpu-1-mig-3g20gb-9-0")
	if diff := cmp.Diff([]string{"14@4", "9@0"}, sorted(m.GPUs[1].Instances())); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1-mig-2g10gb-14-4"}))
	// An instance in use that the layout does not plan any more stays until its claim ends, and is not published.
	b.byDemand(3, gpuLayout(firstGPU), gpuLayout(secondGPU, "2g.10gb@4", "1g.5gb@0"))
	entry = b.awaitGeneration(3, v1alpha1.MIGLayoutWaiting)
	if !strings.Contains(entry.Message, "claim default/claim-u1") || entry.GPUs[0].State != v1alpha1.MIGLayoutApplied ||
		entry.GPUs[1].State != v1alpha1.MIGLayoutWaiting {
		t.Errorf("the entry is %+v", entry)
	}
	b.awaitDevices("gpu-0", "gpu-1-mig-2g10gb-14-4")
	if problem := b.unprepare(holder); problem != "" {
		t.Fatal(problem)
	}
	b.awaitGeneration(3, v1alpha1.MIGLayoutApplied)
	b.awaitDevices("gpu-0", "gpu-1-mig-1g5gb-19-0", "gpu-1-mig-2g10gb-14-4")
}

func TestLayoutByDemandLeavesOutWithdrawnDevicesAlsoAfterRestart(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	whole, cut := gpuLayout(firstGPU), gpuLayout(secondGPU, "3g.20gb@0", "1g.5gb@4")
	whole.Withdrawn, cut.Withdrawn = []string{"gpu-0"}, []string{"gpu-1-mig-1g5gb-19-4"}
	b.byDemand(1, whole, cut)
	b.awaitGeneration(1, v1alpha1.MIGLayoutApplied)
	b.awaitDevices("gpu-1-mig-3g20gb-9-0")
	// A claim that was allocated before the withdrawal is prepared.
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0"}))
	b.stop()
	b.offered.take()
	b.start()
	b.awaitGeneration(1, v1alpha1.MIGLayoutApplied)
	b.awaitDevices("gpu-1-mig-3g20gb-9-0")
	if names := b.offered.take(); slices.Contains(names, "gpu-0") || slices.Contains(names, "gpu-1-mig-1g5gb-19-4") {
		t.Errorf("the restarted role published %v", names)
	}
}

func TestLayoutByDemandFailsAtThirdTry(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	m.GPUs[1].FailCompute = 3
	b.byDemand(1, gpuLayout(firstGPU), gpuLayout(secondGPU, "3g.20gb@0", "1g.5gb@4"))
	await(t, b.reports, v1alpha1.MIGLayoutWaiting, "try 1 of 3")
	b.awaitDevices("gpu-0") // whole, a claim would keep GPU 1 from being cut
	layouts := b.running().serving.Load().layouts
	layouts.applyAgain()
	await(t, b.reports, v1alpha1.MIGLayoutWaiting, "try 2 of 3")
	layouts.applyAgain()
	entry := b.awaitGeneration(1, v1alpha1.MIGLayoutFailed)
	if !strings.Contains(entry.Message, "compute instance") || entry.GPUs[1].State != v1alpha1.MIGLayoutFailed {
		t.Errorf("the entry is %+v", entry)
	}
	layouts.applyAgain() // the hardware is well again
	b.awaitGeneration(1, v1alpha1.MIGLayoutApplied)
	b.awaitDevices("gpu-0", "gpu-1-mig-1g5gb-19-4", "gpu-1-mig-3g20gb-9-0")
}

// offered records the devices of all slices that the role writes.
type offered struct {
	mu    sync.Mutex
	names []string
}

func (p *offered) record(action k8stesting.Action) (bool, runtime.Object, error) {
	w, ok := action.(interface{ GetObject() runtime.Object })
	if !ok {
		return false, nil, nil
	}
	if slice, ok := w.GetObject().(*resourceapi.ResourceSlice); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, d := range slice.Spec.Devices {
			p.names = append(p.names, d.Name)
		}
	}
	return false, nil, nil
}

// take returns the names since the last call.
func (p *offered) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := p.names
	p.names = nil
	return names
}

// A full disk, or the end of the role at any step of the write, leaves the devices as they were; the next write succeeds.
func TestLayoutByDemandIsNotAppliedWhenItCannotBeStored(t *testing.T) {
	for _, step := range atomicfile.Steps() {
		for name, broken := range map[string]error{"full disk": syscall.ENOSPC, "kill -9": atomicfile.Crash()} {
			t.Run(fmt.Sprintf("%s at %v", name, step), func(t *testing.T) {
				t.Parallel()
				m := gputest.New(t, 2)
				b := newBench(t, m)
				b.byDemand(1, gpuLayout(firstGPU), gpuLayout(secondGPU))
				b.awaitGeneration(1, v1alpha1.MIGLayoutApplied)
				b.stop()
				var full atomic.Bool
				b.writer.Before = func(at atomicfile.Step, path string) error {
					if full.Load() && at == step && strings.Contains(path, "mig-by-demand") {
						return broken
					}
					return nil
				}
				b.start()
				b.awaitDevices("gpu-0", "gpu-1")
				full.Store(true)
				withdrawn := gpuLayout(firstGPU)
				withdrawn.Withdrawn = []string{"gpu-0"}
				b.byDemand(2, withdrawn, gpuLayout(secondGPU, "3g.20gb@0"))
				entry := b.awaitGeneration(2, v1alpha1.MIGLayoutWaiting)
				if entry.Reason != "StateNotKept" || len(entry.GPUs) != 2 || entry.GPUs[0].State != v1alpha1.MIGLayoutWaiting {
					t.Errorf("the entry is %+v", entry)
				}
				b.awaitDevices("gpu-0", "gpu-1")
				if made := m.GPUs[1].Instances(); len(made) > 0 {
					t.Errorf("instances %v were made by a layout that is not stored", made)
				}
				b.stop()
				full.Store(false)
				b.start()
				b.awaitGeneration(2, v1alpha1.MIGLayoutApplied)
				b.awaitDevices("gpu-1-mig-3g20gb-9-0")
			})
		}
	}
}

func TestLayoutByDemandYieldsToLayoutByHand(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	b.byDemand(1, gpuLayout(secondGPU, "3g.20gb@0"))
	b.awaitGeneration(1, v1alpha1.MIGLayoutApplied)
	b.create("miglayouts", "MIGLayout", "by-demand", map[string]any{"auto": map[string]any{
		"shapes": []any{map[string]any{"profile": "whole"}}}})
	b.layout("training", twoLayouts, "cut")
	await(t, b.reports, v1alpha1.MIGLayoutApplied, "1 of 1 GPUs")
	b.await(func() bool { return len(m.GPUs[1].Instances()) == 3 }, "the layout by hand is applied")
}

func TestLayoutByDemandIsRefusedWhereGPUCannotHaveIt(t *testing.T) {
	for name, c := range map[string]struct {
		gpu  v1alpha1.MIGLayoutGPU
		want string
	}{
		"a start that NVML lacks":       {gpuLayout(secondGPU, "1g.10gb@3"), "can begin at memory slice 3"},
		"a profile that no GPU has":     {gpuLayout(secondGPU, "5g.80gb@0"), "it has 1g.5gb"},
		"two instances on one place":    {gpuLayout(secondGPU, "3g.20gb@0", "1g.5gb@2"), "overlap"},
		"a GPU of another node":         {gpuLayout("GPU-1", "1g.5gb@0"), "has no GPU GPU-1"},
		"instances at the wrong places": {gpuLayout(secondGPU, "3g.20gb@2"), "can begin at memory slice 2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, gputest.New(t, 2))
			b.byDemand(1, c.gpu)
			if entry := b.awaitGeneration(1, v1alpha1.MIGLayoutFailed); !strings.Contains(entry.Message, c.want) {
				t.Errorf("the message is %s, want %s", entry.Message, c.want)
			}
		})
	}
}
