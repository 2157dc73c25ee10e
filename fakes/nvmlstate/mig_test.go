package nvmlstate_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// TestMIGRulesOfCAndGoAgree makes the same random change through both libraries, from the same state, and compares the code and
// the state that each leaves.
func TestMIGRulesOfCAndGoAgree(t *testing.T) {
	for _, name := range []string{"gb200-nvl72", "a100-40", "h100-hgx"} {
		t.Run(name, func(t *testing.T) {
			c, g := both(t, name)
			f, err := state.Open(sharedRoot)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			enableMIG(t, 0)
			random := rand.New(rand.NewPCG(1, 2))
			outcomes := map[nvml.Return]int{}
			for step := range 1500 {
				op := randomChange(random)
				before := snapshot(t, f)
				wantCode := op(c)
				want := snapshot(t, f)
				restore(t, f, before)
				gotCode := op(g)
				if got := snapshot(t, f); got != want || wantCode != gotCode {
					t.Fatalf("step %d: C %v, Go %v; state (-C +Go):\n%s", step, wantCode, gotCode, cmp.Diff(want, got))
				}
				outcomes[gotCode]++
				if step%100 == 0 {
					compareInstances(t, c, g)
				}
			}
			for _, code := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_INSUFFICIENT_RESOURCES, nvml.ERROR_IN_USE, nvml.ERROR_INVALID_ARGUMENT} {
				if outcomes[code] == 0 {
					t.Errorf("no step ended in %v: %v", code, outcomes)
				}
			}
		})
	}
}

// compareInstances compares what the two libraries report for the compute profiles of GPU 0's instances.
func compareInstances(t *testing.T, c, g nvml.Interface) {
	t.Helper()
	cd, _ := c.DeviceGetHandleByIndex(0)
	gd, _ := g.DeviceGetHandleByIndex(0)
	for id := range mig.GPUInstanceIDs {
		ci, code := cd.GetGpuInstanceById(id)
		if code != nvml.SUCCESS {
			continue
		}
		gi, code := gd.GetGpuInstanceById(id)
		if code != nvml.SUCCESS {
			t.Fatalf("GPU instance %d: %v", id, code)
		}
		for kind := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT + 1 {
			compareVersions(t, ci, gi, "GetComputeInstanceProfileInfoV", kind, 0)
		}
	}
}

func snapshot(t *testing.T, f *state.File) state.GPU {
	t.Helper()
	b, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	return *b.GPUs[0]
}

func restore(t *testing.T, f *state.File, g state.GPU) {
	t.Helper()
	if err := f.Update(func(b *state.Body) error { *b.GPUs[0] = g; return nil }); err != nil {
		t.Fatal(err)
	}
}

// randomChange picks a change of GPU 0's layout; its object may not exist.
func randomChange(r *rand.Rand) func(nvml.Interface) nvml.Return {
	ids := []uint32{19, 20, 15, 14, 9, 5, 0, 99}
	id, start, gi, ci, compute := ids[r.IntN(len(ids))], uint32(r.IntN(8)), r.IntN(15), r.IntN(8), uint32(r.IntN(6))
	instance := func(l nvml.Interface, fn func(nvml.GpuInstance) nvml.Return) nvml.Return {
		d, _ := l.DeviceGetHandleByIndex(0)
		g, code := d.GetGpuInstanceById(gi)
		if code != nvml.SUCCESS {
			return code
		}
		return fn(g)
	}
	switch r.IntN(12) {
	case 0:
		mode := r.IntN(5) // mostly on
		return func(l nvml.Interface) nvml.Return {
			d, _ := l.DeviceGetHandleByIndex(0)
			activation, code := d.SetMigMode(min(mode, 1))
			return max(activation, code)
		}
	case 1, 2, 3:
		return func(l nvml.Interface) nvml.Return {
			d, _ := l.DeviceGetHandleByIndex(0)
			_, code := d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: id})
			return code
		}
	case 4:
		return func(l nvml.Interface) nvml.Return {
			d, _ := l.DeviceGetHandleByIndex(0)
			info := nvml.GpuInstanceProfileInfo{Id: id}
			places, code := d.GetGpuInstancePossiblePlacements(&info)
			if code != nvml.SUCCESS {
				return code
			}
			_, code = d.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: start, Size: places[0].Size})
			return code
		}
	case 5, 6, 7:
		return func(l nvml.Interface) nvml.Return {
			return instance(l, func(g nvml.GpuInstance) nvml.Return {
				_, code := g.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: compute})
				return code
			})
		}
	case 8, 9:
		return func(l nvml.Interface) nvml.Return {
			return instance(l, func(g nvml.GpuInstance) nvml.Return {
				c, code := g.GetComputeInstanceById(ci)
				if code != nvml.SUCCESS {
					return code
				}
				return c.Destroy()
			})
		}
	default:
		return func(l nvml.Interface) nvml.Return {
			return instance(l, func(g nvml.GpuInstance) nvml.Return { return g.Destroy() })
		}
	}
}

// enableMIG brings a GPU of the shared node into MIG mode, also while it is open.
func enableMIG(t *testing.T, gpu int) {
	t.Helper()
	if err := fault.Apply(sharedRoot, "mig-mode", fault.Arguments{"gpu": strconv.Itoa(gpu)}); err != nil {
		t.Fatal(err)
	}
}

// The answer to a change of mode: nvml.h, nvmlDeviceSetMigMode, and the MIG user guide's Deployment Considerations.
func TestMIGModeIsPendingOnAmpereAndCurrentOnHopper(t *testing.T) {
	for name, pending := range map[string]bool{"a100-40": true, "a30-4": true, "h100-hgx": false, "b200-hgx": false} {
		c, g := both(t, name)
		for client, l := range map[string]nvml.Interface{"C": c, "Go": g} {
			d, _ := l.DeviceGetHandleByIndex(1)
			activation, r := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
			current, next, _ := d.GetMigMode()
			if pending && (r != nvml.SUCCESS || activation != nvml.ERROR_IN_USE || current != 0 || next != 1) {
				t.Errorf("%s, %s: %v, activation %v, mode %d, pending %d; want a mode that is pending, since the other client has the GPU open", name,
					client, r, activation, current, next)
			}
			if !pending && (r != nvml.SUCCESS || activation != nvml.SUCCESS || current != 1 || next != 1) {
				t.Errorf("%s, %s: %v, activation %v, mode %d, pending %d; want it on", name, client, r, activation, current, next)
			}
		}
		// Each resets the GPU when it is the only client: the client that was started last has ended.
		if g.Shutdown() != nvml.SUCCESS {
			t.Fatal("shutdown")
		}
		d, _ := c.DeviceGetHandleByIndex(1)
		if activation, _ := d.SetMigMode(nvml.DEVICE_MIG_ENABLE); pending && activation != nvml.ERROR_RESET_REQUIRED {
			t.Errorf("%s: activation %v for the only client", name, activation)
		}
	}
}

// NVIDIA's DGX Spark user guide, known issues: memory usage is not supported on the integrated GPU.
func TestMemoryOfAnIntegratedGPUIsNotReported(t *testing.T) {
	c, g := both(t, "gb10-spark")
	for name, l := range map[string]nvml.Interface{"C": c, "Go": g} {
		d, _ := l.DeviceGetHandleByIndex(0)
		if _, r := d.GetMemoryInfo(); r != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("%s: GetMemoryInfo: %v", name, r)
		}
		if _, r := d.GetMemoryInfo_v2(); r != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("%s: GetMemoryInfo_v2: %v", name, r)
		}
	}
}

// nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH. That the C library does so too is tested in nvml/nvmltest.
func TestLibraryDoesNotStartWithModulesOfAnotherVersion(t *testing.T) {
	p, err := profile.Load("t4-edge")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	full := "libnvidia-ml.so." + p.Driver.Version
	libraries := filepath.Join(root, "driver/usr/lib64")
	if err := errors.Join(os.WriteFile(filepath.Join(libraries, full), nil, 0o755),
		os.Symlink(full, filepath.Join(libraries, "libnvidia-ml.so.1"))); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]nvml.Return{"535.261.03": nvml.ERROR_LIB_RM_VERSION_MISMATCH, p.Driver.Version: nvml.SUCCESS} {
		if err := fault.Apply(root, "driver-version", fault.Arguments{"version": version}); err != nil {
			t.Fatal(err)
		}
		if r := nvmlstate.New(root).Init(); r != want {
			t.Errorf("modules of %s: Init: %v, want %v", version, r, want)
		}
	}
}

// The kernel module makes no nodes; NVML does in its own /dev (mknod_helper in NVIDIA/nvidia-modprobe), and nothing takes them away again.
func TestCapabilityNodesAppearOnlyInADevThatTheClientCanWrite(t *testing.T) {
	c, writer := both(t, "h100-hgx")
	reader := nvmlstate.New(sharedRoot, nvmlstate.ReadOnlyDev)
	if r := reader.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	for gpu, client := range map[int]nvml.Interface{0: c, 1: writer, 2: reader} {
		d, _ := client.DeviceGetHandleByIndex(gpu)
		d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
		info, _ := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
		gi, r := d.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: 0, Size: 1})
		if r != nvml.SUCCESS {
			t.Fatalf("GPU %d: %v", gpu, r)
		}
		i, _ := gi.GetInfo()
		if _, err := os.Stat(filepath.Join(sharedRoot, fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/access", gpu,
			i.Id))); err != nil {
			t.Errorf("GPU %d: the kernel shows no capability: %v", gpu, err)
		}
		node := filepath.Join(sharedRoot, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", tree.CapabilityMinor(gpu, int(i.Id), -1)))
		if _, err := os.Stat(node); (err == nil) != (client != reader) {
			t.Errorf("GPU %d: its node in /dev: %v", gpu, err)
		}
		if r := gi.Destroy(); r != nvml.SUCCESS {
			t.Error(r)
		}
		if _, err := os.Stat(node); (err == nil) != (client != reader) {
			t.Errorf("GPU %d: its node in /dev once the instance is gone: %v", gpu, err)
		}
	}
}

func TestMIGLayoutIsVisibleToEveryClient(t *testing.T) {
	c, g := both(t, "a100-40")
	d, _ := c.DeviceGetHandleByIndex(2)
	enableMIG(t, 2)
	for _, kind := range []int{nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE} {
		info, _ := d.GetGpuInstanceProfileInfo(kind)
		gi, r := d.CreateGpuInstance(&info)
		if r != nvml.SUCCESS {
			t.Fatalf("profile %d: %v", kind, r)
		}
		slices, _ := gi.GetComputeInstanceProfileInfo(kind, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if _, r := gi.CreateComputeInstance(&slices); r != nvml.SUCCESS {
			t.Fatalf("compute instance of profile %d: %v", kind, r)
		}
	}
	// NVIDIA's user guide shows these instance IDs for this order of creation.
	var ids []int
	other, _ := g.DeviceGetHandleByIndex(2)
	most, _ := other.GetMaxMigDeviceCount()
	for i := range most {
		m, r := other.GetMigDeviceHandleByIndex(i)
		if r != nvml.SUCCESS {
			break
		}
		id, _ := m.GetGpuInstanceId()
		ids = append(ids, id)
		uuid, _ := m.GetUUID()
		viaC, r := c.DeviceGetHandleByUUID(uuid)
		if r != nvml.SUCCESS {
			t.Fatalf("%s: %v", uuid, r)
		}
		wantName, _ := m.GetName()
		if name, _ := viaC.GetName(); name != wantName {
			t.Errorf("C %q, Go %q", name, wantName)
		}
		access := filepath.Join(sharedRoot, "proc/driver/nvidia/capabilities/gpu2/mig", "gi"+string(rune('0'+id)), "access")
		if _, err := os.Stat(access); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]int{2, 3, 9}, ids); diff != "" {
		t.Errorf("GPU instances:\n%s", diff)
	}
	compareGetters(t, "GPU", valueOf(d), valueOf(other), deviceType)
}

func TestMIGIsNotPossibleOnAT4(t *testing.T) {
	c, g := both(t, "t4-edge")
	for name, l := range map[string]nvml.Interface{"C": c, "Go": g} {
		d, _ := l.DeviceGetHandleByIndex(0)
		if _, r := d.SetMigMode(nvml.DEVICE_MIG_ENABLE); r != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("%s: SetMigMode: %v", name, r)
		}
		if n, r := d.GetMaxMigDeviceCount(); r != nvml.SUCCESS || n != 0 {
			t.Errorf("%s: GetMaxMigDeviceCount: %d %v", name, n, r)
		}
	}
}

func TestCapacityFallsWithEveryInstance(t *testing.T) {
	_, _ = both(t, "gb200-nvl72")
	f, err := state.Open(sharedRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	m, gpu := &b.Node.Model, b.GPUs[0]
	gpu.Core.MIGCurrent = 1
	smallest := mig.ProfileIndex(m, 19)
	for left := 7; left > 0; left-- {
		if n := mig.Capacity(m, gpu, smallest); n != left {
			t.Fatalf("capacity %d; want %d", n, left)
		}
		if _, err := mig.CreateGPUInstance(m, gpu, smallest, mig.Anywhere); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := mig.CreateGPUInstance(m, gpu, smallest, mig.Anywhere); err == nil {
		t.Error("an eighth instance was made")
	}
}
