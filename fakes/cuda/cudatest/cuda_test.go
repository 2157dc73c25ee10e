package cudatest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// builtDir is where tests keep their common programs.
var builtDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if builtDir, err = os.MkdirTemp("", "cudatest-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := memdir.Run(m)
	if err := os.RemoveAll(builtDir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// node renders a node and opens its NVML.
func node(t *testing.T, name string) (root string, lib nvml.Interface) {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true,
		LibraryDir: filepath.Join(built.Dir(t), "lib")}); err != nil {
		t.Fatal(err)
	}
	lib = nvmlstate.New(root)
	if r := lib.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	return root, lib
}

// client is a running testdata/client.
type client struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// compiled is a program of testdata, compiled by the first test that runs it.
func compiled(t *testing.T, name string) string {
	t.Helper()
	binary := filepath.Join(builtDir, name)
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	source := filepath.Join("testdata", name+".c")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-o", binary, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

func start(t *testing.T, root string, env ...string) *client {
	t.Helper()
	c := &client{t: t, cmd: exec.CommandContext(t.Context(), compiled(t, "client"), filepath.Join(root, "driver/usr/lib64/libcuda.so.1"))}
	c.cmd.Env = append(os.Environ(), env...)
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *client) start() (err error) {
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return err
	}
	c.t.Cleanup(c.end)
	return nil
}

func (c *client) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait() // some die on purpose
}

// say sends a command and checks the answer.
func (c *client) say(command, want string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		c.t.Fatal(err)
	}
	got, err := c.out.ReadString('\n')
	if err != nil || strings.TrimSpace(got) != want {
		c.t.Fatalf("%s: %q %v; want %q", command, got, err, want)
	}
}

func usedMiB(t *testing.T, lib nvml.Interface, gpu int) (uint64, []nvml.ProcessInfo) {
	t.Helper()
	d, r := lib.DeviceGetHandleByIndex(gpu)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	m, r := d.GetMemoryInfo_v2()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	p, r := d.GetComputeRunningProcesses()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	return m.Used >> 20, p
}

func TestMemoryShowsInNVMLOfTheSameNode(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("context 2", "0")
	c.say("alloc 1073741824", "0")
	used, processes := usedMiB(t, lib, 2)
	if used != 1024 || len(processes) != 1 || int(processes[0].Pid) != c.cmd.Process.Pid || processes[0].UsedGpuMemory != 1<<30 {
		t.Errorf("%d MiB used by %+v", used, processes)
	}
	c.say("info", fmt.Sprintf("0 %d %d", uint64(46068-609-1024)<<20, uint64(46068-609)<<20))
	c.say("alloc 60000000000", "2") // out of memory
	c.say("free", "1")              // a block that was never allocated
	c.say("free", "0")
	if used, _ := usedMiB(t, lib, 2); used != 0 {
		t.Errorf("%d MiB used after free", used)
	}
	c.end()
	if _, processes := usedMiB(t, lib, 2); len(processes) != 0 {
		t.Errorf("a process that ended: %+v", processes)
	}
}

func TestProcessFreesMemoryWhenItEnds(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("context 0", "0")
	c.say("alloc 1048576", "0")
	if _, err := fmt.Fprintln(c.in, "die"); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // it exits with 9
	if used, processes := usedMiB(t, lib, 0); used != 0 || len(processes) != 0 {
		t.Errorf("%d MiB used by %+v", used, processes)
	}
}

// A container's processes have their own PIDs, and when the container is killed no process in it remains to clean up.
func TestProcessInAnotherPIDNamespaceFreesMemoryWhenKilled(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := &client{t: t, cmd: exec.CommandContext(t.Context(), compiled(t, "client"), filepath.Join(root, "driver/usr/lib64/libcuda.so.1"))}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID}
	if err := c.start(); err != nil {
		t.Skipf("skipped: this user may make no PID namespace: %v", err)
	}
	c.say("init", "0 8 NVIDIA L40S")
	c.say("context 0", "0")
	c.say("alloc 1048576", "0")
	if used, processes := usedMiB(t, lib, 0); used != 1 || len(processes) != 1 || processes[0].Pid != 1 {
		t.Errorf("%d MiB used by %+v, want 1 by the namespace's first process", used, processes)
	}
	other := start(t, root) // a process of this namespace, the trigger of the stand-in's check
	other.say("init", "0 8 NVIDIA L40S")
	other.say("context 0", "0")
	if used, _ := usedMiB(t, lib, 0); used != 1 {
		t.Errorf("%d MiB used after another process looked, want 1", used)
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // it was killed
	if used, processes := usedMiB(t, lib, 0); used != 0 || len(processes) != 1 {
		t.Errorf("%d MiB used by %+v, want the other process alone", used, processes)
	}
	other.say("info", fmt.Sprintf("0 %d %d", uint64(46068-609)<<20, uint64(46068-609)<<20))
}

func TestKernelMakesTheGPUBusyForItsTime(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("context 1", "0")
	d, _ := lib.DeviceGetHandleByIndex(1)
	for takes, busy := 300*time.Millisecond, false; !busy; takes *= 4 { // on a busy machine a short one may be over before it is looked at
		begin := time.Now()
		c.say(fmt.Sprintf("launch noop_%dms", takes.Milliseconds()), "0")
		u, r := d.GetUtilizationRates()
		busy = r == nvml.SUCCESS && u.Gpu == 100
		if !busy && takes > time.Minute {
			t.Fatalf("while it runs: %+v %v", u, r)
		}
		c.say("wait", "0")
		if took := time.Since(begin); took < takes {
			t.Errorf("it took %v, want %v", took, takes)
		}
		if u, _ := d.GetUtilizationRates(); u.Gpu != 0 {
			t.Errorf("afterwards: %+v", u)
		}
	}
}

// docs.nvidia.com/cuda/cuda-driver-api: the input of cuModuleLoadData, the result of cuModuleGetFunction, and the parameters of
// cuLaunchKernel.
func TestModuleHasTheKernelsOfItsText(t *testing.T) {
	const invalidValue, invalidImage, invalidPTX, notFound = "1", "200", "218", "500"
	root, _ := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("context 0", "0")
	for image, want := range map[string]string{"empty": invalidImage, "words": invalidImage, "no-version": invalidPTX,
		"no-target": invalidPTX} {
		c.say("image "+image, want)
	}
	c.say("image ptx", "0")
	for name, want := range map[string]string{
		"plain_0ms":  "0 0 0",
		"fed_0ms":    "0 " + invalidValue + " 0",
		"plain_0":    notFound + " -1 -1", // a part of a name
		"hidden_0ms": notFound + " -1 -1", // in a comment
	} {
		c.say("function "+name, want)
	}
	c.say("image cubin", "0")
	c.say("function any_0ms", "0 0 0") // a binary is not read
}

func TestKernelWaitSurvivesASignal(t *testing.T) {
	root, _ := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("context 1", "0")
	begin := time.Now()
	c.say("launch noop_300ms", "0")
	c.say("signals", "0")
	c.say("wait", "0")
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("a kernel of 300 ms was over after %v", took)
	}
}

func TestAllocationBeyondTheGPUIsOutOfMemory(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("context 0", "0")
	for _, bytes := range []string{"9223372036854775808", "18446744073709551615"} { // as a signed number, less than none
		c.say("alloc "+bytes, "2")
	}
	if used, _ := usedMiB(t, lib, 0); used != 0 {
		t.Errorf("%d MiB used by blocks that were not given", used)
	}
}

func TestPrimaryContextIsNotDestroyed(t *testing.T) {
	root, _ := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("primary 3", "0")
	c.say("destroy", "201") // invalid context: it belongs to the device
	c.say("primary 3", "0")
}

// Libraries push the context that they work in, and pop it to leave their caller's as it was.
func TestThreadHasAStackOfContexts(t *testing.T) {
	const destroyed, invalid = "709", "201"
	root, _ := node(t, "l40s-8")
	c := start(t, root)
	c.say("init", "0 8 NVIDIA L40S")
	c.say("pop", invalid+" 0")
	c.say("context 1", "0")
	c.say("primary 2", "0") // the next steps use this one
	c.say("push", "0")
	c.say("device", "0 2")
	c.say("pop", "0 1")
	c.say("device", "0 1")
	c.say("set", "0") // instead of the one on top
	c.say("device", "0 2")
	c.say("push none", invalid)
	c.say("set none", "0")
	c.say("device", invalid+" -1")
	c.say("set none", "0")

	c.say("context 3", "0")
	c.say("push", "0")
	c.say("destroy", "0") // goes from the top alone
	c.say("device", destroyed+" -1")
	c.say("alloc 1048576", destroyed)
	c.say("destroy", destroyed)
	c.say("push", destroyed)
	c.say("set", destroyed)
	c.say("pop", "0 1")
	c.say("device", invalid+" -1")
}

func TestVisibleDevices(t *testing.T) {
	root, lib := node(t, "l40s-8")
	d, _ := lib.DeviceGetHandleByIndex(5)
	uuid, _ := d.GetUUID()
	for visible, want := range map[string]string{"1,3": "0 2 NVIDIA L40S", uuid: "0 1 NVIDIA L40S", "": "100 -1", "0,9,1": "0 1 NVIDIA L40S"} {
		start(t, root, "CUDA_VISIBLE_DEVICES="+visible).say("init", want)
	}
	c := start(t, root, "CUDA_VISIBLE_DEVICES="+uuid)
	c.say("init", "0 1 NVIDIA L40S")
	c.say("context 0", "0")
	c.say("alloc 1048576", "0")
	if used, _ := usedMiB(t, lib, 5); used != 1 {
		t.Errorf("%d MiB on the GPU that was meant", used)
	}
}

func TestMIGDeviceHasItsOwnMemoryAndIsInUse(t *testing.T) {
	root, lib := node(t, "a100-40")
	d, _ := lib.DeviceGetHandleByIndex(0)
	if err := fault.Apply(root, "mig-mode", fault.Arguments{"gpu": "0"}); err != nil { // a change of mode is pending there until a reset
		t.Fatal(err)
	}
	info, _ := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	gi, r := d.CreateGpuInstance(&info)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	ciInfo, _ := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
	ci, r := gi.CreateComputeInstance(&ciInfo)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	m, _ := d.GetMigDeviceHandleByIndex(0)
	uuid, _ := m.GetUUID()
	c := start(t, root, "CUDA_VISIBLE_DEVICES="+uuid)
	c.say("init", "0 1 NVIDIA A100-SXM4-40GB")
	c.say("context 0", "0")
	c.say("alloc 104857600", "0")
	c.say("alloc 5368709120", "2") // more than 1g.5gb has
	if mem, r := m.GetMemoryInfo(); r != nvml.SUCCESS || mem.Used != 100<<20 || mem.Total != 4864<<20 {
		t.Errorf("%+v %v", mem, r)
	}
	if r := ci.Destroy(); r != nvml.ERROR_IN_USE {
		t.Errorf("destroying it in use: %v", r)
	}
	c.end()
	if r := ci.Destroy(); r != nvml.SUCCESS {
		t.Errorf("destroying it afterwards: %v", r)
	}
}

func TestExclusiveProcessModeAllowsOneProcess(t *testing.T) {
	root, lib := node(t, "l40s-8")
	d, _ := lib.DeviceGetHandleByIndex(0)
	if r := d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	first, second := start(t, root), start(t, root)
	first.say("init", "0 8 NVIDIA L40S")
	second.say("init", "0 8 NVIDIA L40S")
	first.say("context 0", "0")
	second.say("context 0", "46") // device unavailable
	first.end()
	second.say("context 0", "0")
}
