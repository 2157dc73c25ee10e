package tmpfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mounts lets the test mount for real, in a mount namespace with shared propagation, and unmounts them.
func mounts(t *testing.T, directories ...string) {
	t.Helper()
	if err := Make(directories[0], 0o700, Bounds{Bytes: 1 << 12, Files: 1}); errors.Is(err, unix.EPERM) {
		t.Skipf("mounting is for root alone: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := Remove(directories[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, directory := range directories {
			if err := Remove(directory); err != nil {
				t.Error(err)
			}
		}
	})
}

// fill writes until the directory is full, and returns how much it wrote.
func fill(t *testing.T, directory string) int {
	t.Helper()
	file, err := os.Create(filepath.Join(directory, "junk"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	written := 0
	for {
		n, err := file.Write(make([]byte, 1<<14))
		written += n
		if errors.Is(err, syscall.ENOSPC) {
			t.Logf("attacker sees: %v", err)
			return written
		}
		if err != nil || written > 1<<26 {
			t.Fatalf("%d bytes went in, %v", written, err)
		}
	}
}

func TestMountLeavesOtherDirectoriesWritableWhenFull(t *testing.T) {
	root := t.TempDir()
	mine, theirs := filepath.Join(root, "mine"), filepath.Join(root, "theirs")
	mounts(t, mine, theirs)
	for _, directory := range []string{mine, theirs} {
		if err := Make(directory, os.ModeSticky|0o777, Bounds{Bytes: 1 << 20, Files: 16}); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(directory); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
	if written := fill(t, mine); written > 1<<20 {
		t.Errorf("%d bytes went into a directory of 1 MiB", written)
	}
	files := 0
	for ; files < 100; files++ {
		if err := os.Mkdir(filepath.Join(mine, fmt.Sprint(files)), 0o700); err != nil {
			t.Logf("attacker sees: %v", err)
			break
		}
	}
	if files > 16 {
		t.Errorf("%d files went into a directory for 16", files)
	}
	if err := os.WriteFile(filepath.Join(theirs, "cudevshr.cache"), make([]byte, 1<<19), 0o600); err != nil {
		t.Errorf("another tenant's directory is full, too: %v", err)
	}
	// The content survives a restart of the process that made it.
	if err := Make(theirs, 0o777, Bounds{Bytes: 1 << 20, Files: 16}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(theirs, "cudevshr.cache")); err != nil {
		t.Error(err)
	}
	if err := Remove(mine); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(mine); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that was removed: %v", err)
	}
}

func TestMountDoesNotFollowLinks(t *testing.T) {
	root := t.TempDir()
	kept := filepath.Join(root, "kept")
	if err := os.MkdirAll(filepath.Join(kept, "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink(kept, link); err != nil {
		t.Fatal(err)
	}
	if err := Make(link, 0o777, Bounds{Bytes: 1 << 12, Files: 1}); err == nil {
		t.Error("mounted on what a link leads to")
	}
	if err := Remove(link); err == nil {
		t.Error("a link is taken for a directory of ours")
	}
	if _, err := os.Stat(filepath.Join(kept, "inside")); err != nil {
		t.Errorf("what the link leads to is gone: %v", err)
	}
}

func TestRemoveSucceedsWhenTheDirectoryIsMissing(t *testing.T) {
	if err := Remove(filepath.Join(t.TempDir(), "nothing")); err != nil {
		t.Error(err)
	}
}
