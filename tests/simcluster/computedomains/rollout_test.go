package computedomains

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/tests/simcluster/fixture"
)

// TestRolloutStopsAtAPluginThatCrashesOrHangs rolls out broken versions of a plugin through Kubernetes' own DaemonSet
// controller. Two of 18 nodes get the new version (10 %, rounded up), and the others keep the one that serves.
func TestRolloutStopsAtAPluginThatCrashesOrHangs(t *testing.T) {
	const name, batch = "gpufabric-compute-domain-plugin", 2
	sets := shared.Client.AppsV1().DaemonSets(fixture.System)
	standing, err := sets.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	args := standing.Spec.Template.Spec.Containers[0].Args
	roll := func(t *testing.T, args []string) int64 {
		t.Helper()
		patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}})
		if err != nil {
			t.Fatal(err)
		}
		// The test's own context has ended when the old arguments are restored.
		set, err := sets.Patch(context.WithoutCancel(t.Context()), name, types.JSONPatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return set.Generation
	}
	// A pod that does not count yet is replaced at once, whatever maxUnavailable says.
	follow(t, name, fixture.Patience, func(set *appsv1.DaemonSet) bool { return set.Status.NumberAvailable == nodes })
	for _, test := range []struct {
		name, arg string
	}{
		{"it crashes", "--no-such-flag"},
		{"it answers nobody", "--metrics-address=127.0.0.1:1"}, // an address where it may not listen, or that no probe uses
	} {
		t.Run(test.name, func(t *testing.T) {
			generation := roll(t, append(append([]string{}, args...), test.arg))
			t.Cleanup(func() {
				generation := roll(t, args)
				follow(t, name, 2*fixture.Patience, func(set *appsv1.DaemonSet) bool {
					s := set.Status
					return s.ObservedGeneration >= generation && s.UpdatedNumberScheduled == nodes && s.NumberAvailable == nodes
				})
			})
			follow(t, name, fixture.Patience, func(set *appsv1.DaemonSet) bool {
				return set.Status.ObservedGeneration >= generation && set.Status.UpdatedNumberScheduled == batch
			})
			// Twice the time until a ready pod counts as available and the next batch follows.
			most := int32(0)
			follow(t, name, 25*time.Second, func(set *appsv1.DaemonSet) bool {
				most = max(most, set.Status.UpdatedNumberScheduled)
				return false
			})
			// It does not count available pods, since on a busy machine a plugin that serves may answer a probe late.
			if kept := without(t, test.arg); most != batch || kept < nodes-batch {
				t.Errorf("%d nodes got the broken plugin, and %d of %d kept one that serves", most, kept, nodes)
			}
		})
	}
}

// without counts the plugins that are not being deleted and do not have the argument.
func without(t *testing.T, argument string) int {
	t.Helper()
	pods, err := shared.Client.CoreV1().Pods(fixture.System).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=compute-domain-plugin"})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && !slices.Contains(pod.Spec.Containers[0].Args, argument) {
			count++
		}
	}
	return count
}

// follow calls done with each change of a DaemonSet, until done returns true or the time is over. A done that never returns
// true only observes.
func follow(t *testing.T, name string, patience time.Duration, done func(*appsv1.DaemonSet) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	events, err := shared.Client.AppsV1().DaemonSets(fixture.System).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var last appsv1.DaemonSetStatus
	for event := range events.ResultChan() {
		if set, ok := event.Object.(*appsv1.DaemonSet); ok {
			if last = set.Status; done(set) {
				return
			}
		}
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatalf("the watch of DaemonSet %s ended early", name)
	}
	if patience >= fixture.Patience {
		t.Fatalf("DaemonSet %s is not as it should be after %s: %+v", name, patience, last)
	}
}
