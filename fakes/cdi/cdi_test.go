package cdi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/fakes/cdi"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// rendered is a node without libraries.
func rendered(t *testing.T, name string) cdi.Options {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	return cdi.Options{Root: root, Node: p.Node(0), Architecture: "amd64"}
}

func files(t *testing.T, directory string) string {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestDescribeReplacesTheSpecificationsOfAnEarlierMachine(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "cdi")
	for _, step := range []struct{ profile, want string }{
		{"h100-hgx", "fakefabric-fakefabric-gpufabric-io-node.json fakefabric-nvidia-com-gpu.json"},
		{"rdma-only", "fakefabric-fakefabric-gpufabric-io-node.json"},
	} {
		if err := cdi.Describe(directory, rendered(t, step.profile)); err != nil {
			t.Fatal(err)
		}
		if got := files(t, directory); got != step.want {
			t.Errorf("%s: %q, want %q", step.profile, got, step.want)
		}
	}
	if err := cdi.Remove(directory); err != nil || files(t, directory) != "" {
		t.Errorf("%v, and left: %q", err, files(t, directory))
	}
}

func TestDescribeKeepsTheSpecificationOfARealMachine(t *testing.T) {
	directory := t.TempDir()
	theirs := filepath.Join(directory, "nvidia.yaml")
	if err := os.WriteFile(theirs, []byte("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := cdi.Describe(directory, rendered(t, "h100-hgx"))
	if err == nil || !strings.Contains(err.Error(), theirs) || !strings.Contains(err.Error(), "cdiRoot") ||
		files(t, directory) != "nvidia.yaml" {
		t.Errorf("%v; files: %q", err, files(t, directory))
	}
	// Another kind, and a file that is no specification, are no concern of this one.
	if err := os.WriteFile(theirs, []byte("kind: [\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "other.json"), []byte(`{"kind": "vendor.com/nic"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := cdi.Describe(directory, rendered(t, "h100-hgx")); err != nil {
		t.Error(err)
	}
}

func TestSpecsRefuseAnArchitectureWithoutLibraries(t *testing.T) {
	o := rendered(t, "h100-hgx")
	o.Architecture = "riscv64"
	if _, err := cdi.Specs(o); err == nil || !strings.Contains(err.Error(), "amd64 or arm64") {
		t.Error(err)
	}
}
