package plugin

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/session"
	"gpufabric.io/drivers/node/filewatch"
)

var sessionTime = time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC)

// importing is a node with a pod that has a channel of the domain's daemon, whose session is open.
func importing(t *testing.T) (*testNode, *casualties) {
	t.Helper()
	n := newTestNode(t, inFabric)
	n.daemonIs(true)
	if result := n.prepare(t, daemonClaim(system)); result.Err != nil {
		t.Fatal(result.Err)
	}
	n.session(t, session.Begin(n.domainDir(domainUID), sessionTime))
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "rank-0", UID: "pod-0"}}
	if _, err := n.client.ResourceV1().ResourceClaims("user").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatal(result.Err)
	}
	n.said()
	return n, &casualties{kind: n.preparer, client: n.client, recorder: n.events, records: n.plugin.Records}
}

func (n *testNode) session(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// said are the Events so far.
func (n *testNode) said() []string {
	var said []string
	for len(n.events.Events) > 0 {
		said = append(said, <-n.events.Events)
	}
	return said
}

func TestCasualtiesReportAnEndedSessionOnce(t *testing.T) {
	n, c := importing(t)
	dir := n.domainDir(domainUID)
	if reported, err := c.reportEnds(t.Context(), domainUID); reported || err != nil || len(n.said()) != 0 {
		t.Fatalf("told %t of a session that is open, %v", reported, err)
	}
	n.session(t, session.Finish(dir, sessionTime.Add(time.Hour), "nvidia-imex: signal: killed"))
	n.session(t, session.Begin(dir, sessionTime.Add(time.Hour)))
	if reported, err := c.reportEnds(t.Context(), domainUID); !reported || err != nil {
		t.Fatalf("told %t, %v", reported, err)
	}
	said := n.said()
	if len(said) != 2 {
		t.Fatalf("want one Event of the pod and one of the domain, got %q", said)
	}
	for _, event := range said {
		for _, want := range []string{"Warning IMEXSessionEnded", nodeName, "2026-11-23T08:00:00Z", "signal: killed"} {
			if !strings.Contains(event, want) {
				t.Errorf("%q does not say %q", event, want)
			}
		}
	}
	if !strings.Contains(said[1], "rank-0") {
		t.Errorf("the domain's Event names no pod: %q", said[1])
	}
	// A plugin that restarts does not report the same end again.
	again := &casualties{kind: n.preparer, client: n.client, recorder: n.events, records: n.plugin.Records}
	if reported, err := again.reportEnds(t.Context(), domainUID); reported || err != nil || len(n.said()) != 0 {
		t.Errorf("told again: %t, %v", reported, err)
	}
}

func TestCasualtiesSkipPodsThatCameAfterTheEnd(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.daemonIs(true)
	if result := n.prepare(t, daemonClaim(system)); result.Err != nil {
		t.Fatal(result.Err)
	}
	dir := n.domainDir(domainUID)
	n.session(t, session.Begin(dir, sessionTime))
	n.session(t, session.Finish(dir, sessionTime, "it ended before the pod came"))
	n.session(t, session.Begin(dir, sessionTime))
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "rank-0", UID: "pod-0"}}
	if _, err := n.client.ResourceV1().ResourceClaims("user").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatal(result.Err)
	}
	n.said()
	c := &casualties{kind: n.preparer, client: n.client, recorder: n.events, records: n.plugin.Records}
	if reported, err := c.reportEnds(t.Context(), domainUID); reported || err != nil || len(n.said()) != 0 {
		t.Errorf("told %t, %v", reported, err)
	}
}

func TestCasualtiesRetryUntilTheAPIServerAnswers(t *testing.T) {
	n, c := importing(t)
	n.session(t, session.Finish(n.domainDir(domainUID), sessionTime, "it was killed"))
	away := true
	n.client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away, nil, errors.New("no API server answers")
	})
	if _, err := c.reportEnds(t.Context(), domainUID); err == nil || len(n.said()) != 0 {
		t.Fatalf("told, or the error is lost: %v", err)
	}
	away = false
	if reported, err := c.reportEnds(t.Context(), domainUID); !reported || err != nil || len(n.said()) != 2 {
		t.Errorf("told %t, %v", reported, err)
	}
}

func TestCasualtiesDetectASessionsEndAtOnce(t *testing.T) {
	n, c := importing(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.follow(ctx, &filewatch.Watcher{}) }()
	defer func() { cancel(); <-ended }()
	n.session(t, session.Finish(n.domainDir(domainUID), sessionTime, "it was killed"))
	for range 2 {
		select {
		case event := <-n.events.Events:
			if !strings.Contains(event, reasonSessionEnded) {
				t.Errorf("%q", event)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("nobody is told that the session ended")
		}
	}
}

// In clique mode the directory belongs to the clique's daemon, whose pod may be replaced while jobs run.
func TestCliqueDaemonFilesOutliveTheClaimWhileJobsRun(t *testing.T) {
	n := newTestNode(t, inFabric)
	const table = "5b3a7c11-0000-4f6e-8c39-5b2d6b0f8a11"
	n.clique.object.Set(&v1beta1.ComputeDomain{
		ObjectMeta: metav1.ObjectMeta{UID: table, Labels: map[string]string{v1beta1.LabelClique: cliqueID}},
		Status:     v1beta1.ComputeDomainStatus{Channels: []v1beta1.ComputeDomainChannel{{Number: 3, DomainID: string(domainUID)}}},
	})
	n.domains.(finder)["user"].Status.IMEX = v1beta1.IMEXClique
	n.daemons.pods.Set([]*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "imex-daemon", Labels: map[string]string{v1beta1.LabelComputeDomain: table}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}})
	daemon := claimFor(system, computedomain.DaemonDevice, v1beta1.ComputeDomainDaemonConfig{
		TypeMeta: meta("ComputeDomainDaemonConfig"), DomainID: table,
	})
	daemon.Annotations = map[string]string{computedomain.AnnotationName: "clique", computedomain.AnnotationNamespace: system}
	channel := channelClaim("user", v1beta1.AllocationModeSingle)
	for _, claim := range []*resourceapi.ResourceClaim{daemon, channel} {
		if result := n.prepare(t, claim); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	n.unprepare(t, daemon)
	if _, err := os.Stat(n.domainDir(table)); err != nil {
		t.Errorf("the daemon's pod went, and with it what the next one has to know of memory that a job has mapped: %v", err)
	}
	n.unprepare(t, channel)
	if _, err := os.Stat(n.domainDir(table)); !os.IsNotExist(err) {
		t.Errorf("the directory stays though no claim is for it: %v", err)
	}
}
