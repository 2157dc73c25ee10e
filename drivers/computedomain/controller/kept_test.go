package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// prune leaves of a status what the CRD of NVIDIA's DRA driver 0.5 has (api/nvidia.com/resource/v1beta1/computedomain.go there).
func prune(status *v1beta1.ComputeDomainStatus) {
	kept := v1beta1.ComputeDomainStatus{Status: status.Status}
	for _, n := range status.Nodes {
		kept.Nodes = append(kept.Nodes, v1beta1.ComputeDomainNode{Name: n.Name, IPAddress: n.IPAddress, CliqueID: n.CliqueID, Index: n.Index,
			Status: n.Status})
	}
	*status = kept
}

// foreignSchema applies another owner's CRD, or this project's again. What was written before is dropped with the first write after it.
func (s *sharedClique) foreignSchema(foreign bool) {
	s.t.Helper()
	s.foreign = foreign
	var all v1beta1.ComputeDomainList
	s.must(s.List(s.t.Context(), &all))
	for i := range all.Items {
		if foreign {
			prune(&all.Items[i].Status)
			s.must(s.Status().Update(s.t.Context(), &all.Items[i]))
		}
	}
}

// restart starts both controllers again, without what they remember.
func (s *sharedClique) restart() {
	fresh := func(old *Reconciler) *Reconciler {
		r := newReconciler(old.client, old.live, s.events, old.settings)
		r.now = old.now
		return r
	}
	s.reconciler, s.other = fresh(s.reconciler), fresh(s.other)
}

// recalled is the clique's table as a node plugin reads it.
func (s *sharedClique) recalled() *v1beta1.ComputeDomain {
	table := s.table()
	computedomain.Recall(table, namespace)
	return table
}

// A GitOps sync of NVIDIA's GPU operator applies its CRD of ComputeDomain, whose schema has no channels.
func TestCliqueKeepsItsChannelsWhenAnotherOwnersCRDDropsThem(t *testing.T) {
	s := newSharedClique(t, 1)
	settle := func(domains ...types.UID) {
		for range 12 {
			s.reconcile(s.uid)
			for _, uid := range domains {
				s.reconcile(uid)
			}
		}
	}
	join := func(name, node string) types.UID {
		d := newDomain(name, 1)
		s.must(s.Create(t.Context(), d))
		s.reconcile(d.UID)
		s.node(node, d.UID, true)
		settle(d.UID)
		return d.UID
	}
	numbers := func(when string, want map[types.UID]int) {
		t.Helper()
		got := map[types.UID]int{}
		for _, channel := range s.recalled().Status.Channels {
			got[types.UID(channel.DomainID)] = channel.Number
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s the channels are %v, want %v", when, got, want)
		}
	}
	a, b := join("a", "n0"), join("b", "n1")
	s.foreignSchema(true)
	s.restart()
	settle(a, b)
	if lost := s.table().Status; lost.IMEX != "" || len(lost.Channels) > 0 {
		t.Fatalf("the other schema keeps %+v", lost)
	}
	numbers("after the other CRD and a restart", map[types.UID]int{a: 0, b: 1})
	c := join("c", "n2")
	numbers("after another domain", map[types.UID]int{a: 0, b: 1, c: 2})

	// The mode of a domain that holds a channel stays, and the daemons of a clique whose table is not shown.
	s.tell(v1beta1.IMEXDomain)
	s.restart()
	settle(a, b, c)
	for _, name := range []string{"a", "b", "c"} {
		d := s.domain(name)
		if computedomain.Recall(d, namespace); d.Status.IMEX != v1beta1.IMEXClique {
			t.Errorf("domain %s is served in mode %q now", name, d.Status.IMEX)
		}
	}
	keeper := &cliques{client: s.reconciler.client, settings: s.reconciler.settings}
	if _, err := keeper.Reconcile(t.Context(), clique); err != nil || s.table().DeletionTimestamp != nil {
		t.Errorf("a clique whose channels are held is removed (error %v)", err)
	}
	s.tell(v1beta1.IMEXClique)

	if said := s.said(); strings.Count(said, reasonDropped) == 0 {
		t.Errorf("no Event reports the other schema: %s", said)
	}
	settle(a, b, c)
	s.writes = nil
	now := s.now
	for range 6 { // nothing changes, and no time goes by
		s.reconcile(a)
		s.now = now
	}
	if len(s.writes) > 2 { // one of each controller
		t.Errorf("a settled domain is written to without end: %v", s.writes)
	}
	if said := s.said(); strings.Contains(said, reasonDropped) || strings.Contains(said, "Interrupted") {
		t.Errorf("Events are repeated: %s", said)
	}

	gone := s.domain("b")
	s.must(s.Delete(t.Context(), gone))
	s.node("n1", b, false)
	settle(b)
	numbers("after a domain has ended", map[types.UID]int{a: 0, c: 2})

	s.foreignSchema(false)
	if result, err := s.reconciler.Reconcile(t.Context(), a); err != nil || result.RequeueAfter == 0 || result.RequeueAfter > lackingPause {
		t.Errorf("a status that lacks fields is tried again after %s (error %v)", result.RequeueAfter, err)
	}
	s.now = s.now.Add(lackingPause)
	settle(a, c)
	table := s.table().Status
	if len(table.Channels) != 2 || table.IMEX != v1beta1.IMEXClique || s.domain("a").Status.IMEX != v1beta1.IMEXClique ||
		len(s.domain("c").Status.Conditions) == 0 {
		t.Errorf("with this project's CRD again, the clique has %+v, domain a %+v", table, s.domain("a").Status)
	}
}

// A domain that was made with daemons of its own keeps them when its status has lost the mode and the controller has another.
func TestDomainKeepsItsDaemonsWhenAnotherOwnersCRDDropsItsMode(t *testing.T) {
	s := newSharedClique(t, 1)
	s.tell(v1beta1.IMEXDomain)
	d := newDomain("d", 1)
	s.must(s.Create(t.Context(), d))
	for range 3 {
		s.reconcile(d.UID)
	}
	s.foreignSchema(true)
	s.tell(v1beta1.IMEXClique)
	s.restart()
	for range 3 {
		s.reconcile(d.UID)
	}
	s.foreignSchema(false)
	for range 12 {
		s.reconcile(d.UID)
	}
	if mode := s.domain("d").Status.IMEX; mode != v1beta1.IMEXDomain {
		t.Errorf("the domain is served in mode %q", mode)
	}
}

func TestRecallTrustsOnlyATableInTheControllersNamespace(t *testing.T) {
	forged := newDomain("forged", 1)
	forged.Labels = map[string]string{v1beta1.LabelClique: clique}
	forged.Name = computedomain.CliqueName(clique)
	forged.Annotations = map[string]string{computedomain.AnnotationKept: `{"imex":"Clique","channels":[{"number":1,"domainID":"x"}]}`}
	computedomain.Recall(forged, namespace)
	if len(forged.Status.Channels) > 0 {
		t.Errorf("a tenant's table counts: %+v", forged.Status)
	}
	for _, text := range []string{"", "{", `{"imex":"Mine"}`, `{"imex":7}`, strings.Repeat("x", 300_000)} {
		ours := cliqueDomain(clique, namespace)
		ours.Annotations = map[string]string{computedomain.AnnotationKept: text}
		if computedomain.Recall(ours, namespace); ours.Status.IMEX != "" {
			t.Errorf("%.20q is taken for %+v", text, ours.Status)
		}
	}
}

func TestKeepReportsATableThatIsTooLongForAnAnnotation(t *testing.T) {
	full := cliqueDomain(clique, namespace)
	full.Annotations = map[string]string{computedomain.AnnotationKept: "before"}
	full.Status.IMEX = v1beta1.IMEXClique
	for i := range 2048 {
		full.Status.Channels = append(full.Status.Channels, v1beta1.ComputeDomainChannel{Number: i, DomainID: fmt.Sprintf("%036d", i),
			Namespace: strings.Repeat("n", 63), Name: strings.Repeat("d", 200)})
	}
	changed, err := computedomain.Keep(full, namespace)
	if changed || err == nil || full.Annotations[computedomain.AnnotationKept] != "before" {
		t.Errorf("changed %v, error %v", changed, err)
	}
	full.Status.Channels = slices.Clip(full.Status.Channels[:400])
	if changed, err := computedomain.Keep(full, namespace); !changed || err != nil {
		t.Errorf("a table of 400 channels: changed %v, error %v", changed, err)
	}
}
