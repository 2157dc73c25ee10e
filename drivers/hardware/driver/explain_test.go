package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExplainDescribesDriverProblem(t *testing.T) {
	put := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const loaded = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.261.03  Release Build\n"
	for name, c := range map[string]struct {
		make func(t *testing.T, root, proc string)
		want []string
	}{
		"nothing at all": {func(*testing.T, string, string) {}, []string{"no driver's files", "is not there"}},
		"a dangling link": {func(t *testing.T, root, _ string) {
			if err := os.Symlink("/run/nvidia/gone", root); err != nil {
				t.Fatal(err)
			}
		}, []string{"is a link to /run/nvidia/gone, which is not there"}},
		"a file": {func(t *testing.T, root, _ string) { put(t, root, "") }, []string{"is not a directory"}},
		"an empty directory": {func(t *testing.T, root, _ string) { put(t, filepath.Join(root, "usr/bin/nvidia-smi"), "") },
			[]string{"has no libnvidia-ml.so.1 in usr/lib64"}},
		"files that are gone": {func(t *testing.T, _, proc string) { put(t, filepath.Join(proc, "driver/nvidia/version"), loaded) },
			[]string{"535.261.03", "platform", "hardware.driverRoot"}},
		"no module": {func(t *testing.T, root, _ string) { put(t, filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), "") },
			[]string{"no kernel module is loaded", "modprobe nvidia"}},
		"two versions": {func(t *testing.T, root, proc string) {
			put(t, filepath.Join(proc, "driver/nvidia/version"), loaded)
			put(t, filepath.Join(root, "usr/lib64/libnvidia-ml.so.550.163.01"), "")
			if err := os.Symlink("libnvidia-ml.so.550.163.01", filepath.Join(root, "usr/lib64/libnvidia-ml.so.1")); err != nil {
				t.Fatal(err)
			}
		}, []string{"two versions", "550.163.01", "535.261.03", "reboot"}},
		"a driver that is whole": {func(t *testing.T, root, proc string) {
			put(t, filepath.Join(proc, "driver/nvidia/version"), loaded)
			put(t, filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), "")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root, proc := filepath.Join(t.TempDir(), "driver"), t.TempDir()
			c.make(t, root, proc)
			got := Search{Roots: []Place{Here(root)}, Dev: Here("/dev"), ProcRoot: proc}.Explain()
			if len(c.want) == 0 && got != "" {
				t.Errorf("said %q of a driver that is whole", got)
			}
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q does not say %q", got, want)
				}
			}
		})
	}
}
