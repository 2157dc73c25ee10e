package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// condition returns a domain's condition, which must be there.
func (c *cluster) condition(name, kind string) metav1.Condition {
	c.t.Helper()
	condition := meta.FindStatusCondition(c.domain(name).Status.Conditions, kind)
	if condition == nil {
		c.t.Fatalf("the domain has no condition %s", kind)
	}
	return *condition
}

// nodeState is the state of one node in a domain's status.
func (c *cluster) nodeState(name, node string) v1beta1.ComputeDomainNode {
	c.t.Helper()
	for _, entry := range c.domain(name).Status.Nodes {
		if entry.Name == node {
			return entry
		}
	}
	c.t.Fatalf("the domain does not name node %s: %+v", node, c.domain(name).Status.Nodes)
	return v1beta1.ComputeDomainNode{}
}

// said returns the Events so far.
func (c *cluster) said() string {
	var said strings.Builder
	for len(c.events.Events) > 0 {
		fmt.Fprintln(&said, <-c.events.Events)
	}
	return said.String()
}

func TestNodeStateChangesWithItsTime(t *testing.T) {
	d := newDomain("d", 2)
	c := newCluster(t, d)
	c.settle(d.UID)
	c.join(d, "a", "10.0.0.1", starting)
	c.join(d, "b", "10.0.0.2", isReady)
	c.settle(d.UID)
	joined := c.nodeState("d", "a")
	if joined.State != v1beta1.NodeStarting || joined.Since == nil || joined.Why == "" {
		t.Errorf("a node that joined: %+v", joined)
	}
	progressing := c.condition("d", v1beta1.ConditionProgressing)
	if progressing.Status != metav1.ConditionTrue || progressing.Reason != reasonStarting ||
		progressing.Message != "of 2 nodes 1 ready, 1 starting, 0 interrupted, 0 yet to join" {
		t.Errorf("while it forms: %+v", progressing)
	}
	if why := c.domain("d").Status.Summary.Why; !strings.HasPrefix(why, "a: ") {
		t.Errorf("the first cause is %q", why)
	}

	c.now = c.now.Add(time.Hour)
	c.join(d, "a", "10.0.0.1", isReady)
	c.settle(d.UID)
	ready := c.nodeState("d", "a")
	if ready.State != v1beta1.NodeReady || ready.Why != "" || ready.Since.Sub(joined.Since.Time) < time.Hour {
		t.Errorf("a node that is ready: %+v", ready)
	}
	if why := c.domain("d").Status.Summary.Why; why != "" {
		t.Errorf("a domain that is whole says %q", why)
	}
	if degraded := c.condition("d", v1beta1.ConditionDegraded); degraded.Status != metav1.ConditionFalse || degraded.Reason != reasonSound {
		t.Errorf("a domain that is whole: %+v", degraded)
	}
	c.said()

	c.now = c.now.Add(time.Hour)
	c.join(d, "a", "10.0.0.1", starting)
	c.settle(d.UID)
	affected := c.nodeState("d", "a")
	if affected.State != v1beta1.NodeInterrupted || affected.Why == "" || affected.Since.Sub(ready.Since.Time) < time.Hour {
		t.Errorf("a node whose daemon is READY no longer: %+v", affected)
	}
	degraded := c.condition("d", v1beta1.ConditionDegraded)
	if degraded.Status != metav1.ConditionTrue || degraded.Reason != reasonInterrupted ||
		!strings.HasPrefix(degraded.Message, "1 of 2 nodes was ready and is not: a (since ") {
		t.Errorf("a domain with a node that is hurt: %+v", degraded)
	}
	if said := c.said(); !strings.Contains(said, reasonInterrupted) {
		t.Errorf("no Event says that a node was lost: %s", said)
	}
	if why := c.domain("d").Status.Summary.Why; !strings.HasPrefix(why, "interrupted: a (since ") {
		t.Errorf("the first cause is %q", why)
	}

	c.join(d, "a", "10.0.0.1", isReady)
	c.settle(d.UID)
	if again := c.nodeState("d", "a"); again.State != v1beta1.NodeReady {
		t.Errorf("a node that is mended: %+v", again)
	}
	if degraded := c.condition("d", v1beta1.ConditionDegraded); degraded.Status != metav1.ConditionFalse {
		t.Errorf("a domain that is mended: %+v", degraded)
	}
}

func TestDegradedLastsUntilAnotherNodeReplacesALostOne(t *testing.T) {
	c, d := newReadyDomain(t, "a", "b")
	c.must(c.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	c.must(c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "imex-a"}}))
	for range 2 { // also when the status no longer names the node
		c.settle(d.UID)
		degraded := c.condition("d", v1beta1.ConditionDegraded)
		if degraded.Status != metav1.ConditionTrue || degraded.Reason != reasonGone ||
			!strings.Contains(degraded.Message, "a has no Node object") {
			t.Errorf("after a node vanished: %+v", degraded)
		}
	}
	if said := c.said(); strings.Count(said, reasonGone) != 1 {
		t.Errorf("the Events are %s", said)
	}
	c.join(d, "c", "10.0.0.3", isReady)
	c.settle(d.UID)
	if degraded := c.condition("d", v1beta1.ConditionDegraded); degraded.Status != metav1.ConditionFalse {
		t.Errorf("after another node came: %+v", degraded)
	}
}

func TestDegradedIsFalseWhenANodeLeaves(t *testing.T) {
	c, d := newReadyDomain(t, "a", "b")
	node := &corev1.Node{}
	c.must(c.Get(t.Context(), client.ObjectKey{Name: "a"}, node))
	delete(node.Labels, v1beta1.LabelComputeDomain)
	c.must(c.Update(t.Context(), node))
	c.must(c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "imex-a"}}))
	c.settle(d.UID)
	if degraded := c.condition("d", v1beta1.ConditionDegraded); degraded.Status != metav1.ConditionFalse {
		t.Errorf("after a pod ended: %+v", degraded)
	}
	if why := c.domain("d").Status.Summary.Why; why != "1 node has to join" {
		t.Errorf("the first cause is %q", why)
	}
}

func TestDegradedReportsTheFirstProblem(t *testing.T) {
	h := health{needs: 1, problem: &metav1.Condition{Reason: reasonTaken, Message: "the name is taken"}, now: time.Now()}
	domain := newDomain("d", 1)
	h.setConditions(domain)
	degraded := meta.FindStatusCondition(domain.Status.Conditions, v1beta1.ConditionDegraded)
	progressing := meta.FindStatusCondition(domain.Status.Conditions, v1beta1.ConditionProgressing)
	if degraded.Status != metav1.ConditionTrue || degraded.Reason != reasonTaken || progressing.Status != metav1.ConditionFalse ||
		h.firstCause(domain) != "the name is taken" {
		t.Errorf("degraded %+v, progressing %+v, first cause %q", degraded, progressing, h.firstCause(domain))
	}
	h.problem.Reason = reasonDeleting
	h.setConditions(domain)
	if meta.IsStatusConditionTrue(domain.Status.Conditions, v1beta1.ConditionDegraded) ||
		!meta.IsStatusConditionTrue(domain.Status.Conditions, v1beta1.ConditionProgressing) {
		t.Errorf("while it is deleted: %+v", domain.Status.Conditions)
	}
}

// A version without states wrote only Status.
func TestNodeStateIsAddedToAnEarlierStatus(t *testing.T) {
	members := membersWith(1, "nvidia-imex is not READY")
	before := []v1beta1.ComputeDomainNode{
		entry("node-a00", "10.0.0.1", clique, 0, v1beta1.Ready), entry("node-b00", "10.0.1.1", clique, 1, v1beta1.Ready),
	}
	nodes := nodesOf(before, members)
	h := health{needs: 2, members: members, now: time.Now()}
	h.setStates(before, nodes)
	if nodes[0].State != v1beta1.NodeReady || nodes[1].State != v1beta1.NodeInterrupted || nodes[0].Since == nil || nodes[1].Since == nil {
		t.Errorf("%+v", nodes)
	}
}
