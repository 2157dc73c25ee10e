// Package built gives tests the C libraries and the program, building them when they are out of date.
package built

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Dir is fakes/build with everything in it. The test is skipped, with the reason, where there is no C compiler.
func Dir(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("skipped: the C libraries cannot be built without gcc")
	}
	module := module(t)
	if err := os.MkdirAll(filepath.Join(module, "build"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Test packages run side by side; one of them builds.
	lock, err := os.OpenFile(filepath.Join(module, "build/.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }() // closing releases the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "make", "-C", module, "all").CombinedOutput(); err != nil {
		t.Fatalf("make -C %s: %v\n%s", module, err, out)
	}
	return filepath.Join(module, "build")
}

// module is the directory fakes/ of the checkout that the test runs in: below the nearest directory that holds go.work.
func module(t testing.TB) string {
	t.Helper()
	start, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return filepath.Join(dir, "fakes")
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no go.work at or above %s: run the test inside the checkout", start)
		}
	}
}
