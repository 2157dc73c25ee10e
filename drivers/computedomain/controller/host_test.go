package controller

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// service writes on a node what its plugin has found out about its nvidia-imex.
func (s *sharedClique) service(name, state string) {
	s.t.Helper()
	node := &corev1.Node{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Name: name}, node))
	node.Labels[computedomain.LabelHostIMEX] = state
	s.must(s.Update(s.t.Context(), node))
}

func newHostClique(t *testing.T) *sharedClique {
	t.Helper()
	s := newSharedClique(t, 1)
	s.reconciler.settings.IMEX, s.other.settings.IMEX = v1beta1.IMEXHost, v1beta1.IMEXHost
	return s
}

func TestHostModeAssignsAChannelAndDoesNotStartDaemons(t *testing.T) {
	s := newHostClique(t)
	d := newDomain("d", 2)
	s.must(s.Create(t.Context(), d))
	s.reconcile(d.UID)
	for i := range 2 {
		s.node(fmt.Sprintf("n%d", i), d.UID, true)
	}
	s.service("n0", computedomain.HostIMEXReady)
	s.service("n1", "HostIMEXNotRunning")
	look := func() *v1beta1.ComputeDomain {
		for range 3 {
			s.reconcile(s.uid)
			s.reconcile(d.UID)
			s.now = s.now.Add(progressPause)
		}
		return s.domain("d")
	}
	got := look()
	if got.Status.IMEX != v1beta1.IMEXHost || got.Status.Status != v1beta1.NotReady ||
		!strings.Contains(got.Status.Summary.Why, "HostIMEXNotRunning") {
		t.Errorf("%+v", got.Status)
	}
	s.service("n1", computedomain.HostIMEXReady)
	if got = look(); got.Status.Status != v1beta1.Ready || len(got.Status.Cliques) != 1 || got.Status.Cliques[0].Channel == nil {
		t.Errorf("%+v", got.Status)
	}
	if channel := computedomain.ChannelOf(s.table(), d.UID); channel == nil || s.table().Status.IMEX != v1beta1.IMEXHost {
		t.Errorf("the clique's table: %+v", s.table().Status)
	}
	var sets appsv1.DaemonSetList
	s.must(s.List(t.Context(), &sets))
	var templates resourceapi.ResourceClaimTemplateList
	s.must(s.List(t.Context(), &templates, client.InNamespace(namespace)))
	if len(sets.Items)+len(templates.Items) != 0 {
		t.Errorf("daemons are made beside the nodes' own: %d DaemonSets, %d templates", len(sets.Items), len(templates.Items))
	}
}

func TestHostModeBeginsWhenTheCliquesDomainsHaveEnded(t *testing.T) {
	s := newSharedClique(t, 1)
	old := newDomain("old", 1)
	s.must(s.Create(t.Context(), old))
	s.node("n0", old.UID, true)
	for _, uid := range []types.UID{old.UID, s.uid, old.UID} {
		s.reconcile(uid)
	}
	settings := s.reconciler.settings
	settings.IMEX = v1beta1.IMEXHost
	s.reconciler.settings, s.other.settings = settings, settings
	keeper := &cliques{client: s.reconciler.client, settings: settings}
	keep := func() {
		if _, err := keeper.Reconcile(t.Context(), clique); err != nil {
			t.Fatal(err)
		}
	}
	keep()
	late := newDomain("late", 1)
	s.must(s.Create(t.Context(), late))
	s.reconcile(late.UID)
	s.node("n1", late.UID, true)
	s.now = s.now.Add(progressPause) // messages of a status are delayed for so long
	for _, uid := range []types.UID{s.uid, late.UID, old.UID} {
		s.reconcile(uid)
	}
	if table := s.table(); table.Status.IMEX != v1beta1.IMEXClique || table.DeletionTimestamp != nil ||
		computedomain.ChannelOf(table, old.UID) == nil || computedomain.ChannelOf(table, late.UID) != nil {
		t.Errorf("while a domain runs: %+v", table.Status)
	}
	if why := s.domain("late").Status.Summary.Why; !strings.Contains(why, "still served in mode Clique") {
		t.Errorf("the domain that waits says %q", why)
	}
	if mode := s.domain("old").Status.IMEX; mode != v1beta1.IMEXClique {
		t.Errorf("the domain that runs is served by %s now", mode)
	}
	s.must(s.Delete(t.Context(), s.domain("old")))
	s.node("n0", old.UID, false)
	for range 3 {
		s.reconcile(old.UID)
		s.reconcile(s.uid)
	}
	keep()
	s.reconcile(s.uid)
	next := cliqueDomain(clique, namespace)
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(next), &v1beta1.ComputeDomain{}); !apierrors.IsNotFound(err) {
		t.Fatalf("the clique's ComputeDomain of the old mode stays: %v", err)
	}
	next.UID = "next" // keep would make one, to which this client gives no UID
	s.must(s.Create(t.Context(), next))
	keep()
	s.reconcile(next.UID)
	s.reconcile(late.UID)
	if table := s.table(); table.Status.IMEX != v1beta1.IMEXHost || computedomain.ChannelOf(table, late.UID) == nil {
		t.Errorf("after it ended: %+v", table.Status)
	}
}

// A domain that waits for its first node loses nothing in another mode.
func TestModeOfADomainWithoutNodesFollowsTheController(t *testing.T) {
	running := v1beta1.ComputeDomainStatus{IMEX: v1beta1.IMEXClique, Nodes: []v1beta1.ComputeDomainNode{{Name: "n"}},
		Conditions: []metav1.Condition{{Type: v1beta1.ConditionReady}}}
	waiting := running
	waiting.Nodes = nil
	own := waiting
	own.IMEX = v1beta1.IMEXDomain
	for name, c := range map[string]struct {
		status           v1beta1.ComputeDomainStatus
		reported, decide v1beta1.IMEXMode
	}{
		"new":                     {v1beta1.ComputeDomainStatus{}, v1beta1.IMEXHost, v1beta1.IMEXHost},
		"running":                 {running, v1beta1.IMEXHost, v1beta1.IMEXClique},
		"waiting":                 {waiting, v1beta1.IMEXHost, v1beta1.IMEXHost},
		"waiting, told Domain":    {waiting, v1beta1.IMEXDomain, v1beta1.IMEXDomain},
		"running, told Domain":    {running, v1beta1.IMEXDomain, v1beta1.IMEXClique},
		"with daemons of its own": {own, v1beta1.IMEXHost, v1beta1.IMEXDomain},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pass{domain: &v1beta1.ComputeDomain{Status: c.status}}
			r := newCluster(t).reconciler
			r.settings.IMEX = c.reported
			if err := r.decideMode(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if p.domain.Status.IMEX != c.decide {
				t.Errorf("decided %s, want %s", p.domain.Status.IMEX, c.decide)
			}
		})
	}
}
