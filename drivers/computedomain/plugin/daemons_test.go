package plugin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/hardware/nvml"
)

// daemonPod is the pod of the clique's daemon.
func daemonPod(ready corev1.ConditionStatus) []*corev1.Pod {
	return []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1beta1.LabelComputeDomain: "table"}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}}
}

func TestDaemonsTaintTheNodeUntilTheCliqueDaemonIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &preparer{daemons: &daemons{}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.followDaemon(ctx) }()
		defer func() { cancel(); <-ended }()
		after := func(pause time.Duration, want bool, what string) {
			t.Helper()
			time.Sleep(pause)
			synctest.Wait()
			if got := k.unready.Now() != ""; got != want {
				t.Errorf("%s: tainted %t", what, got)
			}
		}
		k.clique.object.Set(&v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{UID: "table"}})
		k.daemons.pods.Set(daemonPod(corev1.ConditionTrue))
		after(time.Hour, false, "while it is ready")
		k.daemons.pods.Set(daemonPod(corev1.ConditionFalse))
		after(unreadyAfter-time.Second, false, "while it starts again")
		k.daemons.pods.Set(daemonPod(corev1.ConditionTrue))
		after(time.Hour, false, "after it started again")
		k.daemons.pods.Set(daemonPod(corev1.ConditionFalse))
		after(unreadyAfter/2, false, "when it ended once more")
		k.daemons.pods.Set(nil)
		after(unreadyAfter, true, "when its pod is gone and has not come back")
		k.daemons.pods.Set(daemonPod(corev1.ConditionTrue))
		after(0, false, "when it is ready at last")
	})
}

func TestDaemonsTaintOnlySharedChannelsOfAFabric(t *testing.T) {
	joined := fabric{known: true, state: nvml.Joined, clique: cliqueID}
	troubled := joined
	troubled.problem, troubled.problemKind = "the GPU fell off the bus", problemGPU
	for name, c := range map[string]struct {
		fabric  fabric
		shared  bool
		unready string
		taint   string
	}{
		"a shared channel whose daemon is not ready":      {joined, true, problemDaemon, problemDaemon},
		"a shared channel whose daemon is ready":          {joined, true, "", ""},
		"a channel whose domain brings its daemon":        {joined, false, problemDaemon, ""},
		"a node without fabric":                           {noFabric, true, problemDaemon, ""},
		"a node with trouble that is older than its word": {troubled, true, problemDaemon, problemGPU},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if taints := devicesOf(c.fabric, c.shared, c.unready, nil)[0].Taints; len(taints) > 0 {
				got = taints[0].Value
			}
			if got != c.taint {
				t.Errorf("the taint is %q, want %q", got, c.taint)
			}
		})
	}
}

// A daemon's pod that was evicted stays beside its successor for a while. A claim must not wait for it.
func TestMissingOfLooksAtEveryPodOfTheDomain(t *testing.T) {
	evicted, ready := daemonPod(corev1.ConditionFalse)[0], daemonPod(corev1.ConditionTrue)[0]
	evicted.Status.Phase = corev1.PodFailed
	for _, pods := range [][]*corev1.Pod{{evicted, ready}, {ready, evicted}} {
		if missing := missingOf(pods, "table"); missing != "" {
			t.Errorf("two pods, one of them ready: %s", missing)
		}
	}
	if missingOf([]*corev1.Pod{evicted}, "table") == "" || missingOf([]*corev1.Pod{ready}, "another") == "" {
		t.Error("a pod that is not ready, or another domain's, counts")
	}
}
