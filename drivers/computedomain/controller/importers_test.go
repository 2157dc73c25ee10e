package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// use reserves a claim of the domain for a pod.
func (c *cluster) use(domain *v1beta1.ComputeDomain, pod string) *resourceapi.ResourceClaim {
	c.t.Helper()
	template, err := workloadTemplate(domain)
	c.must(err)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: domain.Namespace, Name: pod}, Spec: template.Spec.Spec}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod}}
	c.must(c.Create(c.t.Context(), claim))
	return claim
}

func (c *cluster) hasDaemons(domain *v1beta1.ComputeDomain) bool {
	c.t.Helper()
	err := c.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(domain.UID)}, &appsv1.DaemonSet{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
	return err == nil
}

func TestReconcilerKeepsDaemonsWhilePodsUseADeletedDomain(t *testing.T) {
	d, other := newDomain("d", 1), newDomain("e", 1)
	c := newCluster(t, d, other)
	c.settle(d.UID)
	claim := c.use(d, "rank-0")
	c.use(other, "of-another-domain")
	c.must(c.Delete(t.Context(), c.domain("d")))
	c.now = time.Now()
	_, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if !c.hasDaemons(d) {
		t.Error("the daemons went, and with them the memory that the pods share")
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "user", Name: "d-channel"},
		&resourceapi.ResourceClaimTemplate{}); !apierrors.IsNotFound(err) {
		t.Errorf("further pods can still join: %v", err)
	}
	c.now = c.now.Add(reportDeletionAfter)
	c.reconciler.memory.statusWritten(d.UID, time.Time{}) // the cluster's clock started at another time
	result, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	ready := c.domain("d").Status.Conditions[0]
	if ready.Reason != reasonDeleting || !strings.Contains(ready.Message, "rank-0") || strings.Contains(ready.Message, "of-another-domain") ||
		result.RequeueAfter != importersInterval {
		t.Errorf("it says %q and looks again in %s", ready.Message, result.RequeueAfter)
	}
	c.must(c.Delete(t.Context(), claim))
	c.settle(d.UID)
	if c.hasDaemons(d) {
		t.Error("the daemons stay though nobody uses the domain")
	}
}

func TestReconcilerEndsADeletedDomainThatStaysInUse(t *testing.T) {
	d := newDomain("d", 1)
	c := newCluster(t, d)
	c.settle(d.UID)
	c.use(d, "rank-0")
	c.must(c.Delete(t.Context(), c.domain("d")))
	c.now = time.Now().Add(importersPatience)
	_, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if c.hasDaemons(d) {
		t.Error("the domain is kept for ever")
	}
	if event := <-c.events.Events; !strings.Contains(event, "DeletedUnderPods") || !strings.Contains(event, "rank-0") {
		t.Errorf("event %q", event)
	}
}

func TestReconcilerEndsADeletedDomainWhenItsClockIsBehind(t *testing.T) {
	d := newDomain("d", 1)
	c := newCluster(t, d)
	c.settle(d.UID)
	c.use(d, "rank-0")
	c.must(c.Delete(t.Context(), c.domain("d")))
	start := time.Now().Add(-24 * time.Hour)
	c.now = start
	_, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if !c.hasDaemons(d) {
		t.Fatal("the daemons went at once")
	}
	c.now = start.Add(reportDeletionAfter)
	c.reconciler.memory.statusWritten(d.UID, time.Time{}) // the cluster's clock started at another time
	_, err = c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if ready := c.domain("d").Status.Conditions[0]; !strings.Contains(ready.Message, "in 30s their shared memory") {
		t.Errorf("it says %q", ready.Message)
	}
	c.now = start.Add(importersPatience)
	_, err = c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if c.hasDaemons(d) {
		t.Error("the domain is kept for a day")
	}
}

func TestReconcilerAppliesATemplateWhenPodsNextStart(t *testing.T) {
	d := newDomain("d", 2)
	c := newCluster(t, d)
	c.settle(d.UID)
	c.join(d, "a", "10.0.0.1", isReady)
	c.join(d, "b", "10.0.0.2", isReady)
	first, err := daemonPod(d, c.reconciler.settings)
	c.must(err)
	for _, name := range []string{"imex-a", "imex-b"} {
		c.madeFrom(name, first.Labels[labelTemplate])
	}
	c.settle(d.UID)
	current := func() *metav1.Condition {
		return meta.FindStatusCondition(c.domain("d").Status.Conditions, v1beta1.ConditionDaemonsCurrent)
	}
	if got := current(); got.Status != metav1.ConditionTrue {
		t.Errorf("at first: %+v", got)
	}

	// Another version of the controller.
	c.reconciler = newReconciler(c.reconciler.client, c.reconciler.live, c.events, c.reconciler.settings)
	c.reconciler.settings.Image = "image:2"
	c.reconciler.now = func() time.Time { return c.now }
	c.writes = nil
	c.settle(d.UID)
	var set appsv1.DaemonSet
	c.must(c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(d.UID)}, &set))
	if image := set.Spec.Template.Spec.Containers[0].Image; image != "image:2" ||
		set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("the template has %s, strategy %s", image, set.Spec.UpdateStrategy.Type)
	}
	if slices.ContainsFunc(c.writes, func(w string) bool { return strings.Contains(w, "Pod") }) {
		t.Errorf("a running daemon was touched: %v", c.writes)
	}
	if got := current(); got.Status != metav1.ConditionFalse || got.Reason != reasonBehind || !strings.Contains(got.Message, "on a, b") {
		t.Errorf("after the upgrade: %+v", got)
	}
	if c.domain("d").Status.Status != v1beta1.Ready {
		t.Error("a domain whose daemons are behind is Ready all the same")
	}

	c.madeFrom("imex-a", set.Spec.Template.Labels[labelTemplate]) // it was started again
	c.settle(d.UID)
	if got := current(); !strings.Contains(got.Message, "1 IMEX daemon is of an earlier template, on b") {
		t.Errorf("with one of two: %+v", got)
	}
	before := len(c.writes)
	c.settle(d.UID)
	if len(c.writes) != before {
		t.Errorf("wrote %v once all was said", c.writes[before:])
	}
}

// madeFrom labels a daemon's pod as the DaemonSet controller does.
func (c *cluster) madeFrom(pod, template string) {
	c.t.Helper()
	object := podOn("x", "", starting)
	c.must(c.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: pod}, &object))
	object.Labels[labelTemplate] = template
	c.must(c.Update(c.t.Context(), &object))
}

func TestSlotsOfACliqueNeverShrinkWhileTheDomainLives(t *testing.T) {
	d := newDomain("d", 0)
	c := newCluster(t, d)
	c.settle(d.UID)
	for i := range 19 {
		c.join(d, fmt.Sprintf("node-%02d", i), fmt.Sprintf("10.0.0.%d", i+1), isReady)
	}
	c.settle(d.UID)
	want := []v1beta1.ComputeDomainClique{{ID: clique, Slots: 36}}
	if got := c.domain("d").Status.Cliques; !slices.Equal(got, want) {
		t.Fatalf("cliques %+v, want %+v", got, want)
	}
	for i := range 19 {
		node := podOn(fmt.Sprintf("node-%02d", i), "", starting)
		node.Namespace = namespace
		c.must(c.Delete(t.Context(), &node))
		c.must(c.Delete(t.Context(), &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%02d", i)}}))
	}
	c.settle(d.UID)
	if got := c.domain("d").Status; len(got.Nodes) != 0 || !slices.Equal(got.Cliques, want) {
		t.Errorf("%d nodes, cliques %+v, want none and %+v", len(got.Nodes), got.Cliques, want)
	}
}
