package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
)

// withForms runs the role with a value of the chart's gpus.forms.
func withForms(text string) func(*Options) {
	return func(o *Options) { o.Forms = text }
}

// published returns the names of the published devices in order, those with a taint in brackets.
func (b *bench) published() string {
	b.Helper()
	list := b.slices()
	slices.SortFunc(list, func(x, y resourceapi.ResourceSlice) int { return strings.Compare(x.Name, y.Name) })
	var names []string
	for _, s := range list {
		for _, d := range s.Spec.Devices {
			name := d.Name
			if len(d.Taints) > 0 {
				name = "(" + name + ")"
			}
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func (b *bench) awaitPublished(want string) {
	b.Helper()
	got := ""
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if got = b.published(); got == want {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("published are %s, want %s", got, want)
		}
	}
}

// label sets the node's label for forms; an empty value removes it.
func (b *bench) label(value string) {
	b.Helper()
	var set any // null removes it
	if value != "" {
		set = value
	}
	b.relabel(map[string]any{devices.FormsLabel: set})
}

// relabel changes labels of the node, and leaves what the role writes to it as it is.
func (b *bench) relabel(set map[string]any) {
	b.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": set}})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := b.client.CoreV1().Nodes().Patch(context.Background(), "n1", types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		b.Fatal(err)
	}
}

// awaitCondition waits until the node's condition has a status and a reason, and its message contains a text.
func (b *bench) awaitCondition(status corev1.ConditionStatus, reason, says string) {
	b.Helper()
	b.awaitConditionOf(FormsCondition, status, reason, says)
}

// awaitConditionOf waits until a condition of the node is as wanted, and its message contains a text.
func (b *bench) awaitConditionOf(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, says string) {
	b.Helper()
	var last corev1.NodeCondition
	b.await(func() bool {
		n, err := b.client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range n.Status.Conditions {
			if c.Type == kind {
				last = c
			}
		}
		return last.Status == status && last.Reason == reason && strings.Contains(last.Message, says)
	}, fmt.Sprintf("condition %s, %s, %q", status, reason, says))
}

func TestByDefaultAGPUIsOneDeviceWithoutCounters(t *testing.T) {
	b := newBench(t, gputest.New(t, 2), withForms(""))
	list := b.slices()
	if len(list) != 1 || len(list[0].Spec.Devices) != 2 || len(list[0].Spec.SharedCounters) != 0 {
		t.Fatalf("published are %d slices: %+v", len(list), list)
	}
	for _, d := range list[0].Spec.Devices {
		if len(d.ConsumesCounters) > 0 || d.AllowMultipleAllocations != nil || *d.Attributes["type"].StringValue != "gpu" {
			t.Errorf("%s draws on %v, several allocations %v", d.Name, d.ConsumesCounters, d.AllowMultipleAllocations)
		}
	}
	b.awaitCondition(corev1.ConditionTrue, "ChartDefault", "2 GPUs offer whole; asked for: whole, by gpus.forms.default")
}

func TestLabelChangesFormsAndConditionNamesSource(t *testing.T) {
	b := newBench(t, gputest.New(t, 1), withForms(`{"nodes": [{"nodeSelector": {"matchLabels": {"pool": "x"}}, "form": "flexible"}]}`))
	b.awaitPublished("gpu-0")
	b.label("mig_3g.20gb")
	b.awaitPublished("gpu-0-mig-3g20gb-9-0 gpu-0-mig-3g20gb-9-4")
	b.awaitCondition(corev1.ConditionTrue, "NodeLabel", "1 GPUs offer MIG 3g.20gb")
	b.label("sometimes")
	b.awaitCondition(corev1.ConditionFalse, "FormsContradict", `form "sometimes": allowed are whole`)
	// After a restart of the role, too, the last valid state is offered.
	b.stop()
	b.start()
	b.awaitCondition(corev1.ConditionFalse, "FormsContradict", `form "sometimes"`)
	b.awaitPublished("gpu-0-mig-3g20gb-9-0 gpu-0-mig-3g20gb-9-4")
	b.label("mig_9g.90gb")
	b.awaitPublished("gpu-0")
	b.awaitCondition(corev1.ConditionFalse, "FormNotOnGPU", "has no MIG profile 9g.90gb: it has 1g.5gb")
	b.label("")
	b.awaitCondition(corev1.ConditionTrue, "ChartDefault", "")
}

func TestFormsStayWhenLabelKeepsChanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		updates, ended := make(chan labels.Set), make(chan error)
		var applied []string
		complaints := 0
		over := errors.New("over")
		done := make(chan error, 1)
		go func() {
			done <- steady(updates, ended, formsSettle, func(l labels.Set) { applied = append(applied, l["form"]) }, func() { complaints++ })
		}()
		updates <- labels.Set{"form": "whole"}
		begun := time.Now()
		for i := 0; time.Since(begun) < formsUnrest+formsSettle; i++ {
			updates <- labels.Set{"form": []string{"shareable", "flexible"}[i%2]}
			synctest.Wait()
			if early := time.Since(begun) <= formsUnrest; len(applied) != 1 || early != (complaints == 0) {
				t.Fatalf("%s after the first change: applied %v, %d complaints", time.Since(begun), applied, complaints)
			}
			time.Sleep(formsSettle / 10)
		}
		updates <- labels.Set{"form": "flexible"}
		time.Sleep(formsSettle)
		synctest.Wait()
		if !slices.Equal(applied, []string{"whole", "flexible"}) {
			t.Errorf("after the labels stood still applied are %v", applied)
		}
		ended <- over
		if err := <-done; !errors.Is(err, over) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestShareableGPUIsPreparedAsConsumed(t *testing.T) {
	b := newBench(t, gputest.New(t, 1), withForms(`{"default": {"form": "shareable"}}`))
	b.awaitPublished("gpu-0")
	all := b.slices()[0].Spec.Devices[0].Capacity["memory"].Value
	plain := func(uid string) *resourceapi.ResourceClaim {
		return b.claim(uid, nil, device{name: "gpu-0", share: "s-" + uid, capacity: map[string]string{"memory": all.String(), "cores": "10"}})
	}
	whole := plain("whole")
	if e := b.edits(whole, b.mustPrepare(whole)...); strings.Contains(fmt.Sprint(e.Env), "CUDA_DEVICE_MEMORY_LIMIT") {
		t.Errorf("a plain claim is limited: %v", e.Env)
	}
	share := func(uid string) *resourceapi.ResourceClaim {
		return b.claim(uid, nil, device{name: "gpu-0", share: "s-" + uid, capacity: map[string]string{"memory": "10Gi", "cores": "10"}})
	}
	first := share("first")
	// The scheduler would not do that. The node refuses it, also after a restart in between.
	for range 2 {
		b.refused(first, "claim default/claim-whole")
		b.stop()
		b.start()
	}
	if problem := b.unprepare(whole); problem != "" {
		t.Fatal(problem)
	}
	if e := b.edits(first, b.mustPrepare(first)...); !slices.Contains(e.Env, "CUDA_DEVICE_MEMORY_LIMIT=10240m") {
		t.Errorf("a share has the environment %v", e.Env)
	}
	b.mustPrepare(share("second"))
	b.stop()
	b.start()
	b.refused(plain("late"), "is held by")
}

// TestCountedSharesArePreparedSideBySide runs claims as the scheduler allocates them from a GPU with four shares: a plain one, one
// that asks for memory, and one that asks for more time.
func TestCountedSharesArePreparedSideBySide(t *testing.T) {
	b := newBench(t, gputest.New(t, 1), withForms(`{"default": {"form": "shares", "shares": 4}}`))
	b.awaitPublished("gpu-0")
	b.awaitCondition(corev1.ConditionTrue, "ChartDefault", "1 GPUs offer shares (4); asked for: shares_4")
	share := func(uid, memory string, configs ...string) *resourceapi.ResourceClaim {
		return b.claim(uid, configs, device{name: "gpu-0", share: "s-" + uid, capacity: map[string]string{"memory": memory, "shares": "1"}})
	}
	plain := share("plain", "0")
	if e := b.edits(plain, b.mustPrepare(plain)...); strings.Contains(fmt.Sprint(e.Env), "CUDA_DEVICE") {
		t.Errorf("a share that asks for nothing is limited: %v", e.Env)
	}
	// A claim with the whole GPU's memory but no count of shares does not have the GPU alone.
	some := share("some", "40Gi")
	if e := b.edits(some, b.mustPrepare(some)...); !slices.Contains(e.Env, "CUDA_DEVICE_MEMORY_LIMIT=40960m") {
		t.Errorf("a share that asks for memory has the environment %v", e.Env)
	}
	b.stop()
	b.start()
	long := share("long", "0", gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`))
	if _, problem := b.prepare(long); !strings.Contains(problem, "only a DeviceClass sets it") {
		t.Errorf("time slices of another length for one share: %q", problem)
	}
	if _, problem := b.prepare(share("mps", "0", gpuConfig(`{"strategy":"MPS"}`))); !strings.Contains(problem, "whole GPUs and MIG devices") {
		t.Errorf("MPS for a share: %q", problem)
	}
	// Another form waits for the claims. A claim that was allocated its share just before is still prepared.
	b.label("shareable")
	b.awaitPublished("(gpu-0)")
	late := share("late", "0")
	b.mustPrepare(late)
	for _, c := range []*resourceapi.ResourceClaim{plain, some, late} {
		if problem := b.unprepare(c); problem != "" {
			t.Fatal(problem)
		}
	}
	b.awaitPublished("gpu-0")
	b.awaitCondition(corev1.ConditionTrue, "NodeLabel", "1 GPUs offer shareable")
}

func TestFormStaysUntilItsClaimsEnd(t *testing.T) {
	b := newBench(t, gputest.New(t, 4))
	size := map[string]string{"memory": "1Gi", "cores": "10"}
	claims := []*resourceapi.ResourceClaim{
		b.claim("share", nil, device{name: "gpu-0-shared", share: "s1", capacity: size}),
		b.claim("mig", nil, device{name: "gpu-1-mig-1g5gb-19-3"}),
		b.claim("whole", nil, device{name: "gpu-2"}),
	}
	for _, c := range claims {
		b.mustPrepare(c)
	}
	b.stop()
	b.options.Forms = ""
	b.start()
	b.awaitPublished("(gpu-0-shared) gpu-1-mig-1g5gb-19-3 gpu-2 gpu-3")
	b.awaitCondition(corev1.ConditionFalse, "FormsHeld", "2 GPUs keep their forms until the claims that hold them end")
	// What the scheduler had allocated just before is still prepared, and published then.
	late := b.claim("late", nil, device{name: "gpu-3-shared", share: "s2", capacity: size})
	b.mustPrepare(late)
	b.awaitPublished("(gpu-0-shared) gpu-1-mig-1g5gb-19-3 gpu-2 (gpu-3-shared)")
	for _, c := range append(claims, late) {
		if problem := b.unprepare(c); problem != "" {
			t.Fatal(problem)
		}
	}
	b.awaitPublished("gpu-0 gpu-1 gpu-2 gpu-3")
	b.awaitCondition(corev1.ConditionTrue, "ChartDefault", "4 GPUs offer whole")
}
