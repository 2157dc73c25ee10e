package filewatchtest

import (
	"fmt"
	"os"
	"testing"
)

// Removed returns the path of a directory that was removed and is still open. It stands for a mount of a directory that was removed on the
// node.
func Removed(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp(t.TempDir(), "removed")
	if err != nil {
		t.Fatal(err)
	}
	directory, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = directory.Close() })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", directory.Fd())
}
