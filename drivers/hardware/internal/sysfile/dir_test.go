package sysfile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// write makes a directory with these files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func open(t *testing.T, path string) *sysfile.Dir {
	t.Helper()
	dir, err := sysfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.Close)
	return dir
}

func TestDirReadsFilesBelowIt(t *testing.T) {
	root := write(t, map[string]string{"device/ports/1/lid": "0x12\n", "device/ports/1/state": "?\n", "net/ens2f0/mtu": "9000\n"})
	dir := open(t, filepath.Join(root, "device"))
	port := dir.Below("ports/1")
	if lid, err := port.Hex("lid", 16); lid != 0x12 || err != nil {
		t.Errorf("got %d, %v", lid, err)
	}
	if mtu, err := dir.Below("../net").Below("ens2f0").Int("mtu"); mtu != 9000 || err != nil {
		t.Errorf("got %d, %v", mtu, err)
	}
	if names, err := dir.Names("ports"); !slices.Equal(names, []string{"1"}) || err != nil {
		t.Errorf("got %v, %v", names, err)
	}
	if names, err := port.Names("."); !slices.Equal(names, []string{"lid", "state"}) || err != nil {
		t.Errorf("got %v, %v", names, err)
	}
	for attribute, want := range map[string]error{"state": sysfile.ErrInvalid, "rate": fs.ErrNotExist} {
		_, err := port.Int(attribute)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), filepath.Join(root, "device/ports/1", attribute)) {
			t.Errorf("%s: got %v, want %v that names the file", attribute, err, want)
		}
	}
	if _, err := dir.Names("gids"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), filepath.Join(root, "device/gids")) {
		t.Errorf("got %v", err)
	}
}

// The kernel returns the entries of a large directory one buffer at a time, unsorted.
func TestDirListsALargeDirectoryInOrder(t *testing.T) {
	files := make(map[string]string)
	var want []string
	for i := range 1000 {
		name := fmt.Sprintf("0000:%02x:%02x.%d", i/256, i/8%32, i%8)
		files[name] = ""
		want = append(want, name)
	}
	got, err := sysfile.Names(write(t, files))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %d entries, %v; want %d", len(got), err, len(want))
	}
}
