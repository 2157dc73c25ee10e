package plugin

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/tree"
)

// node is a device node that a container gets, by its path in the container.
func node(e specs.ContainerEdits, path string) *specs.DeviceNode {
	for _, n := range e.DeviceNodes {
		if n.Path == path {
			return n
		}
	}
	return nil
}

// onFake runs the role on a rendered node, as a plugin with a read-only /dev.
func onFake(t *testing.T, name string) (b *bench, root string) {
	t.Helper()
	root = renderFake(t, name)
	return benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root), root
}

// If the plugin's /dev is read-only, the nodes of a MIG device's capabilities are not made: /proc has their numbers.
func TestMIGDeviceUsesNumbersOfProc(t *testing.T) {
	b, root := onFake(t, "h100-hgx")
	c := b.claim("u1", nil, device{name: "gpu-1-mig-1g10gb-19-0"})
	e := b.edits(c, b.mustPrepare(c)...)
	made, err := filepath.Glob(filepath.Join(root, "dev/nvidia-caps/nvidia-cap*"))
	if err != nil || len(made) != 0 {
		t.Errorf("nodes of capabilities on the node: %v, %v", made, err)
	}
	instance := 7 // eighths begin there
	for _, minor := range []int{tree.CapabilityMinor(1, instance, -1), tree.CapabilityMinor(1, instance, 0)} {
		path := "/dev/nvidia-caps/nvidia-cap" + strconv.Itoa(minor)
		n := node(e, path)
		if n == nil || n.Type != "c" || n.Major != 235 || n.Minor != int64(minor) {
			t.Errorf("%s is %+v; want character device 235:%d\n%s", path, n, minor, nodes(e))
		}
	}
}

func TestPrepareRejectsMissingDeviceNodeAndChecksAgain(t *testing.T) {
	root := renderFake(t, "h100-hgx")
	inject := func(event string) {
		t.Helper()
		if err := fault.Apply(root, event, nil); err != nil {
			t.Fatal(err)
		}
	}
	inject("uvm-unload")
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	b.taints("gpu-0", "") // the GPUs are still published
	c := b.claim("u1", nil, device{name: "gpu-0"})
	_, problem := b.prepare(c)
	for _, want := range []string{"/dev/nvidia-uvm", filepath.Join(root, "dev/nvidia-uvm"), filepath.Join(root, "proc/devices"), "modprobe"} {
		if !strings.Contains(problem, want) {
			t.Errorf("the refusal does not name %s: %q", want, problem)
		}
	}
	b.event("Node", "DriverIncomplete")
	inject("uvm-load")
	n := node(b.edits(c, b.mustPrepare(c)...), "/dev/nvidia-uvm")
	if n == nil || n.Type != "c" || n.Major != 508 || n.Minor != 0 {
		t.Errorf("/dev/nvidia-uvm is %+v; want 508:0, the major that the module got when it was loaded", n)
	}
	// The module is loaded again with another number: the earlier result is no longer valid.
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	inject("uvm-unload")
	if _, problem := b.prepare(b.claim("u2", nil, device{name: "gpu-0"})); !strings.Contains(problem, "/dev/nvidia-uvm") {
		t.Errorf("without the module again: %q", problem)
	}
}

func TestDeviceNodeIsGivenByNumberWithoutFile(t *testing.T) {
	b, root := onFake(t, "t4-edge")
	for name, want := range map[string][2]int64{"nvidia-uvm": {510, 0}, "nvidia-uvm-tools": {510, 1}, "nvidia0": {195, 0},
		"nvidiactl": {195, 255}} {
		if err := os.Remove(filepath.Join(root, "dev", name)); err != nil {
			t.Fatal(err)
		}
		c := b.claim("u-"+name, nil, device{name: "gpu-0"})
		n := node(b.edits(c, b.mustPrepare(c)...), "/dev/"+name)
		if n == nil || n.Type != "c" || n.Major != want[0] || n.Minor != want[1] || n.HostPath != "" {
			t.Errorf("%s: %+v; want %v by number alone", name, n, want)
		}
		if problem := b.unprepare(c); problem != "" {
			t.Fatal(problem)
		}
	}
}

func TestPrepareNoticesChangedDriverFiles(t *testing.T) {
	root := renderFake(t, "t4-edge")
	const version = "550.163.01"
	libraries := filepath.Join(root, "driver/usr/lib64")
	put := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(libraries, name+".so."+version), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put("libnvidia-ml")
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	b.event("Node", "DriverIncomplete") // half installed: CUDA's library is missing
	libraryOf := func(uid, name string) bool {
		t.Helper()
		c := b.claim(uid, nil, device{name: "gpu-0"})
		e := b.edits(c, b.mustPrepare(c)...)
		if problem := b.unprepare(c); problem != "" {
			t.Fatal(problem)
		}
		return slices.ContainsFunc(e.Mounts, func(m *specs.Mount) bool { return strings.Contains(m.ContainerPath, name) })
	}
	if libraryOf("u1", "libcuda.so") {
		t.Error("a library that is not there is mounted")
	}
	put("libcuda")
	if !libraryOf("u2", "libcuda.so") {
		t.Error("a library that was installed later is not mounted")
	}
	put("libnvidia-ptxjitcompiler")
	if !libraryOf("u3", "libnvidia-ptxjitcompiler") {
		t.Error("a library that came to a driver that was whole is not mounted")
	}
	if err := os.Remove(filepath.Join(libraries, "libnvidia-ptxjitcompiler.so."+version)); err != nil {
		t.Fatal(err)
	}
	if libraryOf("u4", "libnvidia-ptxjitcompiler") {
		t.Error("a library that is gone is mounted")
	}
}

// The CDI spec of nvidia.com/gpu is no claim's: it outlives changes of the driver, and somebody may remove it.
func TestSpecOfNvidiaComGPUFollowsTheNode(t *testing.T) {
	root := renderFake(t, "t4-edge")
	libraries := filepath.Join(root, "driver/usr/lib64")
	put := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(libraries, name+".so.550.163.01"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put("libnvidia-ml")
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	b.stop()
	b.options.KubeletRoot, b.options.DevicePlugin = kubelet.Root(), []string{"all"}
	b.start()
	kubelet.AwaitAllocatable("nvidia.com/gpu", 4)
	path := filepath.Join(b.options.CDIRoot, "k8s.gpu.nvidia.com-gpu.json")
	allocated := func() string {
		t.Helper()
		ids, _, err := kubelet.Allocate(t.Context(), "nvidia.com/gpu", 1)
		if err != nil {
			t.Fatal(err)
		}
		kubelet.Free("nvidia.com/gpu", ids...)
		spec, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(spec)
	}
	if strings.Contains(allocated(), "libcuda.so") {
		t.Fatal("a library that is not there is mounted")
	}
	put("libcuda")
	if !strings.Contains(allocated(), "libcuda.so") {
		t.Error("a library that was installed later is not mounted")
	}
	if err := os.RemoveAll(b.options.CDIRoot); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(allocated(), "libcuda.so") {
		t.Error("the spec was not written again")
	}
}
