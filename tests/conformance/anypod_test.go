package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"gpufabric.io/fakes/cdi"
)

// container is an OCI bundle that the machine's runc can run.
type container struct {
	bundle string
	spec   oci.Spec
}

// newContainer makes a container of an image that has these programs, the libraries that they are linked with, and nothing else.
func newContainer(t *testing.T, programs ...string) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: runc makes device nodes, which only root can")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skipf("skipped: Debian's package runc is not installed: %v", err)
	}
	bundle, err := os.MkdirTemp("/tmp", "bundle-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(bundle); err != nil {
			t.Error(err)
		}
	})
	c := &container{bundle: bundle}
	cmd := exec.CommandContext(t.Context(), "runc", "spec")
	cmd.Dir = bundle
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v\n%s", err, said)
	}
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err == nil {
		err = json.Unmarshal(data, &c.spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.spec.Process.Terminal = false
	for _, program := range programs {
		c.copy(t, program, inImage(program))
		linked, _ := exec.CommandContext(t.Context(), "ldd", program).Output() // fails for a static program, which needs none
		for _, word := range strings.Fields(string(linked)) {
			if filepath.IsAbs(word) {
				c.copy(t, word, word)
			}
		}
	}
	return c
}

// inImage is the path of a program in the container.
func inImage(program string) string { return "/usr/local/bin/" + filepath.Base(program) }

// copy puts a file of this machine into the image.
func (c *container) copy(t *testing.T, file, path string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(c.bundle, "rootfs", path)
	mkdir(t, filepath.Dir(target))
	if err := os.WriteFile(target, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// inject gives the container CDI devices of a node, as a container runtime does: by the CDI library.
func (c *container) inject(t *testing.T, n *node, devices ...string) {
	t.Helper()
	directory := filepath.Join(n.root, "cdi")
	if err := cdi.Describe(directory, cdi.Options{Root: n.root, Node: n.Node, Architecture: runtime.GOARCH}); err != nil {
		t.Fatal(err)
	}
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(directory), cdilib.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if problems := cache.GetErrors(); len(problems) > 0 {
		t.Fatalf("CDI specifications: %v", problems)
	}
	if missing, err := cache.InjectDevices(&c.spec, devices...); err != nil {
		t.Fatalf("inject %v: %v; unresolved: %v", devices, err, missing)
	}
}

// write writes the bundle's configuration, with the program that runs in it.
func (c *container) write(t *testing.T, env, args []string) {
	t.Helper()
	spec := c.spec
	process := *c.spec.Process
	process.Args, process.Env = args, append(slices.Clone(process.Env), env...)
	spec.Process = &process
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.bundle, "config.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// run runs a program in the container and returns its output.
func (c *container) run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	c.write(t, env, args)
	said, err := exec.CommandContext(t.Context(), "runc", "--root", c.bundle+"/run", "run", "--bundle", c.bundle,
		filepath.Base(c.bundle)).CombinedOutput()
	if err != nil {
		return string(said), fmt.Errorf("runc run %v: %w: %s", args, err, said)
	}
	return string(said), nil
}

// gpusOf returns the UUIDs that nvidia-smi -L lists.
func gpusOf(listing string) []string {
	var out []string
	for _, word := range strings.FieldsFunc(listing, func(r rune) bool { return strings.ContainsRune(" ()\n", r) }) {
		if strings.HasPrefix(word, "GPU-") {
			out = append(out, word)
		}
	}
	return out
}

// TestCDIDevicesGiveAContainerItsGPUs does the same as `docker run --device nvidia.com/gpu=...`.
func TestCDIDevicesGiveAContainerItsGPUs(t *testing.T) {
	n := newNode(t, "h100-hgx")
	var all []string
	for _, g := range n.GPUs {
		all = append(all, g.UUID)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		devices []string
		want    []string
	}{
		{[]string{"nvidia.com/gpu=all"}, all},
		{[]string{"nvidia.com/gpu=2"}, all[2:3]},
		{[]string{"nvidia.com/gpu=0", "nvidia.com/gpu=" + all[5]}, []string{all[0], all[5]}},
		{[]string{"fakefabric.gpufabric.io/node=all"}, all},
	} {
		t.Run(strings.Join(test.devices, " "), func(t *testing.T) {
			c := newContainer(t, self)
			c.inject(t, n, test.devices...)
			listing, err := c.run(t, nil, "/usr/bin/nvidia-smi", "-L")
			if err != nil {
				t.Fatal(err)
			}
			if got := gpusOf(listing); !slices.Equal(got, test.want) {
				t.Errorf("nvidia-smi -L has %v, want %v:\n%s", got, test.want, listing)
			}
			// Programs that load libnvidia-ml.so.1 find it without LD_LIBRARY_PATH or a loader's cache.
			said, err := c.run(t, []string{child + "=go-nvml"}, inImage(self))
			if err != nil {
				t.Fatal(err)
			}
			for _, uuid := range all {
				if wanted := slices.Contains(test.want, uuid); strings.Contains(said, uuid) != wanted {
					t.Errorf("NVML shows %s: %t, want %t\n%s", uuid, !wanted, wanted, said)
				}
			}
		})
	}
}

func TestCDIDeviceOfTheNodeHasItsPCIFunctionsAndNICs(t *testing.T) {
	n := newNode(t, "h100-hgx")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := newContainer(t, self)
	c.inject(t, n, "fakefabric.gpufabric.io/node=all")
	said, err := c.run(t, []string{child + "=pci"}, inImage(self))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range n.GPUs {
		if !strings.Contains(said, g.Address.String()) {
			t.Errorf("/sys/bus/pci/devices lacks GPU %s:\n%s", g.Address, said)
		}
	}
	for _, nic := range n.NICs {
		node := fmt.Sprintf("/dev/infiniband/uverbs%d", nic.Index)
		if !strings.Contains(said, nic.Address.String()) || !strings.Contains(said, node) {
			t.Errorf("%s or %s is missing:\n%s", nic.Address, node, said)
		}
	}
	if !strings.Contains(said, "/sys/devices/system/cpu/cpu0") {
		t.Errorf("the container has no processors of its machine:\n%s", said)
	}
}

// TestDriverRootShowsTheNodeByItself mounts the driver root read-only at /driver-root, as the charts of NVIDIA's device plugin and DRA
// driver do, and nothing else of the node.
func TestDriverRootShowsTheNodeByItself(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"h100-hgx", "gb200-nvl72"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			c := newContainer(t, self)
			c.spec.Mounts = append(c.spec.Mounts, oci.Mount{Destination: "/driver-root", Type: "bind", Source: filepath.Join(n.root, "driver"),
				Options: []string{"rbind", "ro", "rslave"}})
			listing, err := c.run(t, nil, "/driver-root/usr/bin/nvidia-smi", "-L")
			if err != nil {
				t.Fatal(err)
			}
			said, err := c.run(t, []string{"LD_LIBRARY_PATH=/driver-root/usr/lib64", child + "=go-nvml"}, inImage(self))
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range n.GPUs {
				if !strings.Contains(listing, g.UUID) || !strings.Contains(said, g.UUID) {
					t.Errorf("%s is missing:\n%s%s", g.UUID, listing, said)
				}
			}
		})
	}
}

// readPCI is the child that lists hardware of the container it runs in.
func readPCI() (any, error) {
	functions, err := pciFunctions()
	if err != nil {
		return nil, err
	}
	for _, pattern := range []string{"/dev/infiniband/*", "/sys/devices/system/cpu/cpu*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		functions = append(functions, found...)
	}
	return functions, nil
}
