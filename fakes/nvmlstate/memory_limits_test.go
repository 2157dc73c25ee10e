package nvmlstate_test

import (
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/cgrouptest"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// Each sees what the other set, and refuses what the other refuses.
func TestLimitsOfMemoryAreTheSameThroughBothLibraries(t *testing.T) {
	_, path := cgrouptest.Make(t)
	c, _ := both(t, "l40s-8")
	p, err := profile.Load("l40s-8")
	if err != nil {
		t.Fatal(err)
	}
	// The C library is that of a driver which lacks no function, and this is its node.
	p.Driver.Version = "999.99"
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Node: 1, Root: sharedRoot, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	c.DeviceGetCount() // has it open the new node's file
	g := nvmlstate.New(sharedRoot)
	if r := g.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	of := map[string]nvml.Device{}
	for name, l := range map[string]nvml.Interface{"C": c, "Go": g} {
		d, r := l.DeviceGetHandleByIndex(0)
		if r != nvml.SUCCESS {
			t.Fatalf("%s: %v", name, r)
		}
		of[name] = d
	}
	memory, _ := of["C"].GetMemoryInfo()
	for _, limits := range []struct {
		path       string
		soft, hard uint64
	}{
		{path, 1 << 30, 2 << 30}, {path, 2, 1}, {path, 0, memory.Total + 1}, {path, memory.Total, memory.Total}, {path + "-gone", 1, 1},
		{t.TempDir(), 1, 1}, {filepath.Join(path, "cgroup.procs"), 1, 1}, {"", 1, 1}, {path, 0, nvml.DEVICE_MEMORY_LIMIT_MAX},
		{path, 1, nvml.DEVICE_MEMORY_LIMIT_MAX}, {path, nvml.DEVICE_MEMORY_LIMIT_MAX, nvml.DEVICE_MEMORY_LIMIT_MAX},
	} {
		for _, setter := range []string{"C", "Go"} {
			if r := of[setter].SetMemoryLimits_v1(path, 0, nvml.DEVICE_MEMORY_LIMIT_MAX); r != nvml.SUCCESS {
				t.Fatal(r)
			}
			said := of[setter].SetMemoryLimits_v1(limits.path, limits.soft, limits.hard)
			if setter == "C" {
				if r := of["Go"].SetMemoryLimits_v1(limits.path, limits.soft, limits.hard); r != said {
					t.Errorf("%+v: C says %v, Go %v", limits, said, r)
				}
			}
			fromC, cr := of["C"].GetMemoryLimits_v1(path)
			fromGo, gr := of["Go"].GetMemoryLimits_v1(path)
			if diff := cmp.Diff(fromC, fromGo); cr != gr || cr == nvml.SUCCESS && diff != "" {
				t.Errorf("%+v set through %s: C %v, Go %v:\n%s", limits, setter, cr, gr, diff)
			}
		}
	}
}

// nvml.h: MIG handles are not supported; no more are GPUs in MIG mode.
func TestMemoryLimitsAreRefusedInMIGMode(t *testing.T) {
	_, path := cgrouptest.Make(t)
	p, err := profile.Load("h100-hgx")
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.Version = "615.10"
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	l := nvmlstate.New(root)
	if r := l.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	d, _ := l.DeviceGetHandleByIndex(0)
	if _, r := d.SetMigMode(nvml.DEVICE_MIG_ENABLE); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	if r := d.SetMemoryLimits_v1(path, 1, 1); r != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("set: %v", r)
	}
	if _, r := d.GetMemoryLimits_v1(path); r != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("get: %v", r)
	}
}
