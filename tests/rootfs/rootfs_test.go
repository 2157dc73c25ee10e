package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeMmdebstrap puts a program of that name on the PATH that writes its last argument or fails.
func fakeMmdebstrap(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mmdebstrap"), []byte("#!/bin/bash\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestTreeIsMadeOnce(t *testing.T) {
	cache, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	fakeMmdebstrap(t, "echo called >>"+calls+"\necho tree >\"${@: -1}\"\n")
	for range 2 {
		path, err := Base().Tar(t.Context(), cache)
		if err != nil {
			t.Fatal(err)
		}
		if content, _ := os.ReadFile(path); string(content) != "tree\n" {
			t.Errorf("content %q", content)
		}
	}
	if content, _ := os.ReadFile(calls); strings.Count(string(content), "called") != 1 {
		t.Errorf("mmdebstrap was called %d times, want once", strings.Count(string(content), "called"))
	}
}

func TestTreeIsNotKeptAfterAFailure(t *testing.T) {
	cache := t.TempDir()
	fakeMmdebstrap(t, "echo half >\"${@: -1}\"\necho 'E: no such package' >&2\nexit 1\n")
	_, err := Base().Tar(t.Context(), cache)
	if err == nil || !strings.Contains(err.Error(), "no such package") {
		t.Errorf("error %v, want what mmdebstrap said", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) != 0 {
		t.Errorf("left in the cache: %v", left)
	}
}

func TestTreeNamesTheRemedyWithoutMmdebstrap(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Node().Tar(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "apt-get install mmdebstrap") {
		t.Errorf("error %v", err)
	}
}

func TestRecipesThatDifferHaveDifferentKeys(t *testing.T) {
	if Node().Key() == Base().Key() {
		t.Error("two recipes share a key")
	}
	changed := Base()
	changed.Packages = append(changed.Packages, "less")
	if changed.Key() == Base().Key() {
		t.Error("another package does not change the key")
	}
}
