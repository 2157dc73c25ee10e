package cudatest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/internal/built"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// newest is a node whose driver takes limits of memory, with its NVML.
func newest(t *testing.T) (root string, lib nvml.Interface) {
	t.Helper()
	p, err := profile.Load("l40s-8")
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.Version = "615.10" // docs.nvidia.com/deploy/mps: limits of memory came with r615
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

// cgroup makes a cgroup v2 of the kernel's for the test, with one below it. The test is skipped, with the reason, where it may not.
func cgroup(t *testing.T) (parent, leaf string) {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := state.CgroupOf(mount); err != nil {
			continue
		}
		parent, err := os.MkdirTemp(mount, "gpufabric-test-")
		if err != nil {
			t.Skipf("skipped: no cgroup can be made here: %v", err)
		}
		leaf = filepath.Join(parent, "container")
		t.Cleanup(func() {
			// rmdir, not RemoveAll: the files in a cgroup cannot be removed.
			for _, path := range []string{leaf, parent} {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			}
		})
		if err := os.Mkdir(leaf, 0o755); err != nil {
			t.Fatal(err)
		}
		return parent, leaf
	}
	t.Skip("skipped: cgroup v2 is mounted at neither /sys/fs/cgroup nor /sys/fs/cgroup/unified")
	return "", ""
}

// join moves a client into a cgroup, and out of it at the test's end.
func (c *client) join(cgroup string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), fmt.Appendln(nil, c.cmd.Process.Pid), 0o600); err != nil {
		c.t.Skipf("skipped: no process can be moved into a cgroup here: %v", err)
	}
}

//shows:vgpu-limits native
func TestACgroupIsHeldToItsMemoryByTheDriver(t *testing.T) {
	parent, leaf := cgroup(t)
	root, lib := newest(t)
	d, r := lib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	const mib = 1 << 20
	if r := d.SetMemoryLimits_v1(leaf, 10240*mib, 10240*mib); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	first, second, outside := start(t, root), start(t, root), start(t, root)
	first.join(leaf)
	second.join(leaf)
	for _, c := range []*client{first, second, outside} {
		c.say("init", "0 8 NVIDIA L40S")
		c.say("context 0", "0")
	}
	first.say("info", fmt.Sprintf("0 %d %d", 10240*mib, 10240*mib))
	first.say(fmt.Sprintf("alloc %d", 6144*mib), "0")
	second.say("info", fmt.Sprintf("0 %d %d", 4096*mib, 10240*mib))
	second.say(fmt.Sprintf("alloc %d", 4096*mib+1), "2") // out of memory, though the GPU has 40 GiB free
	second.say(fmt.Sprintf("alloc %d", 4096*mib), "0")
	outside.say(fmt.Sprintf("alloc %d", 20480*mib), "0")
	got, r := d.GetMemoryLimits_v1(leaf)
	if r != nvml.SUCCESS || got.HardLimit != 10240*mib || got.SoftLimit != 10240*mib || got.CurrentUsed != 10240*mib {
		t.Errorf("the limits are %+v (%v)", got, r)
	}
	// A limit of a cgroup above holds too, and cuMemGetInfo does not show it.
	if r := d.SetMemoryLimits_v1(leaf, 0, nvml.DEVICE_MEMORY_LIMIT_MAX); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	if r := d.SetMemoryLimits_v1(parent, 0, 11264*mib); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	second.say(fmt.Sprintf("alloc %d", 1024*mib+1), "2")
	second.say(fmt.Sprintf("alloc %d", 1024*mib), "0")
	if _, r := d.GetMemoryLimits_v1(leaf); r != nvml.ERROR_NOT_FOUND {
		t.Errorf("limits that were cleared: %v", r)
	}
	for _, c := range []*client{first, second} {
		c.end() // a cgroup with processes cannot be removed
	}
}

// The rules of nvml.h beside the call, and of NVIDIA's documentation of MPS.
//
//shows:vgpu-limits native
func TestLimitsThatTheDriverDoesNotTakeAreRefused(t *testing.T) {
	_, leaf := cgroup(t)
	_, lib := newest(t)
	d, r := lib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	memory, r := d.GetMemoryInfo()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	for name, c := range map[string]struct {
		path       string
		soft, hard uint64
		want       nvml.Return
	}{
		"soft over hard":       {leaf, 2, 1, nvml.ERROR_INVALID_ARGUMENT},
		"more than the GPU":    {leaf, 0, memory.Total + 1, nvml.ERROR_INVALID_ARGUMENT},
		"a cgroup that went":   {leaf + "-gone", 1, 1, nvml.ERROR_OPERATING_SYSTEM},
		"no cgroup v2":         {t.TempDir(), 1, 1, nvml.ERROR_OPERATING_SYSTEM},
		"a file of the cgroup": {filepath.Join(leaf, "cgroup.procs"), 1, 1, nvml.ERROR_OPERATING_SYSTEM},
		"all of the GPU":       {leaf, memory.Total, memory.Total, nvml.SUCCESS},
		"no limit":             {leaf, 0, nvml.DEVICE_MEMORY_LIMIT_MAX, nvml.SUCCESS},
	} {
		if r := d.SetMemoryLimits_v1(c.path, c.soft, c.hard); r != c.want {
			t.Errorf("%s: %v, want %v", name, r, c.want)
		}
	}
	old, oldLib := node(t, "l40s-8")
	if err := oldLib.Extensions().LookupSymbol("nvmlDeviceSetMemoryLimits_v1"); err == nil || !strings.Contains(err.Error(), "no symbol") {
		t.Errorf("the driver of %s has the call (%v)", old, err)
	}
}
