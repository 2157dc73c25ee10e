package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// GB200 as numactl --hardware shows it, cut to two memory-only nodes: 0 and 1 are the sockets, 2 and 3 the memory of a GPU at each.
func TestPlaceUsesTheSocketOfANUMANodeWithoutCPUs(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, "devices/system/node", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := withCPUs(root, 2); got != 2 {
		t.Errorf("without a table of nodes: node %d, want the one that sysfs names", got)
	}
	put("online", "0-3")
	for node, cpus := range []string{"0-71", "72-143", "", ""} {
		put(fmt.Sprintf("node%d/cpulist", node), cpus)
	}
	for node, distance := range []string{"10 40 80 120", "40 10 120 80", "80 120 10 160", "120 80 160 10"} {
		put(fmt.Sprintf("node%d/distance", node), distance)
	}
	for node, want := range map[int]int{-1: -1, 0: 0, 1: 1, 2: 0, 3: 1} {
		if got := withCPUs(root, node); got != want {
			t.Errorf("sysfs says %d: got %d, want %d", node, got, want)
		}
	}
	put("node2/distance", "80 80 10 160")
	if got := withCPUs(root, 2); got != -1 {
		t.Errorf("as near to both sockets: got %d, want that nothing is said", got)
	}
}
