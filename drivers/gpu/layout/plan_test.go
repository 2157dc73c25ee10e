package layout_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/layout"
)

func read(t *testing.T, m *gputest.Machine) []*inventory.GPU {
	t.Helper()
	n, err := inventory.Reader{NVML: m, Locate: func(id string) (inventory.Place, error) { return inventory.Place{BusID: id}, nil }}.Read()
	if err != nil {
		t.Fatal(err)
	}
	return n.GPUs
}

func entry(mig bool, devices map[string]int32, indices ...int32) v1alpha1.MIGPartedEntry {
	return v1alpha1.MIGPartedEntry{MIGEnabled: mig, MIGDevices: devices,
		Devices: v1alpha1.AllOrIndices{All: len(indices) == 0, Indices: indices}}
}

func describe(plans []layout.Plan) []string {
	var out []string
	for _, p := range plans {
		text := fmt.Sprintf("%d:", p.GPU.Index)
		for _, w := range p.Instances {
			text += fmt.Sprintf(" %s@%d", w.Profile.Name, w.Placement.Start)
		}
		out = append(out, text)
	}
	return out
}

func TestPlanPlacesALayoutWhereTheHardwareAllows(t *testing.T) {
	gpus := read(t, gputest.New(t, 2))
	none := func(*inventory.GPU) []layout.Wanted { return nil }
	for name, c := range map[string]struct {
		entries []v1alpha1.MIGPartedEntry
		want    []string
		refused string
	}{
		"mixed, largest first": {entries: []v1alpha1.MIGPartedEntry{entry(true,
			map[string]int32{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})},
			want: []string{"0: 3g.20gb@4 2g.10gb@0 1g.5gb@2 1g.5gb@3", "1: 3g.20gb@4 2g.10gb@0 1g.5gb@2 1g.5gb@3"}},
		"seven of the smallest": {entries: []v1alpha1.MIGPartedEntry{entry(true, map[string]int32{"1g.5gb": 7}, 1)},
			want: []string{"1: 1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6"}},
		"one GPU whole, one cut": {entries: []v1alpha1.MIGPartedEntry{entry(false, nil, 0), entry(true, map[string]int32{"7g.40gb": 1}, 1)},
			want: []string{"0:", "1: 7g.40gb@0"}},
		"four and three side by side": {entries: []v1alpha1.MIGPartedEntry{entry(true, map[string]int32{"4g.20gb": 1, "3g.20gb": 1}, 0)},
			want: []string{"0: 3g.20gb@4 4g.20gb@0"}},
		"too many": {entries: []v1alpha1.MIGPartedEntry{entry(true, map[string]int32{"1g.5gb": 8})}, refused: "do not fit"},
		"one media engine, two asked": {entries: []v1alpha1.MIGPartedEntry{entry(true, map[string]int32{"1g.5gb+me": 2})},
			refused: "do not fit"},
		"a profile of another model": {entries: []v1alpha1.MIGPartedEntry{entry(true, map[string]int32{"1g.10gb+me": 1})},
			refused: `"1g.10gb+me"`},
		"two entries for one GPU": {entries: []v1alpha1.MIGPartedEntry{entry(false, nil), entry(false, nil, 1)}, refused: "two entries"},
		"a filter for another model": {entries: []v1alpha1.MIGPartedEntry{{Devices: v1alpha1.AllOrIndices{All: true},
			DeviceFilter: []string{"0x233010DE"}}}},
		"a filter in lower case works": {entries: []v1alpha1.MIGPartedEntry{{Devices: v1alpha1.AllOrIndices{Indices: []int32{0}},
			DeviceFilter: []string{"0x20b010de"}}}, want: []string{"0:"}},
	} {
		t.Run(name, func(t *testing.T) {
			plans, err := layout.Plans(gpus, c.entries, none)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("got %v, want a refusal that says %s", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, describe(plans)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithoutEffectNamesIndicesAndFiltersOfNoGPU(t *testing.T) {
	gpus := read(t, gputest.New(t, 2))
	entries := []v1alpha1.MIGPartedEntry{entry(false, nil, 0, 4, 5), entry(false, nil), entry(false, nil, 1)}
	entries[2].DeviceFilter = []string{"0x20b010de", "0x233010DE"}
	want := []string{"entry 0: devices 4, 5: the node has no such GPU, it has 0, 1",
		"entry 2: device-filter 0x233010DE: no GPU of the node has this ID"}
	if diff := cmp.Diff(want, layout.WithoutEffect(gpus, entries)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
