package controller

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/imexd"
	"gpufabric.io/drivers/hardware/imex"
)

// racks are Ready domains of 18 nodes each, all READY since a time. Node n of rack r has the address "r/n".
type racks struct {
	client.Reader
	domains []v1beta1.ComputeDomain
}

func newRacks(count int, since time.Time) *racks {
	made := &racks{}
	ready := metav1.NewTime(since)
	for r := range count {
		domain := v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(r), UID: types.UID(fmt.Sprint(r))}}
		for n := range imexd.SlotsPerStep {
			domain.Status.Nodes = append(domain.Status.Nodes, v1beta1.ComputeDomainNode{
				Name: fmt.Sprintf("r%d-n%d", r, n), IPAddress: fmt.Sprintf("%d/%d", r, n), CliqueID: fmt.Sprintf("c.%d", r), Index: n,
				Status: v1beta1.Ready, State: v1beta1.NodeReady, Since: &ready,
			})
		}
		made.domains = append(made.domains, domain)
	}
	return made
}

// List implements client.Reader for ComputeDomains.
func (r *racks) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1beta1.ComputeDomainList).Items = r.domains
	return nil
}

// connected is the answer of a node all of whose rack are connected, but those that lost.
func connected(own int, lost ...int) imexd.Connections {
	known := imexd.Connections{Own: own, Rows: map[int]map[int]imex.ConnectionStatus{}}
	for n := range imexd.SlotsPerStep {
		row := map[int]imex.ConnectionStatus{}
		for _, apart := range lost {
			if n != apart {
				row[apart] = "RECOVERING"
			}
		}
		if !slices.Contains(lost, n) {
			known.Rows[n] = row
		}
	}
	return known
}

// nvidia-imex notices a lost peer after noticed, as the fake does, and a question takes asking.
const (
	noticed   = 2 * time.Second
	asking    = 100 * time.Millisecond
	manyRacks = 560
)

// The clock is the bubble's own: 560 racks are asked, each question takes a tenth of a second, and no processor's speed counts.
func TestSurveyReportsACutOfOneOf560RacksWithin10Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked, cutAt := 0, map[int]time.Time{} // by rack; node 3 is cut off
		s := survey{reader: newRacks(manyRacks, time.Now().Add(-time.Hour)), now: time.Now}
		s.ask = func(_ context.Context, address string) (imexd.Connections, error) {
			time.Sleep(asking)
			var rack, node int
			if _, err := fmt.Sscanf(address, "%d/%d", &rack, &node); err != nil {
				return imexd.Connections{}, err
			}
			mu.Lock()
			defer mu.Unlock()
			asked++
			if at, is := cutAt[rack]; is && time.Since(at) >= noticed {
				return connected(node, 3), nil
			}
			return connected(node), nil
		}
		reported := map[types.UID]time.Time{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, func(domain types.UID) {
				if len(s.of(domain)) > 0 && len(s.of(domain)["c."+string(domain)]) > 0 {
					mu.Lock()
					defer mu.Unlock()
					reported[domain] = time.Now()
				}
			})
		}()
		rest := 4 * roundPause
		time.Sleep(rest)
		synctest.Wait()
		mu.Lock()
		before := asked
		mu.Unlock()
		time.Sleep(rest)
		synctest.Wait()
		mu.Lock()
		if most := manyRacks * int(rest/roundPause+1); asked-before > most {
			t.Errorf("at rest %d questions in %s, want at most %d", asked-before, rest, most)
		}
		mu.Unlock()
		const cuts = 40
		for rack := range cuts { // one after the other, and each rack is asked at another time
			mu.Lock()
			cutAt[rack] = time.Now()
			mu.Unlock()
			time.Sleep(130 * time.Millisecond)
		}
		time.Sleep(15 * time.Second)
		cancel()
		<-done
		var longest time.Duration
		for rack := range cuts {
			at, known := reported[types.UID(fmt.Sprint(rack))]
			if !known {
				t.Errorf("rack %d: the cut is not reported", rack)
				continue
			}
			longest = max(longest, at.Sub(cutAt[rack]))
		}
		// Then the status is written, at most addressPause later.
		if longest+addressPause > 10*time.Second {
			t.Errorf("a cut is reported after up to %s", longest)
		}
		t.Logf("a cut is reported after up to %s", longest)
	})
}

// BenchmarkTheSurveyOf560Racks is what the survey of 560 racks (10,080 nodes) costs in roundPause: one look at the domains, and a question
// to each rack by HTTP. The daemons' side of the connection is in it.
func BenchmarkTheSurveyOf560Racks(b *testing.B) {
	answer := []byte(`{"own":0,"rows":{`)
	for n := range imexd.SlotsPerStep {
		answer = fmt.Appendf(answer, `"%d":{},`, n)
	}
	answer = append(answer[:len(answer)-1], "}}"...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	defer server.Close()
	a := newAsker()
	a.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, server.Listener.Addr().String())
	}}
	now := time.Now()
	domains := newRacks(manyRacks, now.Add(-time.Hour))
	for r := range domains.domains {
		for n := range domains.domains[r].Status.Nodes {
			domains.domains[r].Status.Nodes[n].IPAddress = "10.0.0.1"
		}
	}
	s := survey{reader: domains, ask: a.ask, now: func() time.Time { return now }}
	for b.Loop() {
		if err := s.look(b.Context()); err != nil {
			b.Fatal(err)
		}
		now = now.Add(roundPause)
		due := s.due()
		if len(due) != manyRacks {
			b.Fatalf("%d racks are due", len(due))
		}
		for _, g := range due {
			g.round = 0 // the only one that the server plays
			s.visit(b.Context(), g)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/manyRacks, "µs/rack")
}
