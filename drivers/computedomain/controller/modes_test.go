package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// tell gives both controllers another mode.
func (s *sharedClique) tell(mode v1beta1.IMEXMode) {
	s.reconciler.settings.IMEX, s.other.settings.IMEX = mode, mode
}

// An administrator who switches back at once: the controller makes no clique's ComputeDomain in mode Domain, so that a domain which stayed
// in the mode in which it was made would wait for ever.
func TestModeChangeGivesAWaitingDomainItsOwnDaemons(t *testing.T) {
	s := newSharedClique(t, 1)
	d := newDomain("d", 1)
	s.must(s.Create(t.Context(), d))
	s.reconcile(d.UID)
	if mode := s.domain("d").Status.IMEX; mode != v1beta1.IMEXClique {
		t.Fatalf("the domain was made in mode %s", mode)
	}
	s.tell(v1beta1.IMEXDomain)
	s.reconcile(d.UID)
	// Nothing of the new mode is made before the mode is recorded: a controller that ends here must not leave what nobody removes.
	daemons := func() int {
		var sets appsv1.DaemonSetList
		s.must(s.List(t.Context(), &sets, client.MatchingLabels{v1beta1.LabelComputeDomain: string(d.UID)}))
		return len(sets.Items)
	}
	if mode := s.domain("d").Status.IMEX; mode != v1beta1.IMEXDomain || daemons() != 0 {
		t.Errorf("after a pass the domain is of mode %s with %d DaemonSets", mode, daemons())
	}
	s.reconcile(d.UID)
	if daemons() != 1 {
		t.Errorf("the domain has %d DaemonSets", daemons())
	}
}

func TestCliquesOfAnEarlierModeStayUntilItsDomainsHaveEnded(t *testing.T) {
	s := newSharedClique(t, 1)
	s.reconcile(s.uid)
	old := newDomain("old", 1)
	s.must(s.Create(t.Context(), old))
	s.reconcile(old.UID)
	status := s.domain("old")
	status.Status.Nodes = []v1beta1.ComputeDomainNode{{Name: "elsewhere"}} // it has a channel of another clique
	s.must(s.Status().Update(t.Context(), status))
	s.tell(v1beta1.IMEXDomain)
	keeper := &cliques{client: s.reconciler.client, settings: s.reconciler.settings}
	keep := func() error {
		if _, err := keeper.Reconcile(t.Context(), clique); err != nil {
			t.Fatal(err)
		}
		return s.Get(t.Context(), client.ObjectKeyFromObject(cliqueDomain(clique, namespace)), &v1beta1.ComputeDomain{})
	}
	if err := keep(); err != nil {
		t.Fatalf("a pod of the domain may still come to the clique, and the controller makes no other: %v", err)
	}
	ended := s.domain("old")
	if concerned := keeper.concerns(t.Context(), ended); len(concerned) != 1 || concerned[0] != clique {
		t.Errorf("when the domain ends, the cliques %v are looked at", concerned)
	}
	s.must(s.Delete(t.Context(), ended))
	for range 3 {
		s.reconcile(old.UID)
	}
	_ = keep() // it has a finalizer
	for range 3 {
		s.reconcile(s.uid)
	}
	if err := keep(); !apierrors.IsNotFound(err) {
		t.Errorf("the clique's ComputeDomain is left: %v", err)
	}
}

func TestModeChangeEndsTheCliquesDaemons(t *testing.T) {
	s := newSharedClique(t, 1)
	d := newDomain("d", 1)
	d.Status.IMEX = v1beta1.IMEXDomain
	s.must(s.Create(t.Context(), d))
	node := &corev1.Node{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
	node.Labels[v1beta1.LabelComputeDomain] = string(d.UID)
	s.must(s.Update(t.Context(), node))
	for range 3 {
		s.reconcile(s.uid)
		s.now = s.now.Add(progressPause)
	}
	var set appsv1.DaemonSet
	s.must(s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(s.uid)}, &set))
	terms := set.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != v1beta1.LabelComputeDomain ||
		terms[0].MatchExpressions[0].Operator != corev1.NodeSelectorOpDoesNotExist {
		t.Errorf("the daemons are kept off by %+v", terms)
	}
	own, err := daemonSet(d, s.reconciler.settings)
	s.must(err)
	if own.Spec.Template.Spec.Affinity != nil {
		t.Errorf("the domain's own daemons are kept off by %+v", own.Spec.Template.Spec.Affinity)
	}
	members, _, err := s.reconciler.members(t.Context(), &pass{domain: s.table(), clique: clique})
	s.must(err)
	for _, m := range members {
		if reported := strings.Contains(m.why, "user/d"); reported != (m.name == "n1") {
			t.Errorf("node %s waits, as %q", m.name, m.why)
		}
	}
}

func (s *sharedClique) countLive() map[string]int {
	lists := map[string]int{}
	live := interceptor.NewClient(s.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists[fmt.Sprintf("%T", list)]++
			return w.List(ctx, list, opts...)
		},
	})
	s.reconciler.live, s.reconciler.consumers.live = live, live
	s.other = s.reconciler
	return lists
}

func TestReconcilerListsClaimsOnceForAllEndingDomains(t *testing.T) {
	s := newSharedClique(t, 1)
	s.now = time.Now() // the in-memory client stamps deletions with this
	lists := s.countLive()
	var domains []*v1beta1.ComputeDomain
	for i := range 20 {
		d := newDomain(string(rune('a'+i)), 1)
		s.must(s.Create(t.Context(), d))
		s.reconcile(d.UID)
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: d.Name}}
		template, err := workloadTemplate(d)
		s.must(err)
		claim.Spec = template.Spec.Spec
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-of-" + d.Name}}
		s.must(s.Create(t.Context(), claim))
		domains = append(domains, d)
	}
	for _, d := range domains {
		s.must(s.Delete(t.Context(), s.domain(d.Name)))
		s.reconciler.concerns(t.Context(), s.domain(d.Name)) // the watch says so
	}
	begun := s.now
	for _, d := range domains {
		s.now = begun // all in one moment
		s.reconcile(d.UID)
	}
	if count := lists["*v1.ResourceClaimList"]; count != 1 {
		t.Errorf("20 domains that are being deleted listed the claims %d times", count)
	}
	// A pod that came after that list counts for a domain whose deletion begins later.
	late := newDomain("z", 1)
	s.must(s.Create(t.Context(), late))
	s.reconcile(late.UID)
	template, err := workloadTemplate(late)
	s.must(err)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "z"}, Spec: template.Spec.Spec}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-of-z"}}
	s.must(s.Create(t.Context(), claim))
	s.must(s.Delete(t.Context(), s.domain("z")))
	pods, err := s.reconciler.importers(t.Context(), s.domain("z"))
	if err != nil || len(pods) != 1 || pods[0] != "pod-of-z" {
		t.Errorf("the pods that use the domain: %v, %v", pods, err)
	}
}

func TestReconcilerDoesNotListClaimsWhileNodesHaveTheChannel(t *testing.T) {
	s := newSharedClique(t, 1)
	d := newDomain("d", 1)
	s.must(s.Create(t.Context(), d))
	s.node("n0", d.UID, true)
	for _, uid := range []types.UID{d.UID, s.uid, d.UID} {
		s.reconcile(uid)
	}
	lists := s.countLive()
	s.must(s.Delete(t.Context(), s.domain("d")))
	for range 5 {
		s.reconcile(s.uid)
	}
	if len(lists) != 0 {
		t.Errorf("while a node has the number the API server was asked for lists: %v", lists)
	}
	s.node("n0", d.UID, false)
	s.reconcile(s.uid)
	if computedomain.ChannelOf(s.table(), d.UID) != nil {
		t.Error("the number is held though its domain is being deleted and no node has it")
	}
	if lists["*v1.PartialObjectMetadataList"] != 2 { // the domain by its name, and one node that may have its label
		t.Errorf("for the end of one channel the API server was asked for lists: %v", lists)
	}
}

func TestNodesThatJoinADomainOfAChannelOneByOneCostFewWrites(t *testing.T) {
	s := newSharedClique(t, 1)
	const size = 18
	d := newDomain("d", size)
	s.must(s.Create(t.Context(), d))
	served := s.table()
	served.Status.IMEX = v1beta1.IMEXClique
	for i := range size {
		name := fmt.Sprintf("m%02d", i)
		s.must(s.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{v1beta1.LabelClique: clique}}}))
		served.Status.Nodes = append(served.Status.Nodes, v1beta1.ComputeDomainNode{Name: name, IPAddress: fmt.Sprintf("10.0.0.%d", i+1),
			CliqueID: clique, Index: i, Status: v1beta1.Ready})
	}
	served.Status.Channels = []v1beta1.ComputeDomainChannel{holder(string(d.UID), 0, false)}
	s.must(s.Status().Update(t.Context(), served))
	s.reconciler.memory.forget(s.uid)
	if _, err := s.reconciler.Reconcile(t.Context(), d.UID); err != nil {
		t.Fatal(err)
	}
	s.writes = nil
	for i := range size { // within 6 seconds, as the scheduler binds pods in a large cluster
		s.node(fmt.Sprintf("m%02d", i), d.UID, true)
		if _, err := s.reconciler.Reconcile(t.Context(), d.UID); err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(time.Second / 3)
	}
	if got := s.domain("d").Status; got.Status != v1beta1.Ready || len(got.Nodes) != size {
		t.Fatalf("with the last node the domain is %s with %d nodes", got.Status, len(got.Nodes))
	}
	if len(s.writes) > size/3 {
		t.Errorf("%d nodes cost %d writes: %v", size, len(s.writes), s.writes)
	}
}
