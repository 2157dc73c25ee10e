package plugin

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/occupancy"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
)

// A pod was deleted by force and ignores SIGTERM. The scheduler gives its share to the next pod.
func TestAllocateIsRefusedWhileADeletedPodsContainerRuns(t *testing.T) {
	state := t.TempDir()
	n := start(t, "--gpu-memory-factor=10", "--state-dir="+state)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	whole := n.machine.GPUs[0].UUID + ",NVIDIA,4096,0:;"
	n.schedule("first", whole, "main")
	n.pods.Run("uid-first")
	n.allocate("volcano.sh/vgpu-number", 1)
	n.phase("first", "success")
	if err := n.api.CoreV1().Pods("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.schedule("second", whole, "main")
	_, err := n.tryAllocate("volcano.sh/vgpu-number", 1)
	if err == nil || !strings.Contains(err.Error(), "container c0ffee (2 processes) of pod default/first (UID uid-first) still runs") {
		t.Fatalf("the share of a pod that runs was given away: %v", err)
	}
	t.Logf("attacker sees: %v", err)
	n.phase("second", "failed")
	// After a restart the API does not have the pod any more.
	n.cancel()
	again := start(t, "--gpu-memory-factor=10", "--state-dir="+state, "--sysfs-root="+n.options.SysfsRoot)
	again.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	again.schedule("third", whole, "main")
	if _, err := again.tryAllocate("volcano.sh/vgpu-number", 1); err == nil || !strings.Contains(err.Error(), "UID uid-first) still runs") {
		t.Fatalf("the share of a pod that runs was given away after a restart: %v", err)
	}
	n.pods.End("uid-first")
	again.schedule("fourth", whole, "main")
	again.allocate("volcano.sh/vgpu-number", 1)
	if files, err := filepath.Glob(filepath.Join(state, "given", "*.json")); err != nil ||
		!slices.Equal(files, []string{filepath.Join(state, "given/uid-fourth.json")}) {
		t.Errorf("records %v (%v), want that of the pod that has a share", files, err)
	}
}

func TestDepartedPodIsFreedWhenItsLastProcessEnds(t *testing.T) {
	const uid = "uid-a"
	deleted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: uid}}
	ended := deleted.DeepCopy()
	ended.Status.Phase = corev1.PodFailed // as the kubelet and the pod garbage collector write it
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		unseen  bool // the node's cgroups show no pod
		runs    time.Duration
		atLeast time.Duration
	}{
		"deleted":           {pod: deleted},
		"ended":             {pod: ended},
		"deleted, runs":     {pod: deleted, runs: 30 * time.Second, atLeast: 30 * time.Second},
		"failed, runs":      {pod: ended, runs: 30 * time.Second, atLeast: 30 * time.Second},
		"ended, not seen":   {pod: ended, unseen: true},
		"deleted, not seen": {pod: deleted, unseen: true, atLeast: occupancy.Patience},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				pods := occupancytest.Pods{}
				if !c.unseen {
					pods = occupancytest.New(t, root)
				}
				if c.runs > 0 {
					pods.Run(uid)
				}
				freed, reports := make(chan types.UID, 1), make(chan string, 1)
				d := newDeparted(&occupancy.Cgroups{Root: root}, func(_ context.Context, pod *corev1.Pod) { freed <- pod.UID },
					func(reason, _ string) { reports <- reason })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = d.run(ctx) }()
				began := time.Now()
				d.add(ctx, c.pod)
				time.Sleep(c.runs)
				if c.runs > 0 {
					pods.End(uid)
				}
				<-freed
				if took := time.Since(began); took < c.atLeast || took > c.atLeast+time.Second {
					t.Errorf("freed after %s, want %s", took, c.atLeast)
				}
				if want := map[bool]int{true: 1}[c.atLeast > 0]; len(reports) != want {
					t.Errorf("%d reports, want %d", len(reports), want)
				}
			})
		})
	}
}

// TestRunsReportsAContainerUntilItsCgroupIsEmpty: by its ID, and any container of the pod.
func TestRunsReportsAContainerUntilItsCgroupIsEmpty(t *testing.T) {
	root := t.TempDir()
	pods := occupancytest.New(t, root)
	live := runs(&occupancy.Cgroups{Root: root})
	pods.Run("uid-a")
	for _, c := range []struct {
		pod, container string
		want           bool
	}{{"uid-a", "c0ffee", true}, {"uid-a", "", true}, {"uid-a", "other", false}, {"uid-b", "", false}, {"uid-b", "c0ffee", false}} {
		if got := live(t.Context(), c.pod, c.container); got != c.want {
			t.Errorf("container %q of %s runs: %t, want %t", c.container, c.pod, got, c.want)
		}
	}
	pods.End("uid-a")
	if live(t.Context(), "uid-a", "c0ffee") || live(t.Context(), "uid-a", "") {
		t.Error("a container of an ended pod runs")
	}
}
