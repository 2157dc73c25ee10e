package edits

import (
	"os"
	"path/filepath"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

func TestDeviceNodesAreNumberedByTheKernelsTable(t *testing.T) {
	table := filepath.Join(t.TempDir(), "devices")
	if err := os.WriteFile(table, []byte("Character devices:\n195 nvidia\n235 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  8 nvidia-uvm\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]int64{
		"/dev/nvidia0": {195, 0}, "/dev/nvidia12": {195, 12}, "/dev/nvidiactl": {195, 255}, "/dev/nvidia-modeset": {195, 254},
		"/dev/nvidia-uvm": {510, 0}, "/dev/nvidia-uvm-tools": {510, 1}, "/dev/nvidia-caps/nvidia-cap30": {235, 30},
		"/dev/dri/card0": {0, 0}, "/dev/nvidia-nvswitch0": {0, 0}, "/dev/nvidia0x": {0, 0},
	} {
		n := &specs.DeviceNode{Path: path}
		number([]*specs.DeviceNode{n}, majors(table))
		if n.Major != want[0] || n.Minor != want[1] || (n.Type == "c") != (want[0] != 0) {
			t.Errorf("%s is numbered %s %d:%d, want %d:%d", path, n.Type, n.Major, n.Minor, want[0], want[1])
		}
	}
	if got := majors(filepath.Join(t.TempDir(), "none")); len(got) > 0 {
		t.Errorf("a table that is not there has %v", got)
	}
}
