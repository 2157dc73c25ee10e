package cliques

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

// stateOf is the directory in which node i keeps its IMEX session and faults.
func stateOf(i int) string {
	return filepath.Join(fabric.HardwareOf(cluster.NodeDir(shared.Dir, i)), "state")
}

// spoil makes the daemon of node i faulty. The returned function, or the end of the test, undoes that.
func spoil(t *testing.T, i int, faults imex.Faults) (mend func()) {
	t.Helper()
	path := filepath.Join(stateOf(i), imex.FaultsName)
	mend = func() {
		if err := imex.WriteFaults(path, imex.Faults{}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(mend)
	if err := imex.WriteFaults(path, faults); err != nil {
		t.Fatal(err)
	}
	return mend
}

// twoDomains are two domains with a pod each on node 0, and the first with one on node 1 too. It returns the memory that nodes
// 0 and 1 imported.
func twoDomains(t *testing.T, n *fixture.Namespace) []*imex.Import {
	t.Helper()
	n.Domain("first", 2)
	n.Domain("other", 1)
	n.Pod("first-0", "first-channel", cluster.NodeName(0))
	n.Pod("first-1", "first-channel", cluster.NodeName(1))
	n.Pod("other-0", "other-channel", cluster.NodeName(0))
	n.AwaitDomain("first", domain.ReadyOn(2))
	n.AwaitDomain("other", domain.ReadyOn(1))
	for _, pod := range []string{"first-0", "first-1", "other-0"} {
		n.AwaitPod(pod, fixture.Running)
	}
	var imports []*imex.Import
	for i := range 2 {
		memory, err := imex.ImportMemory(stateOf(i))
		if err != nil {
			t.Fatal(err)
		}
		imports = append(imports, memory)
	}
	return imports
}

// reportedAndReady waits until both domains of node 0 have reported its session's end, and are Ready again. Node 1 is not
// affected.
func reportedAndReady(t *testing.T, n *fixture.Namespace, imports []*imex.Import) {
	t.Helper()
	for pod, domain := range map[string]string{"first-0": "first", "other-0": "other"} {
		n.AwaitEvent(pod, "IMEXSessionEnded", cluster.NodeName(0))
		n.AwaitEvent(domain, "IMEXSessionEnded", cluster.NodeName(0), pod)
	}
	n.AwaitDomain("first", domain.ReadyOn(2))
	n.AwaitDomain("other", domain.ReadyOn(1))
	if imports[0].Alive() {
		t.Error("the memory of the node whose session ended still works; the test is wrong")
	}
	if !imports[1].Alive() {
		t.Error("the daemon of a node that was not hurt ended too, and its pod's memory is gone")
	}
	events, err := n.Client.CoreV1().Events(n.Name).List(t.Context(),
		metav1.ListOptions{FieldSelector: "reason=IMEXSessionEnded,involvedObject.name=first-1"})
	if err != nil || len(events.Items) > 0 {
		t.Errorf("the pod of a node whose session goes on: %v, %v", events.Items, err)
	}
}

func TestHealingReportsASessionsEndToAllDomains(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *fixture.Namespace){
		"its daemon fails": func(t *testing.T, _ *fixture.Namespace) { spoil(t, 0, imex.Faults{Failures: 1}) },
		"its daemon's container is killed": func(_ *testing.T, n *fixture.Namespace) {
			n.PluginKiller("imex-daemon", 0).StrikeRunning()
		},
		"its daemon's pod is evicted": evictDaemon,
	} {
		t.Run(name, func(t *testing.T) {
			n := shared.Namespace(t)
			imports := twoDomains(t, n)
			end(t, n)
			reportedAndReady(t, n, imports)
		})
	}
}

// evictDaemon deletes the pod of the IMEX daemon of node 0.
func evictDaemon(t *testing.T, n *fixture.Namespace) {
	t.Helper()
	pods := n.Client.CoreV1().Pods(fixture.System)
	found, err := pods.List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=imex-daemon", FieldSelector: "spec.nodeName=" + cluster.NodeName(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	// A pod that an earlier test evicted may still be ending.
	staying := slices.DeleteFunc(found.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	if len(staying) != 1 {
		t.Fatalf("the node has %d IMEX daemons that stay", len(staying))
	}
	if err := pods.Delete(t.Context(), staying[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// fabricTaint is the value of the taint on a node's channel; empty: none.
func fabricTaint(t *testing.T, node string) string {
	t.Helper()
	slices, err := shared.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{
		FieldSelector: "spec.driver=compute-domain.nvidia.com,spec.nodeName=" + node,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, slice := range slices.Items {
		for _, device := range slice.Spec.Devices {
			for _, taint := range device.Taints {
				return taint.Value
			}
		}
	}
	return ""
}

// awaitTaint waits for a value of that taint.
func awaitTaint(t *testing.T, node, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	last := ""
	if err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		last = fabricTaint(t, node)
		return last == want, nil
	}); err != nil {
		t.Fatalf("the channel of %s has the taint %q, want %q", node, last, want)
	}
}

func TestHealingKeepsPodsOffANodeWithoutADaemon(t *testing.T) {
	n := shared.Namespace(t)
	node := cluster.NodeName(3)
	awaitTaint(t, node, "")
	mend := spoil(t, 3, imex.Faults{Silent: "*"})
	awaitTaint(t, node, "IMEXDaemonNotReady")
	n.Domain("late", 1)
	n.Pod("late-0", "late-channel", node)
	mend()
	awaitTaint(t, node, "")
	n.AwaitPod("late-0", fixture.Running)
	n.AwaitDomain("late", domain.ReadyOn(1))
}

func TestHealingReleasesChannelsOfADeletedNamespace(t *testing.T) {
	n := shared.Namespace(t)
	var uids []string
	for i := range 2 {
		name := fmt.Sprintf("d%d", i)
		n.Domain(name, 1)
		n.Pod(name+"-0", name+"-channel", cluster.NodeName(2))
		n.AwaitPod(name+"-0", fixture.Running)
		uids = append(uids, n.AwaitDomain(name, domain.ReadyOn(1)).UID)
	}
	before := daemons(t)
	if err := n.Client.CoreV1().Namespaces().Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		n.AwaitDomainGone(fmt.Sprintf("d%d", i))
	}
	n.AwaitNothingLeft(uids...)
	if after := daemons(t); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("IMEX daemons before: %v, after: %v", before, after)
	}
}
