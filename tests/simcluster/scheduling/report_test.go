package scheduling_test

import (
	"os"
	"path/filepath"
	"testing"

	"gpufabric.io/tests/simcluster/scheduling"
)

func TestPlotDrawsNothingWithoutEmptyCluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plot.svg")
	if err := scheduling.Plot(path, []scheduling.Result{{Row: "whole", Nodes: 64, Fill: 0.95, Bound: 10, Seconds: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("a plot without points exists (%v)", err)
	}
}
