package cudatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// limited builds the drivers' limiter for a container whose files are in a directory of the test's, with a limit on the first GPU.
func limited(t *testing.T, lib nvml.Interface, mib uint64) (preload string) {
	t.Helper()
	return limitedIn(t, lib, mib, t.TempDir())
}

// limitedIn does it with the container's files in a directory.
func limitedIn(t *testing.T, lib nvml.Interface, mib uint64, container string) (preload string) {
	t.Helper()
	d, r := lib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	uuid, r := d.GetUUID()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	out := t.TempDir()
	target := filepath.Join(out, "testing/libvgpu.so")
	if said, err := exec.CommandContext(t.Context(), "make", "-C", "../../../drivers/gpu/limiter/library", "OUT="+out, "TESTS="+container,
		target).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	limits := fmt.Sprintf("gpufabric-limits 1\n%s %d 0\n", uuid, mib<<20)
	//nolint:gosec // as the node's plugin writes it
	if err := os.WriteFile(filepath.Join(container, "limits"), []byte(limits), 0o444); err != nil {
		t.Fatal(err)
	}
	return "LD_PRELOAD=" + target
}

// The program finds CUDA's functions by dlopen and dlsym, as PyTorch and Triton do.
//
//shows:vgpu-limits
func TestTwoProcessesOfAContainerKeepToItsShareTogether(t *testing.T) {
	root, lib := node(t, "l40s-8")
	preload := limited(t, lib, 10240)
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

// The cost for a program without CUDA: a millisecond of processor time at most, however busy the machine is.
func TestAProgramWithoutCUDAPaysNothing(t *testing.T) {
	_, lib := node(t, "l40s-8")
	preload := limited(t, lib, 10240)
	least := func(env ...string) time.Duration {
		cost := time.Hour
		for range 50 {
			cmd := exec.CommandContext(t.Context(), "/bin/true")
			cmd.Env = env
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			cost = min(cost, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		}
		return cost
	}
	if with, without := least(preload), least(); with > without+time.Millisecond {
		t.Errorf("it takes %s, and %s without the library", with, without)
	}
}
