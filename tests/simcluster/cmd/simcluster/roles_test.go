package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/short"
)

// TestRolesRunOnEveryNodeOfARack is the smallest run of `bench --roles`: every role on 18 nodes publishes what it has,
// comes back when all plugins end in one moment, leaves pods with claims alone meanwhile, and taints a GPU that falls off the
// bus. It does not judge any figure.
func TestRolesRunOnEveryNodeOfARack(t *testing.T) {
	short.Skip(t, "make test-sim without SHORT=1")
	if testing.Short() {
		t.Skip("starts a cluster of 18 nodes; -short asks for none")
	}
	dir, out := newDir(t), t.TempDir()
	cmd, said := simcluster(t.Context(), dir, "bench", "--roles", "--brief", "--nodes", "18", "--out", out)
	if err := cmd.Run(); err != nil {
		t.Fatalf("bench: %v: %s", err, said)
	}
	text, err := os.ReadFile(filepath.Join(out, "scale-roles.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| gpu.nvidia.com: slices a node | 1.00 |", "| gpu.nvidia.com: devices a node | 4.0 |",
		"| compute-domain.nvidia.com: slices a node | 1.00 |",
		"| pods with claims during the restarts | 18 |", "| of these touched | 0 |", "| GPUs that failed | 1 |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}
