package account

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const gpu = "GPU-5c0d1e2f-0000-4a4a-8b8b-000000000001"

// put writes a number of 8 bytes into an account.
func put(t *testing.T, file *os.File, at int64, value uint64) {
	t.Helper()
	if _, err := file.WriteAt(binary.NativeEndian.AppendUint64(nil, value), at); err != nil {
		t.Fatal(err)
	}
}

// begun is an account with one GPU and so many slots.
func begun(t *testing.T, high uint32) *os.File {
	t.Helper()
	if err := Make(t.TempDir(), false); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	put(t, file, 0, magic)
	if _, err := file.WriteAt(binary.NativeEndian.AppendUint32(nil, high), highOffset); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte(gpu), devices+uuidOffset); err != nil {
		t.Fatal(err)
	}
	return file
}

// A process that lives has a lock on its slot's byte.
func TestReadCountsProcessesThatLive(t *testing.T) {
	file := begun(t, 5)
	for slot, bytes := range map[int64]uint64{0: 100, 3: 200, 4: ^uint64(0)} {
		put(t, file, slots+slot*slotSize+hasOffset, bytes)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: firstLock + 3, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file.Name())
	if err != nil || !got.Opened || got.Processes != 1 || !got.Lives(3) || got.Lives(0) {
		t.Fatalf("%+v (%v), want one process in slot 3", got, err)
	}
	if used, known := got.UsedOf(gpu); !known || used != 200 {
		t.Errorf("%d bytes (%t), want 200", used, known)
	}
	if _, known := got.UsedOf("GPU-other"); known {
		t.Error("it has another GPU")
	}
}

func TestReadReportsThatANewAccountIsUnopened(t *testing.T) {
	directory := t.TempDir()
	for range 2 { // an existing file stays
		if err := Make(directory, false); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(directory, Name)
	if got, err := Read(path); err != nil || got.Opened || got.Processes != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info, err)
	}
}

// A container that writes to the whole of its file system has no more than a page beyond its file.
func TestMakeBoundsTheFile(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "account")
	err := Make(directory, true)
	if errors.Is(err, unix.EPERM) {
		t.Skipf("skipped: mounting is for root alone: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
	file, err := os.OpenFile(filepath.Join(directory, Name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // the test's own
	_, err = file.WriteAt(make([]byte, 1<<20), size)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a MiB behind the file: %v", err)
	}
	t.Logf("attacker sees: %v", err)
}

// Containers write the file.
func TestReadRejectsForeignFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a link":              func(path string) error { return os.Symlink("/dev/zero", path) },
		"a pipe":              func(path string) error { return unix.Mkfifo(path, 0o666) },
		"a short file":        func(path string) error { return os.WriteFile(path, []byte("short"), 0o600) },
		"a directory":         func(path string) error { return os.Mkdir(path, 0o700) },
		"another layout":      func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600) },
		"one that is missing": func(string) error { return nil },
	} {
		path := filepath.Join(t.TempDir(), Name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	file := begun(t, ^uint32(0))
	put(t, file, devices+uuidOffset, 0x0a0a0a0a)
	if got, err := Read(file.Name()); err != nil || len(got.GPUs) != 1 || got.GPUs[0].UUID != "" {
		t.Errorf("%+v, %v", got, err)
	}
}
