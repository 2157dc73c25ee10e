package devices_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
)

// TestPoolIsAcceptedByTheAPI checks the API server's limits on slices in 1.36.
func TestPoolIsAcceptedByTheAPI(t *testing.T) {
	var gpus []*inventory.GPU
	for i := range 16 {
		gpus = append(gpus, a100(i))
	}
	pool := devices.NewPool(node(gpus...), devices.Options{Forms: flexible})
	names := map[string]bool{}
	counters := map[string]map[string]resourceapi.Counter{}
	slices := pool.Slices(nil)
	for _, s := range slices {
		if len(s.SharedCounters) > 0 && len(s.Devices) > 0 {
			t.Error("a slice has both counters and devices")
		}
		if len(s.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets {
			t.Errorf("a slice has %d counter sets", len(s.SharedCounters))
		}
		for _, set := range s.SharedCounters {
			counters[set.Name] = set.Counters
			if len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
				t.Errorf("%s has %d counters", set.Name, len(set.Counters))
			}
		}
		if len(s.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("a slice has %d devices", len(s.Devices))
		}
		for _, d := range s.Devices {
			for _, problem := range validation.IsDNS1123Label(d.Name) {
				t.Errorf("%s: %s", d.Name, problem)
			}
			if names[d.Name] {
				t.Errorf("%s twice", d.Name)
			}
			names[d.Name] = true
			if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("%s has %d attributes and capacities", d.Name, n)
			}
			for _, draw := range d.ConsumesCounters {
				for name, c := range draw.Counters {
					total, ok := counters[draw.CounterSet][name]
					if !ok || c.Value.Cmp(total.Value) > 0 {
						t.Errorf("%s draws %s of %s, which holds %s", d.Name, c.Value.String(), name, total.Value.String())
					}
				}
			}
		}
	}
	if want := 16 * 27; len(names) != want {
		t.Errorf("%d devices, want %d (27 a GPU: whole, shared and 25 placements)", len(names), want)
	}
}

func TestStaticInstancesAreAllThatIsOfferedOfTheirGPU(t *testing.T) {
	a, b := a100(0), a100(1)
	pool := devices.NewPool(node(a, b), devices.Options{Forms: flexible, Static: map[string][]devices.Instance{
		a.UUID: {{ProfileID: 19, Start: 2, UUID: "MIG-2"}, {ProfileID: 9, Start: 4, UUID: "MIG-4"}, {ProfileID: 77, Start: 0}},
	}})
	if got := pool.Device("gpu-0-mig-1g5gb-19-2").API.Attributes["uuid"].StringValue; got == nil || *got != "MIG-2" {
		t.Errorf("the instance's uuid is %v", got)
	}
	var got []string
	for _, d := range pool.Devices() {
		if d.GPU == a {
			got = append(got, d.Name())
			if !d.Static {
				t.Errorf("%s is not marked static", d.Name())
			}
		}
	}
	if want := "gpu-0-mig-1g5gb-19-2 gpu-0-mig-3g20gb-9-4"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if len(pool.Problems) != 1 || !strings.Contains(pool.Problems[0].Error(), "profile 77") {
		t.Errorf("the unknown profile is not told of: %v", pool.Problems)
	}
}

func TestPoolPublishesAttributesOfWholeGPU(t *testing.T) {
	g := a100(5)
	g.Clique, g.NVLinkDomain, g.AddressingMode, g.Place.Switch = "c0ffee.3", "c0ffee", "ATS", "0000:0a:00.0"
	d := devices.NewPool(node(g), devices.Options{Forms: flexible}).Device("gpu-5")
	for name, want := range map[resourceapi.QualifiedName]string{
		"type": "gpu", "uuid": g.UUID, "productName": "NVIDIA A100-SXM4-40GB", "brand": "Nvidia", "architecture": "Ampere",
		"cudaComputeCapability": "8.0.0", "driverVersion": "570.158.1", "cudaDriverVersion": "12.8.0", "addressingMode": "ATS",
		"cliqueID": "c0ffee.3", "nvlinkDomain": "c0ffee", "resource.kubernetes.io/pciBusID": "0000:05:00.0",
		"resource.kubernetes.io/pcieRoot": "pci0000:00", "gpufabric.io/pcieSwitch": "0000:0a:00.0",
	} {
		a := d.API.Attributes[name]
		switch {
		case a.StringValue != nil && *a.StringValue == want, a.VersionValue != nil && *a.VersionValue == want:
		default:
			t.Errorf("%s is %+v, want %s", name, a, want)
		}
	}
	if index := d.API.Attributes["index"].IntValue; index == nil || *index != int64(g.Index) {
		t.Errorf("index is %v, want %d", index, g.Index)
	}
	if numa := d.API.Attributes["resource.kubernetes.io/numaNode"].IntValue; numa == nil || *numa != 1 {
		t.Errorf("numaNode is %v, want 1", numa)
	}
}

// NVIDIA's DRA driver counts a whole GPU's engines beside the MIG devices that it can be divided into, and only its memory
// otherwise.
func TestPoolCountsEnginesOfAWholeGPU(t *testing.T) {
	g := a100(0)
	for name, want := range map[resourceapi.QualifiedName]int64{"multiprocessors": 98, "copyEngines": 7, "decoders": 5, "encoders": 0,
		"jpegEngines": 1, "ofaEngines": 1} {
		got, published := devices.NewPool(node(g), devices.Options{Forms: flexible}).Device("gpu-0").API.Capacity[name]
		if !published || got.Value.Value() != want {
			t.Errorf("%s is %v, want %d", name, got.Value, want)
		}
	}
	if c := devices.NewPool(node(g), devices.Options{}).Device("gpu-0").API.Capacity; len(c) != 1 {
		t.Errorf("a GPU that is offered whole alone has the capacities %v", c)
	}
}
