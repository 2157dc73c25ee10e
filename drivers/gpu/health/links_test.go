package health

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/gputest"
)

// wires are the NVLinks of a machine: up[gpu][link] reports which are up.
type wires struct {
	up [][]bool
	// ends is where a link ends; 0xC0 and more are NVSwitches, 0x10 and more the machine's GPUs.
	ends func(gpu, link int) int
}

func (w *wires) machine(t *testing.T) *gputest.Machine {
	m := gputest.New(t, len(w.up))
	for gpu, g := range m.GPUs {
		g.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
			switch {
			case link >= len(w.up[gpu]):
				return nvml.FEATURE_DISABLED, nvml.ERROR_INVALID_ARGUMENT
			case w.up[gpu][link]:
				return nvml.FEATURE_ENABLED, nvml.SUCCESS
			default:
				return nvml.FEATURE_DISABLED, nvml.SUCCESS
			}
		}
		g.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
			var info nvml.PciInfo
			for i, c := range fmt.Appendf(nil, "00000000:%02X:00.0", w.ends(gpu, link)) {
				info.BusId[i] = int8(c)
			}
			return info, nvml.SUCCESS
		}
	}
	return m
}

func toSwitches(_, link int) int { return 0xC0 + link }

// links returns the faults of links, as "gpu:link".
func (b *bench) links() []string {
	out := []string{}
	for _, f := range b.Faults() {
		if f.Link != nil {
			out = append(out, fmt.Sprintf("%d:%d", b.node.ByUUID(f.GPU).Minor, *f.Link))
		}
	}
	slices.Sort(out)
	return out
}

func TestLinksThatAreDownFromTheStart(t *testing.T) {
	const y, n = true, false
	for name, c := range map[string]struct {
		wires wires
		want  []string
	}{
		"behind switches is missed where the others have it": {wires{[][]bool{{y, y}, {y, n}, {y, y}, {y, y}}, toSwitches}, []string{"1:1"}},
		"two of them on two GPUs too": {wires{[][]bool{{y, y}, {y, n}, {y, y}, {n, y}, {y, y}}, toSwitches},
			[]string{"1:1", "3:0"}},
		"is not missed where most are without":           {wires{[][]bool{{y, y}, {y, n}, {y, n}, {y, n}}, toSwitches}, nil},
		"is not missed where there is but one other GPU": {wires{[][]bool{{y, y}, {y, n}}, toSwitches}, nil},
		"is not missed on GPUs that bridges join: the second bridge of two of them may never have been bought": {
			wires{[][]bool{{y, y}, {y, y}, {y, y}, {y, n}}, func(gpu, _ int) int { return 0x10 + (gpu+1)%4 }}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := benchOn(t, c.wires.machine(t), filepath.Join(t.TempDir(), "faults.json"), "b1")
			b.checkLinks(t.Context())
			if got := b.links(); len(got) > 0 {
				t.Errorf("links %v are taken for broken at the first look, when they may still be trained", got)
			}
			b.checkLinks(t.Context())
			if got := b.links(); !slices.Equal(got, c.want) {
				t.Fatalf("links %v are taken for broken, want %v", got, c.want)
			}
			if len(c.want) == 0 {
				return
			}
			if f := b.Faults()[0]; !f.Fatal || !strings.Contains(f.Message, "is up on") {
				t.Errorf("fault %+v", f)
			}
			for gpu := range c.wires.up {
				c.wires.up[gpu] = []bool{y, y}
			}
			b.heal(t.Context())
			if got := b.links(); len(got) > 0 {
				t.Errorf("links %v are up and still taken for broken", got)
			}
		})
	}
}

func TestLinksThatGoDownWithMIGModeAreNotBroken(t *testing.T) {
	w := &wires{[][]bool{{true, true}, {true, true}, {true, true}}, toSwitches}
	m := w.machine(t)
	b := benchOn(t, m, filepath.Join(t.TempDir(), "faults.json"), "b1")
	b.checkLinks(t.Context())
	if _, ret := m.GPUs[0].SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	w.up[0] = []bool{false, false}
	b.checkLinks(t.Context())
	b.checkLinks(t.Context())
	if got := b.links(); len(got) > 0 {
		t.Fatalf("links %v of a GPU in MIG mode are taken for broken", got)
	}
	// Out of MIG mode the links are trained again, which takes a moment. A link that stays down is reported.
	if _, ret := m.GPUs[0].SetMigMode(nvml.DEVICE_MIG_DISABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	b.checkLinks(t.Context())
	if got := b.links(); len(got) > 0 {
		t.Fatalf("links %v are taken for broken while they are trained", got)
	}
	w.up[0] = []bool{true, false}
	b.checkLinks(t.Context())
	b.checkLinks(t.Context())
	if got := b.links(); !slices.Equal(got, []string{"0:1"}) {
		t.Errorf("links %v are taken for broken, want 0:1", got)
	}
	// The GPU is in MIG mode: the state of its links is unknown and does not matter.
	if _, ret := m.GPUs[0].SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	b.heal(t.Context())
	if got := b.links(); len(got) > 0 {
		t.Errorf("links %v of a GPU in MIG mode are taken for broken", got)
	}
}
