package fabricpartition_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/fabricpartition"
	"gpufabric.io/drivers/hardware/nvfm"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
	fake "gpufabric.io/fakes/nvfm"
)

// timed adds up the time that calls of the fabric manager take, with the start of the process that makes each.
type timed struct {
	fabricpartition.Manager
	within time.Duration
}

func (m *timed) add(begun time.Time) { m.within += time.Since(begun) }

func (m *timed) Partitions(ctx context.Context) ([]nvfm.Partition, error) {
	defer m.add(time.Now())
	return m.Manager.Partitions(ctx)
}

func (m *timed) Activate(ctx context.Context, id int) error {
	defer m.add(time.Now())
	return m.Manager.Activate(ctx, id)
}

func (m *timed) Deactivate(ctx context.Context, id int) error {
	defer m.add(time.Now())
	return m.Manager.Deactivate(ctx, id)
}

// BenchmarkActivateAndDeactivate gives a claim its partition and takes it back, with every fsync of the journal. manager-ms/op is the part
// that calls of the fabric manager take: the rest is the plugin's.
func BenchmarkActivateAndDeactivate(b *testing.B) {
	board := fake.New(b, fake.HGX())
	library := fake.Library(b)
	journal, err := fabricpartition.OpenJournal(filepath.Join(b.TempDir(), "partitions.json"), atomicfile.Writer{})
	if err != nil {
		b.Fatal(err)
	}
	manager := &timed{Manager: &nvfm.Client{Address: board.Address, Open: func() (string, error) { return library, nil }}}
	k := &fabricpartition.Keeper{Journal: journal, Manager: manager, Modules: func(context.Context) (map[pci.Address]int, error) {
		found := map[pci.Address]int{}
		for m := 1; m <= 8; m++ {
			found[gpu(m)] = m
		}
		return found, nil
	}}
	if lost, err := k.Refresh(b.Context(), all()); err != nil || len(lost) > 0 {
		b.Fatalf("refresh: lost %v, %v", lost, err)
	}
	manager.within = 0
	for b.Loop() {
		if err := k.Activate(b.Context(), "claim", pair); err != nil {
			b.Fatal(err)
		}
		if err := k.Deactivate(b.Context(), "claim"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(manager.within.Microseconds())/1000/float64(b.N), "manager-ms/op")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/op")
}
