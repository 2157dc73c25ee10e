package controller

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// membersWith makes so many ready members, and one member that is not ready for each reason.
func membersWith(ready int, why ...string) []member {
	var members []member
	for i := range ready {
		members = append(members, member{name: fmt.Sprintf("node-a%02d", i), clique: clique, cliqueKnown: true,
			address: fmt.Sprintf("10.0.0.%d", i+1), ready: true})
	}
	for i, reason := range why {
		members = append(members, member{name: fmt.Sprintf("node-b%02d", i), clique: clique, cliqueKnown: true,
			address: fmt.Sprintf("10.0.1.%d", i+1), why: reason})
	}
	return members
}

func TestReadyNamesMissingNodes(t *testing.T) {
	for name, c := range map[string]struct {
		numNodes        int
		members         []member
		status          metav1.ConditionStatus
		reason, message string
	}{
		"nobody has joined": {2, nil, "False", reasonJoining,
			"IMEX ready on 0 of 2 nodes; 2 more nodes must join: a node joins when a pod with a claim from template t starts on it"},
		"one has": {2, membersWith(1), "False", reasonJoining,
			"IMEX ready on 1 of 2 nodes; 1 more node must join: a node joins when a pod with a claim from template t starts on it"},
		"one daemon is not ready": {18, membersWith(17, "nvidia-imex is not READY"), "False", reasonStarting,
			"IMEX ready on 17 of 18 nodes; waiting for node-b00 (nvidia-imex is not READY)"},
		"many are not": {8, membersWith(1, "x", "x", "x", "x", "x", "x", "x"), "False", reasonStarting,
			"IMEX ready on 1 of 8 nodes; waiting for node-b00 (x), node-b01 (x), node-b02 (x), node-b03 (x), node-b04 (x) and 2 more"},
		"all are":             {2, membersWith(2), "True", reasonAllReady, "IMEX ready on 2 of 2 nodes"},
		"more than asked for": {1, membersWith(2), "True", reasonAllReady, "IMEX ready on 2 of 2 nodes"},
		"enough, and one more on its way": {2, membersWith(2, "x"), "True", reasonAllReady,
			"IMEX ready on 2 of 3 nodes; waiting for node-b00 (x)"},
		"no number is asked for": {0, nil, "True", reasonNoNodesRequired,
			"the domain asks for no number of nodes; no node has joined yet"},
		"no number is asked for, and two are on their way": {0, membersWith(1, "x"), "True", reasonNoNodesRequired,
			"the domain asks for no number of nodes; IMEX ready on 1 of 2 nodes; waiting for node-b00 (x)"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := v1beta1.ComputeDomainSpec{NumNodes: c.numNodes}
			spec.Channel.ResourceClaimTemplate.Name = "t"
			domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: spec}
			setStatus(domain, c.members, nil)
			got := domain.Status.Conditions[0]
			if got.Status != c.status || got.Reason != c.reason || got.Message != c.message || got.ObservedGeneration != 3 {
				t.Errorf("got %s, %s, %q (generation %d)\nwant %s, %s, %q", got.Status, got.Reason, got.Message, got.ObservedGeneration, c.status,
					c.reason, c.message)
			}
			if want := map[metav1.ConditionStatus]v1beta1.Readiness{"True": v1beta1.Ready,
				"False": v1beta1.NotReady}[c.status]; domain.Status.Status != want {
				t.Errorf("status %s, want %s", domain.Status.Status, want)
			}
		})
	}
}

func TestReadyIsFalseForAProblem(t *testing.T) {
	domain := &v1beta1.ComputeDomain{}
	setStatus(domain, membersWith(1), &metav1.Condition{Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonTaken,
		Message: "m"})
	if domain.Status.Status != v1beta1.NotReady || domain.Status.Conditions[0].Reason != reasonTaken {
		t.Errorf("%+v", domain.Status)
	}
}

func TestWritesWaitForAsLongAsTheyMay(t *testing.T) {
	const never, wanted = -1, 5
	statusOf := func(numNodes int, members []member) v1beta1.ComputeDomainStatus {
		domain := &v1beta1.ComputeDomain{Spec: v1beta1.ComputeDomainSpec{NumNodes: numNodes}}
		setStatus(domain, members, nil)
		domain.Status.Conditions[0].LastTransitionTime = metav1.Time{}
		return domain.Status
	}
	moved := membersWith(2)
	moved[1].address = "10.9.9.9"
	otherwise := membersWith(1, "x")
	otherwise[1].why = "y"
	for name, c := range map[string]struct {
		old, new v1beta1.ComputeDomainStatus
		want     time.Duration
	}{
		"the last node that is asked for came": {statusOf(wanted, membersWith(0, "x", "x", "x", "x")),
			statusOf(wanted, membersWith(0, "x", "x", "x", "x", "x")), atOnce},
		"one more than is asked for came": {statusOf(wanted, membersWith(0, "x", "x", "x", "x", "x")),
			statusOf(wanted, membersWith(0, "x", "x", "x", "x", "x", "x")), addressPause},
		"nothing new":                {statusOf(3, membersWith(1)), statusOf(3, membersWith(1)), never},
		"the first status":           {v1beta1.ComputeDomainStatus{Status: v1beta1.NotReady}, statusOf(3, nil), atOnce},
		"Ready":                      {statusOf(2, membersWith(1, "x")), statusOf(2, membersWith(2)), atOnce},
		"Ready no longer":            {statusOf(2, membersWith(2)), statusOf(2, membersWith(1)), atOnce},
		"a node came":                {statusOf(3, membersWith(1)), statusOf(3, membersWith(1, "x")), addressPause},
		"a node has another address": {statusOf(3, membersWith(2)), statusOf(3, moved), addressPause},
		"a node is ready, another is not": {statusOf(4, membersWith(0, "x", "x")), statusOf(4, readyFirst(membersWith(0, "x", "x"))),
			progressPause},
		"the last known node is ready":     {statusOf(4, membersWith(0, "x")), statusOf(4, readyFirst(membersWith(0, "x"))), addressPause},
		"a node of a Ready domain is lost": {statusOf(0, readyFirst(membersWith(0, "x"))), statusOf(0, membersWith(0, "x")), addressPause},
		"other words":                      {statusOf(2, membersWith(1, "x")), statusOf(2, otherwise), wordsPause},
	} {
		t.Run(name, func(t *testing.T) {
			got, changed := pauseBefore(wanted, c.old, c.new)
			if !changed {
				got = never
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func readyFirst(members []member) []member {
	members[0].ready, members[0].why = true, ""
	return members
}
