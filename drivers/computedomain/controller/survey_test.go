package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/imexd"
	"gpufabric.io/drivers/hardware/imex"
)

// daemons answer for the IMEX daemons of a cluster.
type daemons struct {
	// all are the nodes by index.
	all []v1beta1.ComputeDomainNode
	// alone: each daemon reports only its own connections.
	alone  bool
	silent bool
	cut    map[pair]imex.ConnectionStatus

	mu    sync.Mutex
	asked []string
}

// between cuts two nodes off from each other.
func (d *daemons) between(a, b string, state imex.ConnectionStatus) {
	d.cut = map[pair]imex.ConnectionStatus{{a, b}: state, {b, a}: state}
}

func (d *daemons) ask(_ context.Context, address string) (imexd.Connections, error) {
	own := slices.IndexFunc(d.all, func(n v1beta1.ComputeDomainNode) bool { return n.IPAddress == address })
	d.mu.Lock()
	d.asked = append(d.asked, d.all[own].Name)
	d.mu.Unlock()
	if d.silent {
		return imexd.Connections{}, errors.New("connection refused")
	}
	known := imexd.Connections{Own: d.all[own].Index, Rows: map[int]map[int]imex.ConnectionStatus{}}
	for _, from := range d.all {
		if _, apart := d.cut[pair{d.all[own].Name, from.Name}]; apart || d.alone && from.Name != d.all[own].Name {
			continue
		}
		row := map[int]imex.ConnectionStatus{}
		for _, to := range d.all {
			if state, apart := d.cut[pair{from.Name, to.Name}]; apart {
				row[to.Index] = state
			}
		}
		known.Rows[from.Index] = row
	}
	return known, nil
}

// surveyed is a Ready domain of these nodes, whose daemons have been READY for a while, and a visit to them when they are due next. It
// reports whether they must be queried again soon.
func surveyed(t *testing.T, nodes ...string) (*cluster, *daemons, func() (unconfirmed bool)) {
	t.Helper()
	c, d := newReadyDomain(t, nodes...)
	answers := &daemons{all: c.domain("d").Status.Nodes}
	s := &c.reconciler.survey
	s.reader, s.ask = c.Client, answers.ask
	c.now = c.now.Add(time.Hour)
	c.said()
	return c, answers, func() bool {
		t.Helper()
		answers.asked = nil
		c.must(s.look(t.Context()))
		c.now = c.now.Add(s.pause(c.now.Add(time.Hour)))
		again, unconfirmed := false, false
		for _, g := range s.due() {
			again = s.visit(t.Context(), g) || again
			unconfirmed = unconfirmed || g.next.Sub(c.now) == confirmPause
		}
		if again {
			c.settle(d.UID)
		}
		return unconfirmed
	}
}

func TestDaemonsThatAreNotConnectedDegradeTheirDomainUntilTheyAre(t *testing.T) {
	for name, alone := range map[string]bool{"a daemon knows the connections of all": false, "a daemon knows its own alone": true} {
		t.Run(name, func(t *testing.T) {
			c, answers, round := surveyed(t, "a", "b", "c")
			answers.alone = alone
			for range 3 {
				if round(); len(answers.asked) != 1 {
					t.Errorf("where all are connected, %v are asked", answers.asked)
				}
			}
			answers.between("a", "c", "RECOVERING")
			found := false
			for range 3 { // each node has been queried then
				if found = round(); found {
					break
				}
			}
			if !found || c.condition("d", v1beta1.ConditionDegraded).Status == metav1.ConditionTrue {
				t.Error("a connection that has just been lost is reported, or not looked at again")
			}
			if round() {
				t.Error("it is still not confirmed")
			}
			degraded := c.condition("d", v1beta1.ConditionDegraded)
			if degraded.Status != metav1.ConditionTrue || degraded.Reason != reasonDisconnected ||
				!strings.Contains(degraded.Message, "a with c (RECOVERING)") || !strings.Contains(degraded.Message, "TCP port 50000") {
				t.Errorf("%+v", degraded)
			}
			if ready := c.condition("d", v1beta1.ConditionReady); ready.Status != metav1.ConditionTrue {
				t.Errorf("the daemons are READY: %+v", ready)
			}
			first := c.nodeState("d", "a").Disconnected
			if len(first) != 1 || first[0].Name != "c" || first[0].State != "RECOVERING" || len(c.nodeState("d", "b").Disconnected) != 0 {
				t.Errorf("node a: %+v, node b: %+v", first, c.nodeState("d", "b").Disconnected)
			}
			if said := c.said(); strings.Count(said, reasonDisconnected) != 1 {
				t.Errorf("Events: %s", said)
			}

			// A new controller uses the last one's status until its first query.
			c.reconciler.survey.groups = nil
			answers.silent = true
			round()
			c.settle(c.domain("d").UID)
			answers.silent = false
			if again := c.nodeState("d", "a").Disconnected; len(again) != 1 || !again[0].Since.Equal(&first[0].Since) {
				t.Errorf("after a start of the controller: %+v, want %+v", again, first)
			}

			answers.cut = nil
			c.now = c.now.Add(silentLimit)
			round()
			if degraded := c.condition("d", v1beta1.ConditionDegraded); degraded.Status != metav1.ConditionFalse {
				t.Errorf("connected again: %+v", degraded)
			}
		})
	}
}

func TestConnectionsThatComeAndGoMakeOneEventAMinute(t *testing.T) {
	c, answers, round := surveyed(t, "a", "b")
	events := 0
	begun := c.now
	for c.now.Sub(begun) < 3*time.Minute {
		answers.between("a", "b", "RECOVERING")
		round()
		round()
		answers.cut = nil
		round()
		events += strings.Count(c.said(), reasonDisconnected)
	}
	if events < 2 || events > 4 {
		t.Errorf("%d Events in %s", events, c.now.Sub(begun))
	}
}

func TestSurveyQueriesUnresponsiveDaemonsLessOften(t *testing.T) {
	c, answers, round := surveyed(t, "a", "b")
	answers.silent = true
	asked := 0
	for begun := c.now; c.now.Sub(begun) < 10*time.Minute; {
		round()
		asked += len(answers.asked)
	}
	if asked < 5 || asked > 20 {
		t.Errorf("in ten minutes %d questions were asked", asked)
	}
}

func TestSurveyQueriesOnlyDaemonsThatAreReadyForAWhile(t *testing.T) {
	c, answers, round := surveyed(t, "a", "b", "c")
	c.join(c.domain("d"), "b", "10.0.0.2", starting)
	c.settle(c.domain("d").UID)
	answers.between("a", "b", "RECOVERING")
	for range 4 {
		round()
	}
	if degraded := c.condition("d", v1beta1.ConditionDegraded); degraded.Reason != reasonInterrupted {
		t.Errorf("%+v", degraded)
	}
	if len(c.nodeState("d", "a").Disconnected) != 0 {
		t.Error("a connection with a daemon that is not READY counts as missing")
	}
}

func TestSurveyNamesTheCutOffNodeFirst(t *testing.T) {
	var nodes []*v1beta1.ComputeDomainNode
	cut := &v1beta1.ComputeDomainNode{Name: "n17"}
	for i := range 17 {
		name := fmt.Sprintf("n%d", i)
		cut.Disconnected = append(cut.Disconnected, v1beta1.ComputeDomainPeer{Name: name, State: "RECOVERING"})
		nodes = append(nodes, &v1beta1.ComputeDomainNode{Name: name,
			Disconnected: []v1beta1.ComputeDomainPeer{{Name: "n17", State: "RECOVERING"}}})
	}
	words := disconnectedWords(append(nodes, cut))
	if !strings.Contains(words, ": n17 with n0 (RECOVERING), n1 (RECOVERING), n2 (RECOVERING), 14 more; n0 with n17 (RECOVERING);") ||
		!strings.Contains(words, "and 13 more nodes") {
		t.Error(words)
	}
	versions := disconnectedWords([]*v1beta1.ComputeDomainNode{{Name: "a",
		Disconnected: []v1beta1.ComputeDomainPeer{{Name: "b", State: "VERSION_MISMATCH"}}}})
	if !strings.Contains(versions, "one version") {
		t.Error(versions)
	}
}

func TestSurveyRejectsAnswersOfOtherServers(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"without the path":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"that leads elsewhere":   func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
		"that is no connections": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"rows":[1]}`)) },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(handler)
			defer server.Close()
			a := newAsker()
			a.client.Transport = rewired{server.Listener.Addr().String()}
			if known, err := a.ask(t.Context(), "10.0.0.1"); err == nil {
				t.Errorf("%+v", known)
			}
		})
	}
}

// rewired sends every request to one address.
type rewired struct{ address string }

func (r rewired) RoundTrip(request *http.Request) (*http.Response, error) {
	request.URL.Host = r.address
	return http.DefaultTransport.RoundTrip(request)
}
