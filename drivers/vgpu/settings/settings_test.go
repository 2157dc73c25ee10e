package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/vgpu/annotation"
)

const existing = `
nvidia:
  resourceCountName: volcano.sh/vgpu-number
  resourceMemoryName: volcano.sh/vgpu-memory
  resourceMemoryPercentageName: volcano.sh/vgpu-memory-percentage
  resourceCoreName: volcano.sh/vgpu-cores
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  gpuMemoryFactor: 10
  knownMigGeometries:
  - models: [A100-SXM4-40GB]
    allowedGeometries:
    - group: group1
      geometries:
      - {name: 1g.5gb, memory: 5120, count: 7}
    - group: group2
      geometries:
      - {name: 2g.10gb, memory: 10240, count: 3}
      - {name: 1g.5gb, memory: 5120, count: 1}
`

func TestApplyDeviceConfigTakesAnExistingClustersFile(t *testing.T) {
	got := Default()
	if err := got.ApplyDeviceConfig([]byte(existing)); err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.MemoryFactor = 10
	want.Geometries = []ModelGeometries{{Models: []string{"A100-SXM4-40GB"}, Groups: []Geometry{
		{"group1", []Instances{{"1g.5gb", 5120, 7}}},
		{"group2", []Instances{{"2g.10gb", 10240, 3}, {"1g.5gb", 5120, 1}}},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if groups := got.GeometriesOf("NVIDIA A100-SXM4-40GB"); len(groups) != 2 {
		t.Errorf("%d geometries for the A100, want 2", len(groups))
	}
	if groups := got.GeometriesOf("NVIDIA L40S"); groups != nil {
		t.Errorf("geometries %v for an L40S, want none", groups)
	}
}

// RTX PRO 6000 has all of these (nvidia-smi mig -lgip).
func TestApplyDeviceConfigTakesProfilesWhenTheyHaveAttributes(t *testing.T) {
	for _, profile := range []string{"1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me", "4g.96gb+gfx"} {
		s := Default()
		text := "nvidia: {knownMigGeometries: [{models: [RTX PRO 6000], allowedGeometries: [{geometries: [{name: " + profile +
			", memory: 24192, count: 1}]}]}]}"
		if err := s.ApplyDeviceConfig([]byte(text)); err != nil {
			t.Errorf("%s: %v", profile, err)
		}
	}
}

func TestApplyDeviceConfigRejectsMistakesUnchanged(t *testing.T) {
	for text, parts := range map[string][]string{
		"nvidia: {deviceSplitCount: 0, deviceMemoryScaling: -1}":              {"deviceSplitCount: 0", "deviceMemoryScaling: -1"},
		"nvidia: {deviceSplitCount: many}":                                    {"deviceSplitCount"},
		"nvidia: {deviceCoreScaling: .nan}":                                   {"device-config.yaml"},
		"nvidia: {gpuMemoryFactor: -1, defaultCores: 101, defaultMemory: -5}": {"gpuMemoryFactor: -1", "defaultCores: 101", "defaultMemory: -5"},
		"nvidia: {defaultMemory: 5000, defaultCores: 30}":                     {"defaultMemory: 5000", "defaultCores: 30", "scheduler"},
		"nvidia: {resourceCountName: number}":                                 {`resourceCountName: "number"`},
		"nvidia: {resourceCoreName: volcano.sh/vgpu-memory}":                  {"a name of its own"},
		"nvidia: {devicesplitcounts: 3}":                                      {"devicesplitcounts"},
		"nvidia: {overwriteEnv: true, passDeviceSpecs: false}":                {"overwriteEnv", "passDeviceSpecs"},
		"nvidia: {resourcePriorityName: volcano.sh/priority}":                 {"priorities"},
		"nvidia: {knownMigGeometries: [{models: [], allowedGeometries: []}]}": {"models", "allowedGeometries"},
		"nvidia: {knownMigGeometries: [{models: [A100], allowedGeometries: [{group: g, geometries: [{name: big, memory: 1, count: 1}]}]}]}": {
			"1g.5gb"},
		"\t": {"device-config.yaml"},
	} {
		got := Default()
		err := got.ApplyDeviceConfig([]byte(text))
		for _, part := range parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got %v, want an error with %q", text, err, part)
			}
		}
		if diff := cmp.Diff(Default(), got); diff != "" {
			t.Errorf("%s: the settings changed:\n%s", text, diff)
		}
	}
}

func TestApplyNodeConfig(t *testing.T) {
	const text = `{"nodeconfig": [
		{"name": "other", "devicesplitcount": 3},
		{"name": "node-a", "operatingmode": "mig", "devicememoryscaling": 1.8, "devicesplitcount": 4, "migstrategy": "none",
		 "gpumodes": {"GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9": "hami-core"},
		 "filterdevices": {"uuid": ["GPU-11111111-4e5f-6071-8293-a4b5c6d7e8f9"], "index": [7]}}]}`
	got := Default()
	if err := got.ApplyNodeConfig([]byte(text), "node-a"); err != nil {
		t.Fatal(err)
	}
	if got.Mode != annotation.ModeMIG || got.MemoryScaling != 1.8 || got.SplitCount != 4 {
		t.Errorf("settings %+v are not those of node-a", got)
	}
	if !got.Hides("GPU-11111111-4e5f-6071-8293-a4b5c6d7e8f9", 0) || !got.Hides("x", 7) || got.Hides("x", 0) {
		t.Error("filterdevices hides other GPUs than those it names")
	}
	if got.ModeOf("GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9") != annotation.ModeSoftware || got.ModeOf("another") != annotation.ModeMIG {
		t.Error("a GPU's own mode does not come before the node's")
	}

	unnamed := Default()
	if err := unnamed.ApplyNodeConfig([]byte(text), "node-z"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), unnamed); diff != "" {
		t.Errorf("a node without an entry changed:\n%s", diff)
	}
}

func TestApplyNodeConfigNamesEntriesForTheNodeUnderAnotherName(t *testing.T) {
	for _, test := range []struct{ entries, node, want string }{
		{`{"name": "node1", "devicesplitcount": 2}`, "node1.example.com", `nodeconfig[0] ("node1")`},
		{`{"name": "other"}, {"name": "node1.example.com"}`, "node1", `nodeconfig[1] ("node1.example.com")`},
		{`{"name": "NODE1"}`, "node1", `nodeconfig[0] ("NODE1")`},
		{`{"name": "node1.a"}`, "node1.b", ""}, // another node
		{`{"name": "node1"}, {"name": "node1.example.com"}`, "node1", ""},
		{`{"name": "node2"}`, "node1", ""},
	} {
		s := Default()
		if err := s.ApplyNodeConfig([]byte(`{"nodeconfig": [`+test.entries+`]}`), test.node); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.Misnamed, ", "); got != test.want {
			t.Errorf("%s on %s: %q, want %q", test.entries, test.node, got, test.want)
		}
		if s.SplitCount != Default().SplitCount {
			t.Errorf("%s on %s has an effect", test.entries, test.node)
		}
	}
}

func TestApplyNodeConfigRefuses(t *testing.T) {
	for text, part := range map[string]string{
		`{"nodeconfig": [{"name": "a"}, {"name": "a"}]}`:                        "already",
		`{"nodeconfig": [{"devicesplitcount": 1}]}`:                             "name is missing",
		`{"nodeconfig": [{"name": "b", "operatingmode": "fast"}]}`:              `"fast"`,
		`{"nodeconfig": [{"name": "b", "migstrategy": "mixed"}]}`:               "mixed",
		`{"nodeconfig": [{"name": "b", "filterdevices": {"uuid": ["../x"]}}]}`:  "filterdevices.uuid[0]",
		`{"nodeconfig": [{"name": "b", "filterdevices": {"index": [-1]}}]}`:     "filterdevices.index[0]",
		`{"nodeconfig": [{"name": "b", "gpumodes": {"x": "mig"}}]}`:             "gpumodes[x]",
		`{"nodeconfig": [{"name": "b", "speed": 1}]}`:                           "speed",
		`{"nodeconfig": [{"name": "a"}], "nodeconfig": []}`:                     `"nodeconfig": the first would have no effect`,
		`{"nodeconfig": [{"name": "b", "gpumodes": {"x": "mig", "x": "mig"}}]}`: `duplicate field`,
		`{"nodeconfig": []} {"nodeconfig": [{"name": "a"}]}`:                    "text after the object",
		`{"nodeconfig": `: "config.json",
	} {
		s := Default()
		if err := s.ApplyNodeConfig([]byte(text), "a"); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v, want an error with %q", text, err, part)
		}
	}
}

func TestVolcanoAllowsOnlyItsResources(t *testing.T) {
	s := Default()
	if err := s.CheckVolcano(); err != nil {
		t.Errorf("Volcano's own names: %v", err)
	}
	s.CoresResource, s.PercentageResource = "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"
	err := s.CheckVolcano()
	for _, part := range []string{"resourceCoreName", `"nvidia.com/gpucores"`, "resourceMemoryPercentageName", "--scheduler=gpufabric"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want an error with %q", err, part)
		}
	}
}

func TestSettingsNameAGeometryOnce(t *testing.T) {
	for name, want := range map[string]string{"group1": "", "1": "not this geometry's place", "a-b": "Volcano does not read slots",
		"twice": "already"} {
		s := Default()
		instances := []Instances{{Profile: "1g.5gb", MemoryMiB: 4864, Count: 7}}
		s.Geometries = []ModelGeometries{{Models: []string{"A100"}, Groups: []Geometry{{Name: name, Instances: instances},
			{Name: map[bool]string{true: "twice", false: "group2"}[name == "twice"], Instances: instances}}}}
		if err := s.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", name, err, want)
		}
	}
}

// Whatever a ConfigMap contains, the result is valid or refused, and nothing of a refused file applies.
func FuzzApply(f *testing.F) {
	f.Add("nvidia: {deviceSplitCount: 10, gpuMemoryFactor: 10}", `{"nodeconfig": [{"name": "n", "devicesplitcount": 4}]}`)
	f.Add("nvidia: {knownMigGeometries: [{models: [A100], allowedGeometries: [[{name: 1g.5gb, memory: 4864, count: 7}]]}]}", "")
	f.Fuzz(func(t *testing.T, device, node string) {
		s := Default()
		before := Default()
		if err := s.ApplyDeviceConfig([]byte(device)); err != nil {
			if diff := cmp.Diff(before, s); diff != "" {
				t.Fatalf("a file that is refused (%v) changed\n%s", err, diff)
			}
		}
		_ = s.ApplyNodeConfig([]byte(node), "n")
		_ = s.Validate()
	})
}

func TestShadowedNamesModelsThatAreNeverUsed(t *testing.T) {
	s := Default()
	for _, models := range [][]string{{"A100-SXM4-40GB", "A100-PCIE-40GB"}, {"A100"}, {"A100-SXM4-80GB", "A30"}, {"A30"}, {"H100"}} {
		s.Geometries = append(s.Geometries, ModelGeometries{Models: models})
	}
	got := strings.Join(s.Shadowed(), "\n")
	for _, want := range []string{`[2].models "A100-SXM4-80GB" is never used: such a GPU has the layouts of knownMigGeometries[1], for "A100"`,
		`[3].models "A30" is never used: such a GPU has the layouts of knownMigGeometries[2], for "A30"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	if n := len(s.Shadowed()); n != 2 {
		t.Errorf("%d names, want 2:\n%s", n, got)
	}
}
