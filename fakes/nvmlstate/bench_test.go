package nvmlstate_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
)

// BenchmarkGetter measures common getters through the C library (go-nvml and cgo included), through Go, and through go-nvml's own mock.
func BenchmarkGetter(b *testing.B) {
	p, err := profile.Load("a100-40")
	if err != nil {
		b.Fatal(err)
	}
	load(b, p)
	g := nvmlstate.New(sharedRoot)
	if r := g.Init(); r != nvml.SUCCESS {
		b.Fatal(r)
	}
	for _, l := range []struct {
		name string
		lib  nvml.Interface
	}{{"C", clib}, {"Go", g}, {"mock", dgxa100.New()}} {
		d, r := l.lib.DeviceGetHandleByIndex(0)
		if r != nvml.SUCCESS {
			b.Fatal(r)
		}
		b.Run("UUID/"+l.name, func(b *testing.B) {
			for b.Loop() {
				d.GetUUID()
			}
		})
		b.Run("MemoryInfo/"+l.name, func(b *testing.B) {
			for b.Loop() {
				d.GetMemoryInfo()
			}
		})
		b.Run("MinorNumber/"+l.name, func(b *testing.B) {
			for b.Loop() {
				d.GetMinorNumber()
			}
		})
	}
}
