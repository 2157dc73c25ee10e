package devices_test

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
)

func forms(t *testing.T, text string) devices.Forms {
	t.Helper()
	f, err := devices.ParseForms(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// eight are the GPUs of one node.
func eight() []*inventory.GPU {
	var gpus []*inventory.GPU
	for i := range 8 {
		g := a100(i)
		g.NVLinkDomain, g.AddressingMode, g.Place.Switch = a100(0).UUID, "HMM", fmt.Sprintf("0000:%02x:00.0", 0x80+i)
		gpus = append(gpus, g)
	}
	return gpus
}

// TestFormsPublishOnlyNeededDevices bounds what the API server stores and the scheduler considers, for a node of eight GPUs.
func TestFormsPublishOnlyNeededDevices(t *testing.T) {
	ten := devices.Profile{Name: "ten", Share: devices.Share{Memory: 10 * gib, Cores: 25}}
	for _, c := range []struct {
		name     string
		options  devices.Options
		slices   int
		devices  int
		counters int
		bytes    int
	}{
		{"whole", devices.Options{}, 1, 8, 0, 6_000},
		{"shareable", devices.Options{Forms: forms(t, "shareable")}, 1, 8, 0, 7_000},
		{"shares", devices.Options{Forms: forms(t, "shares_4")}, 1, 8, 0, 7_000},
		{"one MIG profile", devices.Options{Forms: forms(t, "mig_1g.5gb")}, 1, 56, 0, 48_000},
		{"one MIG profile of which fewer fit than have places", devices.Options{Forms: forms(t, "mig_1g.5gb-me")}, 2, 56, 8 * (8 + 1), 52_000},
		{"MIG profiles that overlap", devices.Options{Forms: forms(t, "mig_1g.5gb_3g.20gb")}, 3, 72, 8 * 8, 64_000},
		{"one VGPUProfile and nothing else", devices.Options{Forms: forms(t, "profiles"), Profiles: []devices.Profile{ten}}, 1, 8, 0, 7_000},
		{"whole, and a VGPUProfile", devices.Options{Profiles: []devices.Profile{ten}}, 2, 16, 8, 13_000},
		{"flexible", devices.Options{Forms: flexible}, 5, 8 * 27, 8 * 9, 200_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			layout := devices.NewPool(node(eight()...), c.options).Slices(nil)
			counters, all, bytes := 0, 0, 0
			for _, s := range layout {
				all += len(s.Devices)
				for _, set := range s.SharedCounters {
					counters += len(set.Counters)
				}
				published := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: devices.Driver, Devices: s.Devices,
					SharedCounters: s.SharedCounters}}
				bytes += published.Size()
			}
			t.Logf("%d slices, %d devices, %d counters, %d bytes in etcd", len(layout), all, counters, bytes)
			if len(layout) != c.slices || all != c.devices || counters != c.counters || bytes > c.bytes {
				t.Errorf("%d slices, %d devices, %d counters, %d bytes; want %d, %d, %d and at most %d", len(layout), all, counters, bytes, c.slices,
					c.devices, c.counters, c.bytes)
			}
		})
	}
}

// TestShareableGPUIsWholeForAPlainClaim uses the scheduler's own allocator.
func TestShareableGPUIsWholeForAPlainClaim(t *testing.T) {
	plain := ask{form: "gpu"}
	share := func(memory string) ask { return ask{form: "gpu", memory: memory} }
	for _, c := range []struct {
		name string
		asks []ask
		want string // y or n for each claim
	}{
		{"two plain claims", []ask{plain, plain}, "yn"},
		{"a share after a plain claim", []ask{plain, share("1Gi")}, "yn"},
		{"a plain claim after a share", []ask{share("1Gi"), plain, share("1Gi")}, "yny"},
		{"shares until the memory ends", repeat(share("15Gi"), 3), "yyn"},
		{"shares until the cores end, ten percent each", repeat(share("1Gi"), 11), "yyyyyyyyyyn"},
		{"a share of no memory has a MiB, and keeps a plain claim away", []ask{share("0"), plain}, "yn"},
		{"all memory by its figure is the GPU whole", []ask{share("40Gi"), share("1Mi")}, "yn"},
		{"cores alone take all memory", []ask{{form: "gpu", cores: "50"}, share("1Mi")}, "yn"},
		{"more than there is", []ask{share("41Gi")}, "n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := devices.NewPool(node(a100(0)), devices.Options{Forms: forms(t, "shareable")})
			stepsFit(t, pool)
			s := newScheduler(t, pool)
			got := ""
			for _, a := range c.asks {
				results, ok := s.allocate(a)
				got += map[bool]string{true: "y", false: "n"}[ok]
				if !ok {
					continue
				}
				// Prepare distinguishes the two by the consumed capacity.
				wholly := a.memory == "" || a.memory == "40Gi"
				form := pool.Device(results[0].Device).As(results[0].ShareID != nil, results[0].ConsumedCapacity).Form
				if (form == devices.Whole) != wholly {
					t.Errorf("%+v consumed %v and is taken for %s", a, results[0].ConsumedCapacity, form)
				}
			}
			if got != c.want {
				t.Errorf("allocated %s, want %s", got, c.want)
			}
		})
	}
}

func TestMIGPlacementsOfOneProfileDoNotNeedCounters(t *testing.T) {
	for _, p := range a100(0).MIG.Profiles {
		t.Run(p.Name, func(t *testing.T) {
			s := newScheduler(t, devices.NewPool(node(a100(0)), devices.Options{Forms: devices.Forms{Mode: devices.ModeMIG,
				MIGProfiles: []string{p.Name}}}))
			got := 0
			for range 10 {
				if _, ok := s.allocate(ask{form: "mig"}); ok {
					got++
				}
			}
			if got != p.MaxInstances {
				t.Errorf("%d fit, want %d", got, p.MaxInstances)
			}
			if _, ok := s.allocate(ask{form: "gpu"}); ok {
				t.Error("the GPU can be had whole besides")
			}
		})
	}
}

// TestFormsKeepDevicesOfClaimsPublished changes a GPU's forms under claims.
func TestFormsKeepDevicesOfClaimsPublished(t *testing.T) {
	ten := devices.Profile{Name: "ten", Share: devices.Share{Memory: 10 * gib}}
	for _, c := range []struct {
		name, forms string
		held        []devices.HeldDevice
		want        string // names, a withdrawn one in brackets
	}{
		{"a share of before, and whole wanted", "whole", []devices.HeldDevice{{Device: "gpu-0-shared", Shared: true}}, "(gpu-0-shared) gpu-1"},
		{"a profile's share, and others wanted besides", "shareable", []devices.HeldDevice{{Device: "gpu-0-shared-ten", Shared: true}},
			"gpu-0 gpu-0-shared-ten gpu-1 gpu-1-shared-ten"},
		{"a share of a profile that is gone", "whole", []devices.HeldDevice{{Device: "gpu-0-shared-gone", Shared: true}},
			"(gpu-0-shared-gone) gpu-1"},
		{"two instances of before", "whole", []devices.HeldDevice{{Device: "gpu-0-mig-1g5gb-19-3"}, {Device: "gpu-0-mig-3g20gb-9-4"}},
			"gpu-0-mig-1g5gb-19-3 gpu-0-mig-3g20gb-9-4 gpu-1"},
		{"whole held, and shareable wanted", "shareable", []devices.HeldDevice{{Device: "gpu-0"}}, "gpu-0 gpu-1"},
		{"shares held, and whole wanted", "whole", []devices.HeldDevice{{Device: "gpu-0", Shared: true}}, "(gpu-0) gpu-1"},
		{"shares held, and MIG wanted", "mig_3g.20gb", []devices.HeldDevice{{Device: "gpu-0", Shared: true}, {Device: "gpu-0", Shared: true}},
			"(gpu-0) gpu-1-mig-3g20gb-9-0 gpu-1-mig-3g20gb-9-4"},
		{"shares by memory held, and counted ones wanted", "shares_4", []devices.HeldDevice{{Device: "gpu-0", Shared: true}}, "(gpu-0) gpu-1"},
		{"counted shares held, and shares by memory wanted", "shareable", []devices.HeldDevice{{Device: "gpu-0", Shared: true, Counted: true}},
			"(gpu-0) gpu-1"},
		{"counted shares held, and another number of them wanted", "shares_2",
			[]devices.HeldDevice{{Device: "gpu-0", Shared: true, Counted: true}, {Device: "gpu-0", Shared: true, Counted: true}}, "gpu-0 gpu-1"},
		{"whole held, and counted shares wanted", "shares_2", []devices.HeldDevice{{Device: "gpu-0"}}, "gpu-0 gpu-1"},
		{"both kinds of shares held", "shares_2", []devices.HeldDevice{{Device: "gpu-0", Shared: true, Counted: true},
			{Device: "gpu-0", Shared: true}}, "(gpu-0) gpu-1"},
		{"an instance of the wanted profile held", "mig_3g.20gb", []devices.HeldDevice{{Device: "gpu-0-mig-3g20gb-9-4"}},
			"gpu-0-mig-3g20gb-9-0 gpu-0-mig-3g20gb-9-4 gpu-1-mig-3g20gb-9-0 gpu-1-mig-3g20gb-9-4"},
		{"an instance of another profile held", "mig_3g.20gb", []devices.HeldDevice{{Device: "gpu-0-mig-1g5gb-19-3"}},
			"gpu-0-mig-1g5gb-19-3 gpu-1-mig-3g20gb-9-0 gpu-1-mig-3g20gb-9-4"},
		{"a device that no GPU can be", "whole", []devices.HeldDevice{{Device: "gpu-0-mig-9g90gb-1-1"}, {Device: "gpu-17"}}, "gpu-0 gpu-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			options := devices.Options{Forms: forms(t, c.forms), Held: c.held}
			if strings.Contains(c.name, "profile's share") {
				options.Profiles = []devices.Profile{ten}
			}
			pool := devices.NewPool(node(a100(0), a100(1)), options)
			var got []string
			for _, s := range pool.Slices(nil) {
				for _, d := range s.Devices {
					name := d.Name
					if len(d.Taints) > 0 {
						name = "(" + name + ")"
					}
					got = append(got, name)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("published %s, want %s", strings.Join(got, " "), c.want)
			}
		})
	}
}

// TestSharesKeepTheirGPUFromAPlainClaimWhileItIsWithdrawn covers the one case in which the scheduler sees another device under the
// same name.
func TestSharesKeepTheirGPUFromAPlainClaimWhileItIsWithdrawn(t *testing.T) {
	s := newScheduler(t, devices.NewPool(node(a100(0)), devices.Options{Forms: forms(t, "shareable")}))
	if _, ok := s.allocate(ask{form: "gpu", memory: "1Gi"}); !ok {
		t.Fatal("the share was refused")
	}
	held := []devices.HeldDevice{{Device: "gpu-0", Shared: true}}
	s.slices = newScheduler(t, devices.NewPool(node(a100(0)), devices.Options{Held: held})).slices
	for _, a := range []ask{{form: "gpu"}, {form: "gpu", memory: "1Gi"}} {
		if _, ok := s.allocate(a); ok {
			t.Errorf("%+v was allocated a GPU that is withdrawn", a)
		}
	}
}

func TestFormsReportAnImpossibleForm(t *testing.T) {
	uncut, unknown := a100(1), a100(2)
	uncut.MIG, uncut.ProductName, unknown.MemoryBytes = nil, "NVIDIA L40S", 0
	for text, want := range map[string]struct{ published, says string }{
		"mig_1g.5gb_1g.99gb": {"gpu-1", "has no MIG profile 1g.99gb: it has 1g.5gb, 2g.10gb"},
		"mig_9g.99gb":        {"gpu-0", "it is offered whole"},
		"shareable":          {"gpu-2", "does not report its memory"},
		"profiles":           {"gpu-0", "no VGPUProfile"},
	} {
		pool := devices.NewPool(node(a100(0), uncut, unknown), devices.Options{Forms: forms(t, text)})
		if d := pool.Device(want.published); d == nil || !pool.Published(want.published) || d.API.AllowMultipleAllocations != nil {
			t.Errorf("%s: %s is not offered whole", text, want.published)
		}
		if all := fmt.Sprint(pool.Problems); !strings.Contains(all, want.says) {
			t.Errorf("%s: it says %s, want %s", text, all, want.says)
		}
	}
}

func TestFormsFindAnUnpublishedDevice(t *testing.T) {
	pool := devices.NewPool(node(a100(0)), devices.Options{})
	for name, form := range map[string]devices.Form{"gpu-0": devices.Whole, "gpu-0-shared": devices.Shared, "gpu-0-shared-x": devices.Shared,
		"gpu-0-mig-1g5gb-19-3": devices.MIG} {
		if d := pool.Device(name); d == nil || d.Form != form {
			t.Errorf("%s is %v, want form %s", name, d, form)
		}
	}
	for _, name := range []string{"gpu-1", "gpu-00", "gpu-0-mig-1g5gb-19-7", "gpu-0shared", ""} {
		if d := pool.Device(name); d != nil {
			t.Errorf("%q is %s", name, d.Name())
		}
	}
	quantity := map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")}
	if form := pool.Device("gpu-0").As(true, quantity).Form; form != devices.Shared {
		t.Errorf("a share of a GPU that was shareable a moment before is taken for %s", form)
	}
}
