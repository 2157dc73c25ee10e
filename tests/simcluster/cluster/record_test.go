package cluster

import (
	"math"
	"strings"
	"testing"

	"gpufabric.io/tests/simcluster/simnode"
)

func TestReserveRefusesMoreNodesThanAddresses(t *testing.T) {
	dir := t.TempDir()
	if err := (Record{Nodes: 2}).write(dir); err != nil {
		t.Fatal(err)
	}
	for _, count := range []int{simnode.MostNodes - 1, math.MaxInt} {
		if _, err := reserve(dir, count); err == nil || !strings.Contains(err.Error(), "its addresses are for") {
			t.Errorf("%d more nodes: %v", count, err)
		}
	}
	if r, err := ReadRecord(dir); err != nil || r.Nodes != 2 {
		t.Errorf("the record has %d nodes (%v) after refusals; want 2", r.Nodes, err)
	}
}
