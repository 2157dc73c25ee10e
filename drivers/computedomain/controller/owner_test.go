package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// ownedDomain is a domain whose annotation names an owner.
func ownedDomain(owner string) *v1beta1.ComputeDomain {
	domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{
		Namespace: "user", Name: "d", UID: "uid", Annotations: map[string]string{v1beta1.AnnotationOwner: owner},
		CreationTimestamp: metav1.Unix(1_800_000_000, 0),
	}}
	domain.Spec.Channel.ResourceClaimTemplate.Name = "d-channel"
	return domain
}

func TestOwnerDeletesTheDomainWithTheWorkload(t *testing.T) {
	c := newCluster(t, ownedDomain("Job/train"),
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "train", UID: "of another namespace"}})
	c.reconciler.settings.Owners = []string{"Job"}
	c.settle("uid")
	for _, wait := range []struct{ age, again time.Duration }{
		{time.Second, time.Second}, {90 * time.Second, 45 * time.Second}, {time.Hour, time.Minute},
	} {
		c.now = time.Unix(1_800_000_000, 0).Add(wait.age)
		result, err := c.reconciler.Reconcile(t.Context(), "uid")
		if err != nil || result.RequeueAfter != wait.again || len(c.domain("d").OwnerReferences) > 0 {
			t.Errorf("%s after its creation, without its Job: looked at again after %s (%v), owners %v", wait.age, result.RequeueAfter, err,
				c.domain("d").OwnerReferences)
		}
	}
	c.must(c.Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "train", UID: "job"}}))
	c.settle("uid")
	want := []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: types.UID("job")}}
	if diff := cmp.Diff(want, c.domain("d").OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got)\n%s", diff)
	}
	if status := c.domain("d").Status.Status; status == "" {
		t.Error("the domain has no status")
	}
}

func TestOwnerReportsAnImpossibleWorkloadOnce(t *testing.T) {
	for _, owner := range []string{"Job", "Job/", "/train", "Deployment/train", "JobSet/train", "Job/a/b", strings.Repeat("x", 5000)} {
		c := newCluster(t, ownedDomain(owner))
		c.reconciler.settings.Owners = []string{"Job"}
		c.settle("uid")
		c.settle("uid")
		reported := 0
		for len(c.events.Events) > 0 {
			if event := <-c.events.Events; strings.Contains(event, reasonOwner) {
				reported++
			}
		}
		if want := 1; owner != "Job/a/b" && reported != want { // no Job has that name: the controller waits for it
			t.Errorf("owner %.20q: told %d times, not %d", owner, reported, want)
		}
		if d := c.domain("d"); d.Status.Status != v1beta1.Ready || len(d.OwnerReferences) > 0 {
			t.Errorf("owner %.20q: status %q, owners %v", owner, d.Status.Status, d.OwnerReferences)
		}
	}
}

// Whoever may write a domain may write its annotation as often as they like. What the controller remembers of it stays as small as it was.
func TestOwnerForgetsImpossibleWorkloads(t *testing.T) {
	c := newCluster(t, ownedDomain("Job"))
	c.settle("uid")
	remembered := len(c.reconciler.memory.of("uid").created)
	for i := range 50 {
		domain := c.domain("d")
		domain.Annotations[v1beta1.AnnotationOwner] = fmt.Sprintf("Cluster%d/%s", i, strings.Repeat("x", 10_000))
		c.must(c.Update(t.Context(), domain))
		c.settle("uid")
		for len(c.events.Events) > 0 {
			if event := <-c.events.Events; len(event) > 1000 {
				t.Errorf("an Event has %d bytes", len(event))
			}
		}
	}
	if more := len(c.reconciler.memory.of("uid").created) - remembered; more > 0 {
		t.Errorf("the controller remembers %d more things about the domain", more)
	}
}

// The words that lead to another namespace, to a path or to a kind without a namespace lead to no owner.
func TestOwnerRejectsOtherNamespacesAndKinds(t *testing.T) {
	others := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "train", UID: "others"}}
	for _, owner := range []string{"Job/other/train", "Job/../other/train", "Job/../../namespaces/other/jobs/train", "Namespace/other",
		"Node/node-0", "ComputeDomain/d", "job/train", "Jobs/train", "Job.batch/train", "batch/v1/Job/train", "Job/train/status", "Job/%2e%2e",
		" Job/train", "Job /train", "Job/train\n", "Job/train\x00", "Job/*"} {
		c := newCluster(t, ownedDomain(owner), others.DeepCopy(),
			&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "train", UID: "own"}})
		c.reconciler.settings.Owners = OwnerKinds()
		c.settle("uid")
		if owners := c.domain("d").OwnerReferences; len(owners) > 0 {
			t.Errorf("%q: owners %v", owner, owners)
		}
	}
}
