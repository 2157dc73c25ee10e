package driver

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDeviceNodesAreNumberedByTheKernelsTable(t *testing.T) {
	table := filepath.Join(t.TempDir(), "devices")
	text := "Character devices:\n195 nvidia\n235 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  8 nvidia-uvm\n"
	if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	known := ReadNumbers(table)
	for path, want := range map[string][2]int64{
		"/dev/nvidia0": {195, 0}, "/dev/nvidia12": {195, 12}, "/dev/nvidiactl": {195, 255}, "/dev/nvidia-modeset": {195, 254},
		"/dev/nvidia-uvm": {510, 0}, "/dev/nvidia-uvm-tools": {510, 1}, "/dev/nvidia-caps/nvidia-cap30": {235, 30},
		"/dev/dri/card0": {0, 0}, "/dev/nvidia-nvswitch0": {0, 0}, "/dev/nvidia0x": {0, 0},
	} {
		major, minor, ok := known.Node(path)
		if major != want[0] || minor != want[1] || ok != (want[0] != 0) {
			t.Errorf("%s is numbered %d:%d (%t), want %d:%d", path, major, minor, ok, want[0], want[1])
		}
	}
	if got := ReadNumbers(filepath.Join(t.TempDir(), "none")); len(got) > 0 {
		t.Errorf("a table that is not there has %v", got)
	}
}
