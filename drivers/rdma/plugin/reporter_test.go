package plugin

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

// reportsTaken counts the reports that were written, and fails the first of them.
type reportsTaken struct {
	Pools
	written []string
	failed  bool
}

func (l *reportsTaken) Report(_ context.Context, pool string, entry *v1alpha1.RDMAPoolNode) error {
	if !l.failed {
		l.failed = true
		return context.DeadlineExceeded
	}
	what := "removed"
	if entry != nil {
		what = entry.Message
	}
	l.written = append(l.written, pool+": "+what)
	return nil
}

func TestReporterRetriesOnlyRefusedReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &reportsTaken{}
		r := &reporter{pools: l, node: "node-a", ports: health.New(t.TempDir(), clock.RealClock{}), offers: offer.NewOffers(offer.Node{}),
			interfaces: exclusive.NewSetter(exclusive.Setup{})}
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		r.Set(picture{objects: []pool.Object{{Name: "early"}}}) // before the first discovery nothing is known
		now := picture{devices: &inventory.Inventory{}, objects: []pool.Object{{Name: "a", Mistake: context.Canceled}},
			selection: &pool.Selection{}}
		r.Set(now)
		time.Sleep(reportRetry + time.Second)
		r.Set(now) // as it was
		synctest.Wait()
		now.objects = nil
		r.Set(now)
		synctest.Wait()
		cancel()
		running.Wait()
		if got := strings.Join(l.written, "; "); got != "a: context canceled; a: removed" {
			t.Errorf("reports %s", got)
		}
	})
}

func TestReporterReportsWhenPoolOrNodeIsMadeAgainUnderItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &reportsTaken{failed: true}
		r := &reporter{pools: l, node: "node-a", ports: health.New(t.TempDir(), clock.RealClock{}), offers: offer.NewOffers(offer.Node{}),
			interfaces: exclusive.NewSetter(exclusive.Setup{})}
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		for _, one := range []pool.Object{{UID: "1", Node: "n"}, {UID: "1", Node: "n"}, {UID: "2", Node: "n"}, {UID: "2", Node: "again"}} {
			one.Name, one.Generation, one.Mistake = "a", 1, context.Canceled
			r.Set(picture{devices: &inventory.Inventory{}, objects: []pool.Object{one}, selection: &pool.Selection{}})
			synctest.Wait()
		}
		cancel()
		running.Wait()
		if len(l.written) != 3 {
			t.Errorf("reports %q, want one for each pool and each Node", l.written)
		}
	})
}
