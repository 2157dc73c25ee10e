package devices_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
)

// TestCountedSharesAreGivenUntilTheyEnd uses the scheduler's own allocator. The claims are those of the NVIDIA driver's own tests of
// consumableShares with a number: a plain one, one that requests shares, one that requests memory.
func TestCountedSharesAreGivenUntilTheyEnd(t *testing.T) {
	plain := ask{form: "gpu"}
	some := func(n string) ask { return ask{form: "gpu", shares: n} }
	memory := func(m string) ask { return ask{form: "gpu", memory: m} }
	for _, c := range []struct {
		name, forms string
		asks        []ask
		want        string // y or n for each claim
	}{
		{"plain claims take one share each", "shares_4", repeat(plain, 5), "yyyyn"},
		{"several shares for one claim", "shares_4", []ask{some("3"), some("2"), some("1"), plain}, "ynyn"},
		{"more shares than there are", "shares_4", []ask{some("5")}, "n"},
		{"no share counts as one", "shares_2", repeat(some("0"), 3), "yyn"},
		{"one share a GPU", "shares_1", repeat(plain, 2), "yn"},
		{"memory is counted beside shares", "shares_4",
			[]ask{memory("2Gi"), memory("30Gi"), memory("9Gi"), plain, memory("8Gi"), plain}, "yynyyn"},
		{"cores are not counted", "shares_4", []ask{{form: "gpu", cores: "10"}}, "n"},
		{"a GPU that is not shared has no shares", "whole", []ask{some("1")}, "n"},
		{"a GPU that is shared by memory has no shares", "shareable", []ask{some("1")}, "n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := devices.NewPool(node(a100(0)), devices.Options{Forms: forms(t, c.forms)})
			stepsFit(t, pool)
			s := newScheduler(t, pool)
			got := ""
			for _, a := range c.asks {
				results, ok := s.allocate(a)
				got += map[bool]string{true: "y", false: "n"}[ok]
				if !ok {
					continue
				}
				if d := pool.Device(results[0].Device).As(results[0].ShareID != nil, results[0].ConsumedCapacity); d.Form != devices.Shared {
					t.Errorf("%+v consumed %v and is taken for %s", a, results[0].ConsumedCapacity, d.Form)
				}
			}
			if got != c.want {
				t.Errorf("allocated %s, want %s", got, c.want)
			}
		})
	}
}

// TestSharesArePublishedAsByTheNVIDIADriver compares with applyConsumableShares of dra-driver-nvidia-gpu v0.5.0, name by
// name.
func TestSharesArePublishedAsByTheNVIDIADriver(t *testing.T) {
	uneven := a100(0)
	uneven.MemoryBytes += 12345
	d := devices.NewPool(node(uneven), devices.Options{Forms: forms(t, "shares_4")}).Device("gpu-0").API
	if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations || *d.Attributes["type"].StringValue != "gpu" {
		t.Errorf("published is %+v", d)
	}
	for name, want := range map[resourceapi.QualifiedName][]string{
		"memory": {"40Gi", "0", "0", "40Gi", "1Mi"},
		"shares": {"4", "1", "1", "4", "1"},
	} {
		c := d.Capacity[name]
		if c.RequestPolicy == nil || c.RequestPolicy.ValidRange == nil {
			t.Fatalf("%s has no policy", name)
		}
		r := c.RequestPolicy.ValidRange
		for i, got := range []*resource.Quantity{&c.Value, c.RequestPolicy.Default, r.Min, r.Max, r.Step} {
			if got == nil || got.Cmp(resource.MustParse(want[i])) != 0 {
				t.Errorf("%s: %s, want %s", name, []string{"value", "default", "min", "max", "step"}[i], want[i])
			}
		}
	}
	if len(d.Capacity) != 2 {
		t.Errorf("capacities are %v", d.Capacity)
	}
}

func TestSharesOfAGPUWithUnknownMemory(t *testing.T) {
	unknown := a100(0)
	unknown.MemoryBytes, unknown.MIG = 0, (*inventory.MIG)(nil)
	s := newScheduler(t, devices.NewPool(node(unknown), devices.Options{Forms: forms(t, "shares_2")}))
	for i, want := range []bool{true, true, false} {
		if _, ok := s.allocate(ask{form: "gpu"}); ok != want {
			t.Errorf("claim %d: allocated %t, want %t", i, ok, want)
		}
	}
}

// TestSharesDoNotReplaceAWholeGPU changes the form while a claim has the GPU alone.
func TestSharesDoNotReplaceAWholeGPU(t *testing.T) {
	s := newScheduler(t, devices.NewPool(node(a100(0)), devices.Options{}))
	if _, ok := s.allocate(ask{form: "gpu"}); !ok {
		t.Fatal("the GPU was refused")
	}
	s.slices = newScheduler(t, devices.NewPool(node(a100(0)), devices.Options{Forms: forms(t, "shares_4"),
		Held: []devices.HeldDevice{{Device: "gpu-0"}}})).slices
	if _, ok := s.allocate(ask{form: "gpu"}); ok {
		t.Error("a share was allocated of a GPU that a claim has alone")
	}
}
