package nvmlstate_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

// BenchmarkEvent measures the way from a posted XID to a client that waits for it, through the C library and through Go; the goal is 10 ms.
func BenchmarkEvent(b *testing.B) {
	p, err := profile.Load("a100-40")
	if err != nil {
		b.Fatal(err)
	}
	load(b, p)
	g := nvmlstate.New(sharedRoot)
	if r := g.Init(); r != nvml.SUCCESS {
		b.Fatal(r)
	}
	f, err := state.Open(sharedRoot)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only a mapping is given up
	for name, library := range map[string]nvml.Interface{"C": clib, "Go": g} {
		b.Run(name, func(b *testing.B) { benchmarkEvents(b, library, f) })
	}
}

func benchmarkEvents(b *testing.B, library nvml.Interface, f *state.File) {
	set, r := library.EventSetCreate()
	if r != nvml.SUCCESS {
		b.Fatal(r)
	}
	defer set.Free()
	d, r := library.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		b.Fatal(r)
	}
	if r := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); r != nvml.SUCCESS {
		b.Fatal(r)
	}
	arrived := make(chan nvml.Return)
	go func() {
		for range b.N {
			_, r := set.Wait(5000)
			arrived <- r
		}
	}()
	b.ResetTimer()
	for range b.N {
		if err := f.Post(state.Event{Type: nvml.EventTypeXidCriticalError, Data: 79, GPUInstance: state.None,
			ComputeInstance: state.None}); err != nil {
			b.Fatal(err)
		}
		if r := <-arrived; r != nvml.SUCCESS {
			b.Fatal(r)
		}
	}
}
