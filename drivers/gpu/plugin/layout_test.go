package plugin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/gputest"
)

// collectReports sends the node's reports on MIGLayouts to b.reports. Call it before the role starts.
func (b *bench) collectReports() {
	b.reports = make(chan v1alpha1.MIGLayoutNode, 64)
	b.objects.PrependReactor("patch", "miglayouts", func(action k8stesting.Action) (bool, runtime.Object, error) {
		var l v1alpha1.MIGLayout
		if err := json.Unmarshal(action.(k8stesting.PatchAction).GetPatch(), &l); err != nil || len(l.Status.Nodes) != 1 {
			b.Errorf("report %s: %v", action.(k8stesting.PatchAction).GetPatch(), err)
			return true, nil, err
		}
		b.reports <- l.Status.Nodes[0]
		return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
	})
}

func (b *bench) layout(name, config, use string) {
	b.Helper()
	var parsed map[string]any
	if err := json.Unmarshal([]byte(config), &parsed); err != nil {
		b.Fatal(err)
	}
	b.create("miglayouts", "MIGLayout", name, map[string]any{"layout": use, "config": parsed})
}

func await(t *testing.T, reports chan v1alpha1.MIGLayoutNode, state v1alpha1.MIGLayoutState, message string) {
	t.Helper()
	timeout := time.After(time.Minute)
	var last v1alpha1.MIGLayoutNode
	for {
		select {
		case last = <-reports:
		case <-timeout:
			t.Fatalf("the last report is %+v, want %s with %q", last, state, message)
		}
		if last.State == state && strings.Contains(last.Message, message) {
			return
		}
	}
}

const twoLayouts = `{"version":"v1","mig-configs":{
	"cut":[{"devices":[1],"mig-enabled":true,"mig-devices":{"3g.20gb":1,"1g.5gb":2}}],
	"impossible":[{"devices":"all","mig-enabled":true,"mig-devices":{"7g.40gb":2}}]}}`

func TestLayoutIsAppliedToIdleGPUs(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	reports := b.reports
	holder := b.claim("u1", nil, device{name: "gpu-1"})
	b.mustPrepare(holder)
	b.layout("training", twoLayouts, "cut")
	await(t, reports, v1alpha1.MIGLayoutWaiting, "claim default/claim-u1")
	if left := m.GPUs[1].Instances(); len(left) > 0 {
		t.Fatalf("a GPU in use was cut: %v", left)
	}
	if problem := b.unprepare(holder); problem != "" {
		t.Fatal(problem)
	}
	await(t, reports, v1alpha1.MIGLayoutApplied, "1 of 1 GPUs")
	if diff := cmp.Diff([]string{"9@0", "19@4", "19@5"}, sortedAs(m.GPUs[1].Instances(), "9@0", "19@4", "19@5")); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	// The existing instances are offered, and are never removed with a claim.
	b.taints("gpu-1-mig-1g5gb-19-5", "")
	c := b.claim("u2", nil, device{name: "gpu-1-mig-1g5gb-19-5"})
	b.mustPrepare(c)
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if len(m.GPUs[1].Instances()) != 3 {
		t.Errorf("instances %v", m.GPUs[1].Instances())
	}
}

func TestLayoutIsReportedAgainWhenCreatedAgain(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	for range 2 {
		b.layout("training", twoLayouts, "cut")
		await(t, b.reports, v1alpha1.MIGLayoutApplied, "1 of 1 GPUs")
		layouts := b.objects.Resource(v1alpha1.SchemeGroupVersion().WithResource("miglayouts"))
		if err := layouts.Delete(t.Context(), "training", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A reset, which ends every fatal fault, removes a GPU's MIG instances.
func TestLayoutIsAppliedAgainAfterReset(t *testing.T) {
	for name, xid := range map[string]uint64{"fallen off the bus": 79, "its system processor did not answer": 119} {
		t.Run(name, func(t *testing.T) {
			m := gputest.New(t, 2)
			b := newBench(t, m)
			b.stop()
			b.recheck = 50 * time.Millisecond
			b.start()
			b.layout("training", twoLayouts, "cut")
			await(t, b.reports, v1alpha1.MIGLayoutApplied, "1 of 1 GPUs")
			m.GPUs[1].SetLost(true)
			m.Event(1, nvml.EventTypeXidCriticalError, xid)
			b.event("Node", "GPUUnhealthy")
			m.GPUs[1].SetLost(false)
			b.event("Node", "GPUHealthy")
			b.await(func() bool { return len(m.GPUs[1].Instances()) == 3 }, "the instances are made again")
			b.taints("gpu-1-mig-1g5gb-19-5", "")
			b.mustPrepare(b.claim("u1", nil, device{name: "gpu-1-mig-1g5gb-19-5"}))
		})
	}
}

// Instances that claims made go with the claims, so a layout that happens to be the same is not applied yet.
func TestLayoutIgnoresInstancesOfClaims(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	c := b.claim("u1", nil, device{name: "gpu-1-mig-3g20gb-9-0"}, device{name: "gpu-1-mig-1g5gb-19-4"}, device{name: "gpu-1-mig-1g5gb-19-5"})
	b.mustPrepare(c)
	b.layout("training", twoLayouts, "cut")
	await(t, b.reports, v1alpha1.MIGLayoutWaiting, "claim default/claim-u1")
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	await(t, b.reports, v1alpha1.MIGLayoutApplied, "1 of 1 GPUs")
	if got := m.GPUs[1].Instances(); len(got) != 3 {
		t.Errorf("instances %v", got)
	}
}

// Instances that were removed before the hardware refused the rest are no longer offered.
func TestLayoutThatFailsHalfwayWithdrawsFormerDevices(t *testing.T) {
	m := gputest.New(t, 2)
	administered(t, m.GPUs[1], 14, 0)
	b := newBench(t, m)
	b.taints("gpu-1-mig-2g10gb-14-0", "")
	m.GPUs[1].FailCompute = 1
	b.layout("training", twoLayouts, "cut")
	await(t, b.reports, v1alpha1.MIGLayoutFailed, "compute instance")
	if left := m.GPUs[1].Instances(); len(left) > 0 {
		t.Fatalf("instances %v", left)
	}
	b.taints("gpu-1", "") // it has no instance any more
}

func TestLayoutReportsWhyItIsImpossible(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	reports := b.reports
	b.layout("wish", twoLayouts, "impossible")
	await(t, reports, v1alpha1.MIGLayoutFailed, "do not fit on GPU 0")
}

func TestNodeKeepsItsLayoutWhenTwoLayoutsSelectIt(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	reports := b.reports
	b.layout("a", twoLayouts, "impossible")
	await(t, reports, v1alpha1.MIGLayoutFailed, "do not fit")
	b.layout("b", twoLayouts, "cut")
	await(t, reports, v1alpha1.MIGLayoutFailed, "a, b all select it")
	if left := m.GPUs[1].Instances(); len(left) > 0 {
		t.Errorf("instances %v", left)
	}
}

// sortedAs returns got in the order of want where both have the same elements.
func sortedAs(got []string, want ...string) []string {
	if strings.Join(sorted(append([]string{}, got...)), " ") == strings.Join(sorted(append([]string{}, want...)), " ") {
		return want
	}
	return got
}
