package passthrough_test

import (
	"path/filepath"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/passthrough"
	"gpufabric.io/drivers/gpu/passthrough/passthroughtest"
	"gpufabric.io/drivers/node/atomicfile"
)

// BenchmarkTakeAndGive passes a GPU and its audio function to a virtual machine and takes them back, on the simulated kernel, with every
// fsync of the journal. kernel-ms/op is the part that the simulated kernel takes for the writes to sysfs: the rest is the plugin's.
func BenchmarkTakeAndGive(b *testing.B) {
	kernel := passthroughtest.New(b)
	kernel.GPU("0000:3b:00", 17)
	journal, err := passthrough.OpenJournal(filepath.Join(b.TempDir(), "passthrough.json"), atomicfile.Writer{})
	if err != nil {
		b.Fatal(err)
	}
	var within time.Duration
	s := &passthrough.Switcher{Places: kernel.Places(), Journal: journal, Write: func(path, text string) error {
		begun := time.Now()
		defer func() { within += time.Since(begun) }()
		return kernel.Write(path, text)
	}}
	cards, problems, err := passthrough.Find(b.Context(), kernel.Places())
	if err != nil || len(problems) > 0 || len(cards) != 1 {
		b.Fatalf("found %d cards, problems %v, %v", len(cards), problems, err)
	}
	for b.Loop() {
		if err := s.Take(b.Context(), "claim", cards[0], nil); err != nil {
			b.Fatal(err)
		}
		if note, err := s.Give(b.Context(), cards[0].Name()); err != nil || note != "" {
			b.Fatal(note, err)
		}
	}
	b.ReportMetric(float64(within.Microseconds())/1000/float64(b.N), "kernel-ms/op")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/op")
}
