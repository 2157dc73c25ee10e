package cudatest

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// library is the drivers' limiter, built once for containers whose files are all in one directory: tests come one after another.
var library = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(builtDir, "limiter")
	said, err := exec.CommandContext(context.Background(), "make", "-C", "../../../drivers/gpu/limiter/library", "OUT="+dir,
		"TESTS="+filepath.Join(dir, "container"), filepath.Join(dir, "testing/libvgpu.so")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, said)
	}
	return dir, nil
})

// limited is the environment of a new container with a limit on the first GPU, and the directory of its files.
func limited(t *testing.T, lib nvml.Interface, mib uint64) (preload, container string) {
	t.Helper()
	d, r := lib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	uuid, r := d.GetUUID()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	dir, err := library()
	if err != nil {
		t.Fatal(err)
	}
	container = filepath.Join(dir, "container")
	if err := os.RemoveAll(container); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(container, 0o700); err != nil {
		t.Fatal(err)
	}
	limits := fmt.Sprintf("gpufabric-limits 1\n%s %d 0\n", uuid, mib<<20)
	//nolint:gosec // as the node's plugin writes it
	if err := os.WriteFile(filepath.Join(container, "limits"), []byte(limits), 0o444); err != nil {
		t.Fatal(err)
	}
	return "LD_PRELOAD=" + filepath.Join(dir, "testing/libvgpu.so"), container
}

// The program finds CUDA's functions by dlopen and dlsym, as PyTorch and Triton do.
func TestLimiterBoundsTwoProcessesTogether(t *testing.T) {
	root, lib := node(t, "l40s-8")
	preload, _ := limited(t, lib, 10240)
	first, second := start(t, root, preload), start(t, root, preload)
	for _, c := range []*client{first, second} {
		c.say("init", "0 8 NVIDIA L40S")
		c.say("context 0", "0")
	}
	first.say("info", fmt.Sprintf("0 %d %d", 10240<<20, 10240<<20))
	first.say(fmt.Sprintf("alloc %d", 6144<<20), "0")
	second.say("info", fmt.Sprintf("0 %d %d", 4096<<20, 10240<<20))
	second.say(fmt.Sprintf("alloc %d", 6144<<20), "2") // out of memory, though the GPU has 40 GiB free
	second.say(fmt.Sprintf("alloc %d", 4096<<20), "0")
	second.say("free", "0")
	if used, _ := usedMiB(t, lib, 0); used < 6144 || used > 8000 {
		t.Errorf("%d MiB of the GPU are in use, want those of the first", used)
	}
	// When it is killed, its memory is free again.
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()
	second.say(fmt.Sprintf("alloc %d", 10240<<20), "0")
	second.say("alloc 1", "2")
}

// The cost for a program without CUDA is that of loading a library: its page faults, since the processor's time depends on the machine.
func TestLimiterIsInactiveWithoutCUDA(t *testing.T) {
	_, lib := node(t, "l40s-8")
	preload, _ := limited(t, lib, 10240)
	faults := func(env ...string) int64 {
		least := int64(math.MaxInt64)
		for range 10 {
			cmd := exec.CommandContext(t.Context(), "/bin/true")
			cmd.Env = env
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			least = min(least, cmd.ProcessState.SysUsage().(*syscall.Rusage).Minflt)
		}
		return least
	}
	const most = 24 // 12 more were measured (60 and 48, 2026-11-26)
	with, without := faults(preload), faults()
	t.Logf("measured: %d page faults, and %d without the library", with, without)
	if with > without+most {
		t.Errorf("%d page faults, and %d without the library: more than %d for loading it", with, without, most)
	}
}
