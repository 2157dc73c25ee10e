package nvmlstate_test

import (
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// BenchmarkEvent measures the way from a posted XID to a client that waits for it, through the C library and through Go; the goal is 10 ms.
func BenchmarkEvent(b *testing.B) {
	p, err := profile.Load("a100-40")
	if err != nil {
		b.Fatal(err)
	}
	o := tree.Options{Profile: p, Root: sharedRoot, PlainDevices: true}
	if !loaded {
		o.LibraryDir = filepath.Join(built.Dir(b), "lib")
	}
	if err := tree.Render(b.Context(), o); err != nil {
		b.Fatal(err)
	}
	if !loaded {
		clib, loaded = nvml.New(nvml.WithLibraryPath(filepath.Join(sharedRoot, "driver/usr/lib64/libnvidia-ml.so.1"))), true
		if r := clib.Init(); r != nvml.SUCCESS {
			b.Fatal(r)
		}
	}
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
