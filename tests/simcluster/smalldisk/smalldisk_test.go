package smalldisk

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// whyNone is why there are no full disks on this machine.
var whyNone error //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	status, ran, err := Enter()
	if !ran {
		whyNone = err
		status = m.Run()
	}
	os.Exit(status)
}

// fullDir is a directory with a file and a subdirectory on a full disk, and a function that frees space on it.
func fullDir(t *testing.T) (dir string, empty func() error) {
	t.Helper()
	if !Inside() {
		t.Skipf("no mounts without root here: %v", whyNone)
	}
	dir = filepath.Join(t.TempDir(), "state")
	if err := os.MkdirAll(filepath.Join(dir, "claims"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "claims", "before"), "kept")
	empty, err := Fill(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Release(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, empty
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// holds fails the test unless a directory has exactly these files, by path below it, with these contents.
func holds(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path) // below dir
		got[name] = string(content)
		return err
	})
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s holds %.300v, %v; want %v", dir, got, err, want)
	}
}

func TestDiskRejectsWritesWhenFull(t *testing.T) {
	dir, _ := fullDir(t)
	if content, err := os.ReadFile(filepath.Join(dir, "claims", "before")); err != nil || string(content) != "kept" {
		t.Errorf("the file that was there: %q, %v", content, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "claims", "new"), []byte("x"), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write gives %v; want that no space is left", err)
	}
}

func TestDiskKeepsFilesWhenItIsRemoved(t *testing.T) {
	dir, empty := fullDir(t)
	if err := empty(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "claims", "before")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "new"), "made meanwhile")
	if err := Release(dir); err != nil {
		t.Fatal(err)
	}
	if mounted(dir) {
		t.Error("the small disk is still there")
	}
	holds(t, dir, map[string]string{"new": "made meanwhile"})
}

func TestDiskLeavesNoBallastWhenItIsRemoved(t *testing.T) {
	dir, _ := fullDir(t)
	if err := Release(dir); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, map[string]string{"claims/before": "kept"})
	if err := Release(dir); err != nil {
		t.Errorf("taking away what is not there: %v", err)
	}
}

func TestDiskMayBeFilledAgain(t *testing.T) {
	dir, empty := fullDir(t)
	if err := empty(); err != nil {
		t.Fatal(err)
	}
	if _, err := Fill(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("x"), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write gives %v; want that no space is left", err)
	}
}

func TestDiskLeavesSocketsInPlace(t *testing.T) {
	if !Inside() {
		t.Skipf("no mounts without root here: %v", whyNone)
	}
	dir, err := os.MkdirTemp("", "small") // short, because of the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "plugin", "control.sock")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	empty, err := Fill(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := empty(); err != nil {
		t.Fatal(err)
	}
	if err := Release(dir); err != nil {
		t.Fatal(err)
	}
	connection, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("nobody answers at the socket that was there before: %v", err)
	}
	_ = connection.Close()
}

func TestDiskNamesAMissingDirectory(t *testing.T) {
	if !Inside() {
		t.Skipf("no mounts without root here: %v", whyNone)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := Fill(missing); err == nil {
		t.Error("a directory that is not there was filled")
	}
}
