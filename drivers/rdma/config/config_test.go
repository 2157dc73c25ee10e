package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/config"
)

const manifests = "../../../examples/manifests"

func TestParseReadsTheSeedsConfigurations(t *testing.T) {
	read := func(file string) []byte {
		data, err := os.ReadFile(filepath.Join(manifests, file))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var configMap corev1.ConfigMap
	if err := yaml.Unmarshal(read("rdma-devices-configmap.yaml"), &configMap); err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Spec struct{ DevicePlugin struct{ Config string } }
	}
	if err := yaml.Unmarshal(read("nicclusterpolicy.yaml"), &policy); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, text string
		want       *config.Config
	}{
		{"the rdma-devices ConfigMap", configMap.Data["config.json"],
			&config.Config{Rescan: 300 * time.Second, Entries: []int{0}, Pools: []v1alpha1.RDMAPoolConfig{{
				ResourceName: "hca_shared_devices_a", RDMAHCAMax: 1000, DeviceNodes: v1alpha1.RDMANodesAll,
				Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}, DeviceIDs: []string{"1021"}, IfNames: []string{"ibp3s0"}},
			}}}},
		{"the NicClusterPolicy's devicePlugin section", policy.Spec.DevicePlugin.Config,
			&config.Config{Rescan: 60 * time.Second, Entries: []int{0}, Pools: []v1alpha1.RDMAPoolConfig{{
				ResourceName: "hca_shared_devices_a", RDMAHCAMax: 1000, DeviceNodes: v1alpha1.RDMANodesAll, Devices: []string{"ens2f0"},
			}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := config.Parse([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if name := got.Pools[0].Resource(); name != "rdma/hca_shared_devices_a" {
				t.Errorf("the resource is %s", name)
			}
		})
	}
}

// entry wraps the members of one configList entry.
func entry(members string) string { return `{"configList": [{` + members + `}]}` }

// selector wraps the members of one entry's selectors.
func selector(members string) string {
	return entry(`"resourceName": "a", "rdmaHcaMax": 1, "selectors": {` + members + `}`)
}

func TestParseAcceptsValidConfigurations(t *testing.T) {
	for _, test := range []struct {
		name, text string
		check      func(*config.Config) bool
	}{
		{"interval 0 turns the rescan off", `{"periodicUpdateInterval": 0, "configList": [{"resourceName": "a", "devices": ["ib0"]}]}`,
			func(c *config.Config) bool { return c.Rescan == 0 }},
		{"without an interval it is 60 s", entry(`"resourceName": "a", "devices": ["ib0"]`),
			func(c *config.Config) bool { return c.Rescan == time.Minute }},
		{"rdmaHcaMax 0", entry(`"resourceName": "a", "rdmaHcaMax": 0, "devices": ["ib0"]`),
			func(c *config.Config) bool { return c.Pools[0].RDMAHCAMax == 0 }},
		{"another prefix", entry(`"resourceName": "a", "resourcePrefix": "nvidia.com", "devices": ["ib0"]`),
			func(c *config.Config) bool { return c.Pools[0].Resource() == "nvidia.com/a" }},
		{"null is as good as absent", entry(`"resourceName": "a", "devices": ["ib0"], "selectors": null, "rdmaHcaMax": null, ` +
			`"resourcePrefix": null`), func(c *config.Config) bool {
			return c.Pools[0].Selectors == nil
		}},
		{"empty devices beside selectors, as some charts render them",
			entry(`"resourceName": "a", "devices": [], "selectors": {"vendors": ["15b3"]}`), func(c *config.Config) bool {
				return len(c.Pools[0].Selectors.Vendors) == 1
			}},
		{"empty selectors beside devices", entry(`"resourceName": "a", "devices": ["ib0"], "selectors": {}`),
			func(c *config.Config) bool { return len(c.Pools[0].Devices) == 1 }},
		{"hexadecimal in either case", selector(`"vendors": ["15B3"]`),
			func(c *config.Config) bool { return c.Pools[0].Selectors.Vendors[0] == "15B3" }},
		{"every selector of ours", selector(`"pciAddresses": ["0000:3b:00.0", "3b:00.1"], "pfNames": ["ens2f0", "ens2f1#0,2-7"], ` +
			`"rootDevices": ["0000:3b:00.0#0-3"],
			"acpiIndexes": ["101", "4294967295"], "isRdma": true, "pKeys": ["0x8012", "0x1"], "linkLayers": ["InfiniBand"], "numaNodes": ` +
			`[0, 1], "minRateGbps": 200`), func(c *config.Config) bool {
			s := c.Pools[0].Selectors
			return s.ACPIIndexes[1] == "4294967295" && s.IsRDMA && s.PFNames[1] == "ens2f1#0,2-7" && s.NUMANodes[1] == 1 && s.MinRateGbps == 200
		}},
		{"every device that has RDMA", selector(`"isRdma": true`), func(c *config.Config) bool { return c.Pools[0].Selectors.IsRDMA }},
		{"isRdma false beside a selector", selector(`"isRdma": false, "vendors": ["15b3"]`),
			func(c *config.Config) bool { return !c.Pools[0].Selectors.IsRDMA }},
		{"an exclusive pool", entry(`"resourceName": "hca", "mode": "Exclusive", "selectors": {"vendors": ["15b3"]}`),
			func(c *config.Config) bool { return c.Pools[0].Exclusive() }},
		{"all device nodes, as the old plugin gave them",
			entry(`"resourceName": "hca", "rdmaHcaMax": 9, "deviceNodes": "All", "excludeTopology": true, "selectors": {"vendors": ["15b3"]}`),
			func(c *config.Config) bool {
				return c.Pools[0].DeviceNodes == v1alpha1.RDMANodesAll && c.Pools[0].ExcludeTopology
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := config.Parse([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			if !test.check(got) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestParseRejectsWrongConfigurations(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string // each problem: its path, then a part of its message
	}{
		// The errors of k8s-rdma-shared-dev-plugin.
		{"a negative interval", `{"periodicUpdateInterval": -1, "configList": [{"resourceName": "a", "devices": ["ib0"]}]}`,
			[]string{"periodicUpdateInterval: -1 is not"}},
		{"an empty list", `{"configList": []}`, []string{"configList: is empty"}},
		{"a name with a dash", entry(`"resourceName": "hca-a", "devices": ["ib0"]`),
			[]string{`configList[0].resourceName: Invalid value: "hca-a"`}},
		{"two entries of one name", `{"configList": [{"resourceName": "a", "devices": ["ib0"]}, {"resourceName": "a", "devices": ["ib1"]}]}`,
			[]string{`configList[1].resourceName: "a" is the name of configList[0]`}},
		{"a negative rdmaHcaMax", entry(`"resourceName": "a", "rdmaHcaMax": -1, "devices": ["ib0"]`),
			[]string{"configList[0].rdmaHcaMax: -1 is not"}},
		{"neither selectors nor devices", entry(`"resourceName": "a", "rdmaHcaMax": 1`), []string{"configList[0].selectors: Required"}},
		{"both selectors and devices", entry(`"resourceName": "a", "devices": ["ib0"], "selectors": {"vendors": ["15b3"]}`),
			[]string{"configList[0].devices: Forbidden"}},
		// The document.
		{"nothing", ``, []string{": is empty: it must be an object with configList"}},
		{"blanks", " \n", []string{": is empty: it must be an object with configList"}},
		{"the plugin's form of 2018", `{"mode": "hca", "pfNetdevices": ["ib0"]}`, []string{
			"mode: unknown key; the file has the plugin's form of 2018; since 2019 it is {\"configList\":",
			"pfNetdevices: unknown key; the file has", "configList: is missing",
		}},
		{"not JSON", `periodicUpdateInterval: 300`, []string{": not JSON: line 1"}},
		{"JSON that ends in the middle", "{\n\"configList\": [", []string{": not JSON: line 2: the JSON ends"}},
		{"a trailing comma", `{"configList": [],}`, []string{": not JSON: line 1"}},
		{"two documents", `{"configList": []}{}`, []string{": not JSON: line 1: unexpected text"}},
		{"a list at the top", `[]`, []string{": must be an object, not an array"}},
		{"null", `null`, []string{": must be an object, not null"}},
		{"nesting without end", strings.Repeat(`{"configList":[`, 100), []string{": not JSON: line 1: nested deeper"}},
		{"no configList", `{}`, []string{"configList: is missing"}},
		{"a configList of null", `{"configList": null}`, []string{"configList: is missing"}},
		{"a configList that is an object", `{"configList": {}}`, []string{"configList: must be an array, not an object"}},
		{"an entry that is a string", `{"configList": ["a"]}`, []string{"configList[0]: must be an object, not a string"}},
		{"an entry of null", `{"configList": [null]}`, []string{"configList[0]: must be an object, not null"}},
		// Keys.
		{"a misspelt key", entry(`"resourceName": "a", "selector": {"vendors": ["15b3"]}`),
			[]string{`configList[0].selector: unknown key; did you mean "selectors"?`, "configList[0].selectors: Required"}},
		{"a key in another case", entry(`"resourcename": "a", "devices": ["ib0"]`),
			[]string{`configList[0].resourcename: unknown key; did you mean "resourceName"?`, "configList[0].resourceName: Required"}},
		{"an unknown key at the top", `{"interval": 3, "configList": [{"resourceName": "a", "devices": ["ib0"]}]}`,
			[]string{"interval: unknown key; known are configList, periodicUpdateInterval"}},
		{"an unknown selector", selector(`"vendors": ["15b3"], "serial": ["x"]`),
			[]string{"configList[0].selectors.serial: unknown key; known are"}},
		{"a key twice", entry("\"resourceName\": \"a\",\n\"devices\": [\"ib0\"], \"resourceName\": \"b\""),
			[]string{"configList[0].resourceName: is in line 1 already"}},
		// Types.
		{"an interval in words", `{"periodicUpdateInterval": "300", "configList": [{"resourceName": "a", "devices": ["ib0"]}]}`,
			[]string{"periodicUpdateInterval: must be a whole number, not a string"}},
		{"an interval with a fraction", `{"periodicUpdateInterval": 1.5, "configList": [{"resourceName": "a", "devices": ["ib0"]}]}`,
			[]string{"periodicUpdateInterval: 1.5 is not a whole number"}},
		{"a name that is a number", entry(`"resourceName": 7, "devices": ["ib0"]`),
			[]string{"configList[0].resourceName: must be a string, not a number"}},
		{"an rdmaHcaMax that is a string", entry(`"resourceName": "a", "rdmaHcaMax": "1000", "devices": ["ib0"]`),
			[]string{"configList[0].rdmaHcaMax: must be a whole number, not a string"}},
		{"an rdmaHcaMax beyond the kubelet", entry(`"resourceName": "a", "rdmaHcaMax": 100001, "devices": ["ib0"]`),
			[]string{"configList[0].rdmaHcaMax: 100001 is not a whole number from 0 to 100000"}},
		{"an rdmaHcaMax beyond 64 bits", entry(`"resourceName": "a", "rdmaHcaMax": 99999999999999999999, "devices": ["ib0"]`),
			[]string{"configList[0].rdmaHcaMax: 99999999999999999999 is not"}},
		{"vendors that are a string", selector(`"vendors": "15b3"`),
			[]string{"configList[0].selectors.vendors: must be an array, not a string", "configList[0].selectors: Required"}},
		{"a vendor that is a number", selector(`"vendors": [1]`), []string{"configList[0].selectors.vendors[0]: must be a string, not a number"}},
		{"excludeTopology in words", entry(`"resourceName": "a", "devices": ["ib0"], "excludeTopology": "yes"`),
			[]string{"configList[0].excludeTopology: must be true or false"}},
		// Values.
		{"no name", entry(`"devices": ["ib0"]`), []string{"configList[0].resourceName: Required"}},
		{"a name of 64 characters", entry(`"resourceName": "` + strings.Repeat("a", 64) + `", "devices": ["ib0"]`),
			[]string{"configList[0].resourceName: Invalid"}},
		{"a name that starts with _", entry(`"resourceName": "_a", "devices": ["ib0"]`), []string{"configList[0].resourceName: Invalid"}},
		{"a prefix with a slash", entry(`"resourceName": "a", "resourcePrefix": "rdma/x", "devices": ["ib0"]`),
			[]string{"configList[0].resourcePrefix: Invalid"}},
		{"Kubernetes' own prefix", entry(`"resourceName": "a", "resourcePrefix": "kubernetes.io", "devices": ["ib0"]`),
			[]string{"configList[0].resourcePrefix: Invalid"}},
		{"selectors that select everything", selector(``), []string{"configList[0].selectors: Required"}},
		{"a vendor with 0x", selector(`"vendors": ["15b3", "0x15b3"]`),
			[]string{"configList[0].selectors.vendors[1]: Invalid value: \"0x15b3\": must be four hexadecimal digits without 0x"}},
		{"a device ID of five digits", selector(`"deviceIDs": ["10211"]`), []string{"configList[0].selectors.deviceIDs[0]: Invalid"}},
		{"a link type of no kind", selector(`"linkTypes": ["ethernet"]`), []string{"configList[0].selectors.linkTypes[0]: Unsupported value"}},
		{"an interface name of 16 characters", selector(`"ifNames": ["abcdefghijklmnop"]`),
			[]string{"configList[0].selectors.ifNames[0]: Invalid"}},
		{"an empty interface name", entry(`"resourceName": "a", "devices": [""]`), []string{"configList[0].devices[0]: Invalid"}},
		{"an interface twice", entry(`"resourceName": "a", "devices": ["ib0", "ib0"]`), []string{"configList[0].devices[1]: Duplicate"}},
		{"a driver with a blank", selector(`"drivers": ["mlx5 core"]`), []string{"configList[0].selectors.drivers[0]: Invalid"}},
		{"a PCI address without function", selector(`"pciAddresses": ["0000:3b:00"]`),
			[]string{"configList[0].selectors.pciAddresses[0]: Invalid"}},
		{"a range that runs backwards", selector(`"pfNames": ["ens2f0#7-2"]`), []string{"configList[0].selectors.pfNames[0]: Invalid"}},
		{"a range of nothing", selector(`"rootDevices": ["0000:3b:00.0#"]`), []string{"configList[0].selectors.rootDevices[0]: Invalid"}},
		{"a partition key of 17 bits", selector(`"pKeys": ["0x18000"]`), []string{"configList[0].selectors.pKeys[0]: Invalid"}},
		{"a partition key that is only the membership bit", selector(`"pKeys": ["0x8000"]`),
			[]string{"configList[0].selectors.pKeys[0]: Invalid"}},
		{"a link layer of no kind", selector(`"linkLayers": ["infiniband"]`),
			[]string{"configList[0].selectors.linkLayers[0]: Unsupported value"}},
		{"an ACPI index of zero", selector(`"acpiIndexes": ["0"]`), []string{"configList[0].selectors.acpiIndexes[0]: Invalid"}},
		{"an ACPI index with a leading zero", selector(`"acpiIndexes": ["101", "0102"]`),
			[]string{"configList[0].selectors.acpiIndexes[1]: Invalid value: \"0102\": must be a decimal number from 1"}},
		{"an ACPI index beyond 32 bits", selector(`"acpiIndexes": ["4294967296"]`), []string{"configList[0].selectors.acpiIndexes[0]: Invalid"}},
		{"an ACPI index that is a number", selector(`"acpiIndexes": [101]`),
			[]string{"configList[0].selectors.acpiIndexes[0]: must be a string, not a number"}},
		{"isRdma in words", selector(`"isRdma": "true", "vendors": ["15b3"]`),
			[]string{"configList[0].selectors.isRdma: must be true or false, not a string"}},
		{"isRdma false alone, which selects nothing", selector(`"isRdma": false`), []string{"configList[0].selectors: Required"}},
		{"a negative NUMA node", selector(`"numaNodes": [-1]`), []string{"configList[0].selectors.numaNodes[0]: -1 is not",
			"configList[0].selectors: Required"}},
		{"a negative rate", selector(`"minRateGbps": -1`), []string{"configList[0].selectors.minRateGbps: -1 is not",
			"configList[0].selectors: Required"}},
		{"a mode of no kind", entry(`"resourceName": "a", "mode": "shared", "devices": ["ib0"]`),
			[]string{"configList[0].mode: Unsupported value"}},
		{"an exclusive pool with a number of units", entry(`"resourceName": "a", "mode": "Exclusive", "rdmaHcaMax": 5, "devices": ["ib0"]`),
			[]string{"configList[0].rdmaHcaMax: Invalid"}},
		{"an exclusive pool with all device nodes", entry(`"resourceName": "a", "mode": "Exclusive", "deviceNodes": "All", "devices": ["ib0"]`),
			[]string{"configList[0].deviceNodes: Invalid"}},
		{"device nodes of no kind", entry(`"resourceName": "a", "deviceNodes": "Some", "devices": ["ib0"]`),
			[]string{"configList[0].deviceNodes: Unsupported value"}},
		// All at once.
		{"five mistakes in three entries", "{\"periodicUpdateInterval\": -5, \"configList\": [\n{\"resourceName\": \"a b\", \"devices\": " +
			"[\"ib0\"]},\n{\"resourceName\": \"c\", \"rdmaHcaMax\": -1},\n{\"resourceName\": \"d\", \"device\": [\"ib0\"], \"devices\": " +
			"[\"ib/1\"]}]}", []string{
			"periodicUpdateInterval: -5", "configList[0].resourceName: Invalid", "configList[1].rdmaHcaMax: -1", "configList[1].selectors: Required",
			"configList[2].device: unknown key", "configList[2].devices[0]: Invalid",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := config.Parse([]byte(test.text))
			var problems config.Error
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want problems", err)
			}
			matched := len(problems) == len(test.want)
			for _, want := range test.want {
				path, message, _ := strings.Cut(want, ": ")
				found := false
				for _, p := range problems {
					found = found || p.Path == path && strings.Contains(p.Message, message)
				}
				matched = matched && found
			}
			if !matched {
				t.Errorf("got:\n%v\nwant:\n%s", err, strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestParseKeepsOtherEntries(t *testing.T) {
	first, err := config.Parse([]byte(`{"configList": [{"resourceName": "a", "rdmaHcaMax": 5, "devices": ["ens1"]}, {"resourceName": "b", ` +
		`"rdmaHcaMax": 5, "devices": ["ens2"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	next, err := config.Parse([]byte(`{"configList": [{"resourceName": "a", "rdmaHcaMax": -5, "devices": ["ens1"]}, {"resourceName": "b", ` +
		`"rdmaHcaMax": 7, "devices": ["ens2"]}]}`))
	if err == nil || !strings.Contains(err.Error(), "configList[0].rdmaHcaMax") || next == nil {
		t.Fatalf("got %v, %v", next, err)
	}
	if len(next.Pools) != 1 || next.Pools[0].ResourceName != "b" || next.Pools[0].RDMAHCAMax != 7 || next.Entries[0] != 1 {
		t.Errorf("served are %+v at %v", next.Pools, next.Entries)
	}
	next.Keep(first)
	if len(next.Pools) != 2 || next.Pools[1].ResourceName != "a" || next.Pools[1].RDMAHCAMax != 5 || next.Entries[1] != 0 {
		t.Errorf("with what was served before: %+v at %v", next.Pools, next.Entries)
	}
	parsed, err := config.Parse([]byte(`{"configList": [{"resourceName": "a", "devices": ["ens1"]}], "extra": 1, "periodicUpdateInterval": ` +
		`-1}`))
	if err == nil || !strings.Contains(err.Error(), "extra") || !strings.Contains(err.Error(), "periodicUpdateInterval") || parsed == nil ||
		len(parsed.Pools) != 1 || parsed.Rescan != time.Minute {
		t.Errorf("with mistakes beside the list: %+v, %v", parsed, err)
	}
	for _, text := range []string{`{"configList": [{"resourceName": "a b"}]}`,
		`{"ConfigList": [{"resourceName": "a", "devices": ["ens1"]}]}`} {
		if served, err := config.Parse([]byte(text)); served != nil || err == nil {
			t.Errorf("%s: %+v, %v", text, served, err)
		}
	}
}

func TestProblemsNameTheirLines(t *testing.T) {
	_, err := config.Parse([]byte("{\n  \"configList\": [\n    {\n      \"resourceName\": \"a\",\n      \"selectors\": {\n        " +
		"\"vendors\": [\n          \"15b3\",\n          \"mellanox\"\n        ]\n      }\n    }\n  ]\n}"))
	want := `configList[0].selectors.vendors[1] (line 8): Invalid value: "mellanox": must be four hexadecimal digits without 0x, such as 15b3`
	if err == nil || err.Error() != want {
		t.Errorf("got:  %v\nwant: %s", err, want)
	}
}

func TestParseRejectsALargeFile(t *testing.T) {
	_, err := config.Parse([]byte(strings.Repeat(" ", 1<<20+1)))
	if err == nil || !strings.Contains(err.Error(), "ConfigMap") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(selector(`"vendors": ["15b3"]`)))
	f.Add([]byte(`{"configList": [{"resourceName": "a", "selectors": {"pfNames": ["p0#0,2-7,9"]}}]}`))
	f.Add([]byte(`{"configList": [[[[null]]]], "configList": 1e400}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse(data)
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and %v", c, err)
		}
		if err != nil {
			var problems config.Error
			if !errors.As(err, &problems) || len(problems) == 0 {
				t.Fatalf("got %T %v", err, err)
			}
			for _, p := range problems {
				if p.Message == "" || fmt.Sprint(p) == "" {
					t.Fatalf("an empty problem among %v", problems)
				}
			}
			return
		}
		if len(c.Pools) == 0 || c.Rescan < 0 {
			t.Fatalf("got %+v", c)
		}
		for i := range c.Pools {
			if c.Pools[i].Resource() == "" || c.Pools[i].RDMAHCAMax < 0 {
				t.Fatalf("got %+v", c.Pools[i])
			}
		}
	})
}

// A unit of a file's pool means what it means in k8s-rdma-shared-dev-plugin, unless the file has our option.
func TestParseGivesSharedPoolsEveryHCAUnlessDeviceNodesIsGiven(t *testing.T) {
	for text, want := range map[string]v1alpha1.RDMADeviceNodes{
		`"rdmaHcaMax": 1`:                             v1alpha1.RDMANodesAll,
		`"rdmaHcaMax": 1, "deviceNodes": "All"`:       v1alpha1.RDMANodesAll,
		`"rdmaHcaMax": 1, "deviceNodes": "Allocated"`: v1alpha1.RDMANodesAllocated,
		`"mode": "Exclusive"`:                         "",
	} {
		c, err := config.Parse([]byte(`{"configList": [{"resourceName": "a", "devices": ["ib0"], ` + text + `}]}`))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := c.Pools[0].DeviceNodes; got != want {
			t.Errorf("%s: deviceNodes is %q, want %q", text, got, want)
		}
	}
}
