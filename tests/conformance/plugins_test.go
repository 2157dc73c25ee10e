package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// forPlugins is an option of a rendering.
func forPlugins(o *tree.Options) { o.NVIDIAPlugins = true }

// TestContainersOfNVIDIAsPluginsSeeTheirGPUs gives a container the devices and mounts that nvidia-ctk describes, by whose library NVIDIA's
// DRA driver describes GPUs too, and nothing else of the node.
func TestContainersOfNVIDIAsPluginsSeeTheirGPUs(t *testing.T) {
	program := peer(t, "nvidia-ctk")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Load("h100-hgx")
	if err != nil {
		t.Fatal(err)
	}
	n := renderNode(t, p, forPlugins)
	c := newContainer(t, self)
	c.spec.Root.Readonly = false // hooks write the loader's cache
	mkdir(t, filepath.Join(c.bundle, "rootfs/etc"))
	driver := filepath.Join(n.root, "driver")
	out, _ := n.run(t, program, "cdi", "generate", "--mode=nvml", "--driver-root="+driver, "--dev-root="+driver, "--device-name-strategy=uuid",
		"--nvidia-cdi-hook-path="+program)
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "nvidia.yaml"), []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(directory), cdilib.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{n.GPUs[3].UUID, n.GPUs[5].UUID}
	if missing, err := cache.InjectDevices(&c.spec, "nvidia.com/gpu="+want[0], "nvidia.com/gpu="+want[1]); err != nil {
		t.Fatalf("%v; unresolved: %v\n%s", err, missing, out)
	}
	listing, err := c.run(t, nil, "/usr/bin/nvidia-smi", "-L")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := gpusOf(listing); !slices.Equal(got, want) {
		t.Errorf("nvidia-smi -L has %v, want %v:\n%s", got, want, listing)
	}
	said, err := c.run(t, []string{child + "=go-nvml"}, inImage(self))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range n.GPUs {
		if wanted := slices.Contains(want, g.UUID); strings.Contains(said, g.UUID) != wanted {
			t.Errorf("NVML shows %s: %t, want %t\n%s", g.UUID, !wanted, wanted, said)
		}
	}
	// The container may write to the state.
	if _, err := c.run(t, nil, "/usr/bin/nvidia-smi", "-i", "0", "-mig", "1"); err != nil {
		t.Error(err)
	}
}
