package nvmlstate_test

import (
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

// TestStateDoesNotCrashAClientWhenDamaged writes random bytes into the mapped file, truncates it, and then calls everything. Whatever
// the calls return, the process must not crash. The file is repaired each time, under the same mappings.
func TestStateDoesNotCrashAClientWhenDamaged(t *testing.T) {
	c, g := both(t, "a100-40")
	for _, l := range []nvml.Interface{c, g} {
		d, _ := l.DeviceGetHandleByIndex(0)
		enableMIG(t, 0)
		info, _ := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
		d.CreateGpuInstance(&info)
	}
	path := state.Path(sharedRoot)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 150 {
		damaged := append([]byte(nil), whole...)
		for range 1 + random.IntN(200) {
			at := random.IntN(len(damaged))
			if random.IntN(3) == 0 {
				at = random.IntN(64) // the header's numbers
			}
			damaged[at] = byte(random.Uint32())
		}
		if round%10 == 9 {
			damaged = damaged[:random.IntN(len(damaged))]
		}
		overwrite(t, path, damaged)
		for _, l := range []nvml.Interface{c, g} {
			callEverything(l)
		}
		overwrite(t, path, whole)
	}
	if n, r := c.DeviceGetCount(); r != nvml.SUCCESS || n != 8 {
		t.Errorf("after all that: %d GPUs, %v", n, r)
	}
}

// overwrite changes the file in place, so that mappings of it change too.
func overwrite(t *testing.T, path string, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(int64(len(data))); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
}

func callEverything(l nvml.Interface) {
	n, _ := l.DeviceGetCount()
	for i := range min(n, 40) {
		d, r := l.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			continue
		}
		devices := []nvml.Device{d}
		if m, r := d.GetMigDeviceHandleByIndex(0); r == nvml.SUCCESS {
			devices = append(devices, m)
		}
		for _, d := range devices {
			callGetters(reflect.ValueOf(d), deviceType)
		}
		d.GetNvLinkState(3)
		for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
			info, r := d.GetGpuInstanceProfileInfo(kind)
			if r != nvml.SUCCESS {
				continue
			}
			d.GetGpuInstancePossiblePlacements(&info)
			d.GetGpuInstanceRemainingCapacity(&info)
			d.CreateGpuInstance(&info)
			// The count of instances comes from the profile, which may be nonsense now; go-nvml allocates that many.
			if info.InstanceCount > 64 {
				continue
			}
			list, _ := d.GetGpuInstances(&info)
			for _, gi := range list {
				callGetters(reflect.ValueOf(gi), reflect.TypeFor[nvml.GpuInstance]())
				for k := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
					ci, r := gi.GetComputeInstanceProfileInfo(k, 0)
					if r == nvml.SUCCESS && ci.InstanceCount <= 64 {
						gi.GetComputeInstanceRemainingCapacity(&ci)
						gi.CreateComputeInstance(&ci)
						gi.GetComputeInstances(&ci)
					}
				}
				gi.Destroy()
			}
		}
	}
}

func callGetters(v reflect.Value, in reflect.Type) {
	for i := range in.NumMethod() {
		m := in.Method(i)
		if m.Type.NumIn() == 0 && m.Type.NumOut() > 1 {
			v.MethodByName(m.Name).Call(nil)
		}
	}
}

// TestCountsSurviveADamagedProfile uses profiles of 32 slices: their mask in a word of 32 bits equals that of no slice.
func TestCountsSurviveADamagedProfile(t *testing.T) {
	c, g := both(t, "a100-40")
	f, err := state.Open(sharedRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for name, l := range map[string]nvml.Interface{"C": c, "Go": g} {
		d, _ := l.DeviceGetHandleByIndex(0)
		enableMIG(t, 0)
		info, _ := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
		gi, r := d.CreateGpuInstance(&info)
		if r != nvml.SUCCESS {
			t.Fatal(r)
		}
		ci, r := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
		if r != nvml.SUCCESS {
			t.Fatal(r)
		}
		slices := func(instance, compute uint32) {
			t.Helper()
			err := f.Update(func(b *state.Body) error {
				for i := range b.Node.Model.MIGProfiles {
					if p := &b.Node.Model.MIGProfiles[i]; p.ID == info.Id {
						p.Slices, p.CIProfiles[0].Slices = instance, compute
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		slices(64, 32)
		done := make(chan nvml.Return)
		go func() {
			_, r := gi.GetComputeInstanceRemainingCapacity(&ci)
			done <- r
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%s: it counts for ever", name)
		}
		slices(1, 1)
		gi.Destroy()
	}
}
