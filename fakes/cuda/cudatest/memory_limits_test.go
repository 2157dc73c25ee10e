package cudatest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/cgrouptest"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
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

// join moves a client into a cgroup.
func (c *client) join(cgroup string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), fmt.Appendln(nil, c.cmd.Process.Pid), 0o600); err != nil {
		c.t.Skipf("skipped: no process can be moved into a cgroup here: %v", err)
	}
}

// limitedCgroup is a node whose GPU d limits the cgroup leaf to 10 GiB, all of it guaranteed.
func limitedCgroup(t *testing.T) (root, leaf string, d nvml.Device) {
	t.Helper()
	_, parent := cgrouptest.Make(t)
	leaf = filepath.Join(parent, "container")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	root, lib := newest(t)
	d, r := lib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	if r := d.SetMemoryLimits_v1(leaf, 10240*mib, 10240*mib); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	return root, leaf, d
}

func TestDriverLimitsACgroupToItsMemory(t *testing.T) {
	root, leaf, d := limitedCgroup(t)
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
	// A limit of a parent cgroup applies too, but cuMemGetInfo does not show it.
	if r := d.SetMemoryLimits_v1(leaf, 0, nvml.DEVICE_MEMORY_LIMIT_MAX); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	if r := d.SetMemoryLimits_v1(filepath.Dir(leaf), 0, 11264*mib); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	second.say(fmt.Sprintf("alloc %d", 1024*mib+1), "2")
	second.say(fmt.Sprintf("alloc %d", 1024*mib), "0")
	if _, r := d.GetMemoryLimits_v1(leaf); r != nvml.ERROR_NOT_FOUND {
		t.Errorf("limits that were cleared: %v", r)
	}
}

// nvml.h calls the soft limit guaranteed. The guarantee remains for a cgroup that was removed before the limit was released (NVIDIA
// Dynamo's documentation).
func TestDriverDeniesReservedMemoryToOthers(t *testing.T) {
	root, leaf, d := limitedCgroup(t)
	inside, outside := start(t, root), start(t, root)
	inside.join(leaf)
	for _, c := range []*client{inside, outside} {
		c.say("init", "0 8 NVIDIA L40S")
		c.say("context 0", "0")
	}
	most := fmt.Sprintf("alloc %d", 40960*mib) // of some 44 GiB
	outside.say(most, "2")
	outside.say(fmt.Sprintf("alloc %d", 34816*mib), "0")
	inside.say(fmt.Sprintf("alloc %d", 10240*mib), "0")
	outside.say("free", "0")
	inside.end()
	if err := os.Remove(leaf); err != nil {
		t.Fatal(err)
	}
	outside.say(most, "2")
	if err := os.Mkdir(leaf, 0o755); err != nil { // another cgroup, of the same name
		t.Fatal(err)
	}
	if _, r := d.GetMemoryLimits_v1(leaf); r != nvml.ERROR_NOT_FOUND {
		t.Errorf("a new cgroup has limits: %v", r)
	}
}

// These rules are documented in nvml.h beside the call, and in NVIDIA's documentation of MPS.
func TestLimitsThatTheDriverDoesNotTakeAreRefused(t *testing.T) {
	_, leaf := cgrouptest.Make(t)
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
