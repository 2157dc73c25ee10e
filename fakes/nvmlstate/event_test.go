package nvmlstate_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

var deviceType = reflect.TypeFor[nvml.Device]()

func valueOf(v any) reflect.Value { return reflect.ValueOf(v) }

func TestEventReachesTheSetsThatWantIt(t *testing.T) {
	c, g := both(t, "h100-hgx")
	for name, l := range map[string]nvml.Interface{"C": c, "Go": g} {
		t.Run(name, func(t *testing.T) {
			set, r := l.EventSetCreate()
			if r != nvml.SUCCESS {
				t.Fatal(r)
			}
			defer set.Free()
			d, _ := l.DeviceGetHandleByIndex(3)
			if r := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); r != nvml.SUCCESS {
				t.Fatal(r)
			}
			f, err := state.Open(sharedRoot)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			post := func(e state.Event) {
				e.GPUInstance, e.ComputeInstance = state.None, state.None
				if err := f.Post(e); err != nil {
					t.Error(err)
				}
			}
			// Neither another GPU's event nor another type's is for this set.
			post(state.Event{GPU: 2, Type: nvml.EventTypeXidCriticalError, Data: 1})
			post(state.Event{GPU: 3, Type: nvml.EventTypeDoubleBitEccError})
			if _, r := set.Wait(20); r != nvml.ERROR_TIMEOUT {
				t.Fatalf("an event that nobody asked for: %v", r)
			}
			done := make(chan time.Time)
			go func() {
				time.Sleep(30 * time.Millisecond) // the waiter is asleep by then; if not, the test still holds
				sent := time.Now()
				post(state.Event{GPU: 3, Type: nvml.EventTypeXidCriticalError, Data: 79})
				done <- sent
			}()
			e, r := set.Wait(60_000)
			took := time.Since(<-done)
			if r != nvml.SUCCESS || e.EventData != 79 || e.EventType != nvml.EventTypeXidCriticalError {
				t.Fatalf("%+v %v", e, r)
			}
			if e.GpuInstanceId != 0xffffffff || e.ComputeInstanceId != 0xffffffff {
				t.Errorf("a whole GPU's event names instances %#x, %#x", e.GpuInstanceId, e.ComputeInstanceId)
			}
			if index, _ := e.Device.GetIndex(); index != 3 {
				t.Errorf("event of GPU %d", index)
			}
			if took > 30*time.Second {
				t.Errorf("the event took %v: it woke nobody (how fast it does is BenchmarkEvent's to say)", took)
			}
			if _, r := set.Wait(0); r != nvml.ERROR_TIMEOUT {
				t.Errorf("the event came twice: %v", r)
			}
		})
	}
}

func TestLostGPUReturnsItsError(t *testing.T) {
	c, g := both(t, "gb200-nvl72")
	handles := map[string]nvml.Device{}
	handles["C"], _ = c.DeviceGetHandleByIndex(1)
	handles["Go"], _ = g.DeviceGetHandleByIndex(1)
	f, err := state.Open(sharedRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Update(func(b *state.Body) error { b.GPUs[1].Core.Lost = 1; return nil }); err != nil {
		t.Fatal(err)
	}
	for name, d := range handles {
		if _, r := d.GetTemperature(nvml.TEMPERATURE_GPU); r != nvml.ERROR_GPU_IS_LOST {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func TestSlowFunctionIsSlowInBothLibraries(t *testing.T) {
	c, g := both(t, "gb200-nvl72")
	f, err := state.Open(sharedRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const delay = 500 * time.Millisecond
	if err := f.Update(func(b *state.Body) error { return b.Node.SetDelay("nvmlDeviceGetMigMode", delay) }); err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]nvml.Interface{"C": c, "Go": g} {
		d, _ := l.DeviceGetHandleByIndex(0)
		begin := time.Now()
		d.GetMigMode()
		if took := time.Since(begin); took < delay {
			t.Errorf("%s: GetMigMode took %v", name, took)
		}
		fastest := delay // a busy machine may make one slow
		for range 20 {
			begin = time.Now()
			d.GetUUID()
			fastest = min(fastest, time.Since(begin))
		}
		if fastest >= delay {
			t.Errorf("%s: GetUUID, which is not slow, took %v at least", name, fastest)
		}
	}
}
