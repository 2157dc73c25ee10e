package edits_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
)

// The directories are those of docs/platforms.md. nvcdi looks in some of them by itself.
func TestFindMountsLibrariesOfEveryLayout(t *testing.T) {
	for _, directory := range []string{"usr/lib64", "lib64", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/local/lib",
		"usr/local/glibc/usr/lib", "usr/lib/nvidia/tesla"} {
		t.Run(directory, func(t *testing.T) {
			machine := gputest.New(t, 0)
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, directory), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, stem := range []string{"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"} {
				file := filepath.Join(root, directory, stem+".so.570.158.01")
				if err := os.WriteFile(file, nil, 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(filepath.Base(file), filepath.Join(root, directory, stem+".so.1")); err != nil {
					t.Fatal(err)
				}
			}
			set, err := edits.Find(&inventory.Node{DriverVersion: "570.158.01"}, edits.Options{NVML: machine, DriverRoot: root,
				DevRoot: machine.Path("dev"), ProcDevices: machine.Path("proc/devices"), Log: logr.Discard()})
			if err != nil {
				t.Fatal(err)
			}
			got := set.Common()
			for _, stem := range []string{"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"} {
				inside := "/" + directory + "/" + stem + ".so.570.158.01"
				if !slices.ContainsFunc(got.Mounts, func(m *specs.Mount) bool { return m.ContainerPath == inside }) {
					t.Errorf("no mount of %s in %v; problems: %v", inside, paths(got.Mounts), set.Problems)
				}
			}
		})
	}
}

func paths(mounts []*specs.Mount) string {
	var all []string
	for _, m := range mounts {
		all = append(all, m.ContainerPath)
	}
	return strings.Join(all, ", ")
}
