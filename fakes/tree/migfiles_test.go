package tree_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// A client may read a capability while others bring the files up to date.
func TestSyncMIGReplacesFilesAndKeepsThoseThatAreRight(t *testing.T) {
	root := t.TempDir()
	body := &state.Body{GPUs: []*state.GPU{{}}}
	body.GPUs[0].Instances[0].Used, body.GPUs[0].Instances[0].ID = 1, 3
	path := filepath.Join(root, "proc/driver/nvidia/capabilities/gpu0/mig/gi3/access")
	const old = "DeviceFileMinor: 9999\n"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	if err := tree.SyncMIG(root, body); err != nil {
		t.Fatal(err)
	}
	if read, err := io.ReadAll(reader); err != nil || string(read) != old {
		t.Errorf("a client that had opened the file reads %q (%v), want %q", read, err, old)
	}
	written, err := os.ReadFile(path)
	want := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", tree.CapabilityMinor(0, 3, -1))
	if err != nil || string(written) != want {
		t.Errorf("%s has %q (%v), want %q", path, written, err, want)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.SyncMIG(root, body); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("a file that was right is another (%v)", err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/capabilities/.access-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
