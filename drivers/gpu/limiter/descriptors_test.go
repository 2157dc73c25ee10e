package limiter

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A server may be out of descriptors for a moment when it first allocates. It must not be without limits from then on.
func TestLibraryReadsLimitsAgainWhenDescriptorsWereMissing(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("skipped: the library cannot be built without gcc")
	}
	directory := t.TempDir()
	program, limits := filepath.Join(directory, "program"), filepath.Join(directory, "limits")
	//nolint:gosec // as the node's plugin writes it
	if err := os.WriteFile(limits, []byte("gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 4096 0\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", "-std=gnu11", "-Ilibrary", `-DLIMITS_FILE="`+limits+`"`, "-o", program,
		"testdata/descriptors.c", "library/devices.c", "library/limits.c", "library/process.c", "-pthread").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if want := "0 GPUs, closed 1, limit -1\n1 GPUs, closed 0, limit 0\n"; err != nil || string(out) != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
}
