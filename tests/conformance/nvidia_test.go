package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// nvidiaProgram gives a file of a package that tests/nvidia-programs unpacked, such as nvidia-smi of version 550. The test is
// skipped where the file is missing.
func nvidiaProgram(t *testing.T, pkg, version, pattern string) string {
	t.Helper()
	directory := os.Getenv("GPUFABRIC_NVIDIA_PROGRAMS")
	if directory == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("skipped: no cache directory in which %s could be: %v", pkg, err)
		}
		directory = filepath.Join(cache, "gpufabric/nvidia")
	}
	found, err := filepath.Glob(filepath.Join(directory, pkg+"_"+version+"*", pattern))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skipf("skipped: no %s of version %s in %s (make nvidia-programs fetches it from a Debian mirror)", pkg, version, directory)
	}
	return slices.Max(found)
}
