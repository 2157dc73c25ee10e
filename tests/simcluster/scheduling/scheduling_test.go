package scheduling_test

import (
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/scheduling"
)

// TestRowsAreScheduledOnASmallCluster is the smallest run of the benchmark: it shows that each row's pods are bound, and
// does not judge any figure.
func TestRowsAreScheduledOnASmallCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane; -short asks for none")
	}
	results, err := scheduling.Run(t.Context(), scheduling.Options{
		Nodes: []int{3}, Fills: []float64{0, 0.5}, Profile: "h100-hgx", Pods: 5, Batch: 2, Limit: time.Minute, Dir: t.TempDir(), Progress: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := 2*len(scheduling.Rows()) - 1; len(results) != want {
		t.Errorf("%d measurements, want %d", len(results), want)
	}
	for _, r := range results {
		if r.Bound != r.Pods || r.Pods != 5 && r.Pods != 4 {
			t.Errorf("row %s, %.0f %% full: %d of %d pods bound", r.Row, 100*r.Fill, r.Bound, r.Pods)
		}
		if r.Batches < 3-(5-r.Pods) {
			t.Errorf("row %s, %.0f %% full: %d pods in %d batches of at most two", r.Row, 100*r.Fill, r.Pods, r.Batches)
		}
		if r.P50 <= 0 || r.P99 < r.P50 || r.Memory < 10 {
			t.Errorf("row %s: p50 %f, p99 %f, %f MiB", r.Row, r.P50, r.P99, r.Memory)
		}
	}
}
