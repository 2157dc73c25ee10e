package v1alpha1

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// TestRDMAPoolRejectsWrongSpecs has a table of wrong specs, with the path of each problem and a part of its message. The mistakes of
// config.json have a table of their own, in rdma/config.
func TestRDMAPoolRejectsWrongSpecs(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, test := range []struct {
		name, spec string
		want       []string
	}{
		{"nothing", `{}`, []string{"spec.resourceName: Required", "spec.selectors: Required"}},
		{"no name", `{devices: [ib0]}`, []string{"spec.resourceName: Required"}},
		{"a name with a dash", `{resourceName: hca-a, devices: [ib0]}`, []string{`spec.resourceName: Invalid value: "hca-a": must be letters`}},
		{"a name with a slash", `{resourceName: rdma/hca, devices: [ib0]}`, []string{"spec.resourceName: Invalid"}},
		{"a name that starts with _", `{resourceName: _a, devices: [ib0]}`, []string{"spec.resourceName: Invalid"}},
		{"a name of 64 characters", `{resourceName: ` + long + `, devices: [ib0]}`, []string{"spec.resourceName: Invalid"}},
		{"a prefix in capitals", `{resourceName: a, resourcePrefix: RDMA, devices: [ib0]}`, []string{"spec.resourcePrefix: Invalid"}},
		{"a prefix with a slash", `{resourceName: a, resourcePrefix: rdma/x, devices: [ib0]}`, []string{"spec.resourcePrefix: Invalid"}},
		{"Kubernetes' own prefix", `{resourceName: a, resourcePrefix: kubernetes.io, devices: [ib0]}`, []string{"spec.resourcePrefix: Invalid"}},
		{"a prefix below Kubernetes' own", `{resourceName: a, resourcePrefix: x.kubernetes.io, devices: [ib0]}`,
			[]string{"spec.resourcePrefix: Invalid"}},
		{"a prefix of quotas", `{resourceName: a, resourcePrefix: requests.rdma, devices: [ib0]}`, []string{"spec.resourcePrefix: Invalid"}},
		{"a negative rdmaHcaMax", `{resourceName: a, rdmaHcaMax: -1, devices: [ib0]}`,
			[]string{"spec.rdmaHcaMax: Invalid value: -1: must not be negative"}},
		{"an rdmaHcaMax beyond the kubelet", `{resourceName: a, rdmaHcaMax: 100001, devices: [ib0]}`,
			[]string{"spec.rdmaHcaMax: Invalid value: 100001"}},
		{"an exclusive pool with a number of units", `{resourceName: a, mode: Exclusive, rdmaHcaMax: 1, devices: [ib0]}`,
			[]string{"spec.rdmaHcaMax: Invalid"}},
		{"an exclusive pool with all device nodes", `{resourceName: a, mode: Exclusive, deviceNodes: All, devices: [ib0]}`,
			[]string{"spec.deviceNodes: Invalid"}},
		{"a mode of no kind", `{resourceName: a, mode: shared, devices: [ib0]}`, []string{`spec.mode: Unsupported value: "shared"`}},
		{"device nodes of no kind", `{resourceName: a, deviceNodes: Some, devices: [ib0]}`,
			[]string{`spec.deviceNodes: Unsupported value: "Some"`}},
		{"neither selectors nor devices", `{resourceName: a, rdmaHcaMax: 1}`, []string{"spec.selectors: Required"}},
		{"both selectors and devices", `{resourceName: a, devices: [ib0], selectors: {vendors: ["15b3"]}}`, []string{"spec.devices: Forbidden"}},
		{"selectors that select everything", `{resourceName: a, selectors: {}}`, []string{"spec.selectors: Required"}},
		{"isRdma false alone, which selects nothing", `{resourceName: a, selectors: {isRdma: false}}`, []string{"spec.selectors: Required"}},
		{"an empty interface", `{resourceName: a, devices: [""]}`, []string{"spec.devices[0]: Invalid"}},
		{"an interface twice", `{resourceName: a, devices: [ib0, ib0]}`, []string{"spec.devices[1]: Duplicate"}},
		{"an interface of 16 characters", `{resourceName: a, selectors: {ifNames: [abcdefghijklmnop]}}`,
			[]string{"spec.selectors.ifNames[0]: Invalid"}},
		{"an interface with a slash", `{resourceName: a, selectors: {ifNames: [ib0, a/b]}}`, []string{"spec.selectors.ifNames[1]: Invalid"}},
		{"a vendor that is a name", `{resourceName: a, selectors: {vendors: [mellanox]}}`, []string{"spec.selectors.vendors[0]: Invalid"}},
		{"a vendor with 0x", `{resourceName: a, selectors: {vendors: ["0x15b3"]}}`, []string{"spec.selectors.vendors[0]: Invalid"}},
		{"a vendor twice", `{resourceName: a, selectors: {vendors: ["15b3", "15b3"]}}`, []string{"spec.selectors.vendors[1]: Duplicate"}},
		{"a device ID of five digits", `{resourceName: a, selectors: {deviceIDs: ["10211"]}}`, []string{"spec.selectors.deviceIDs[0]: Invalid"}},
		{"a driver with a blank", `{resourceName: a, selectors: {drivers: [mlx5 core]}}`, []string{"spec.selectors.drivers[0]: Invalid"}},
		{"a link type of no kind", `{resourceName: a, selectors: {linkTypes: [ethernet]}}`, []string{"spec.selectors.linkTypes[0]: Unsupported"}},
		{"a link layer of no kind", `{resourceName: a, selectors: {linkLayers: [infiniband]}}`,
			[]string{"spec.selectors.linkLayers[0]: Unsupported"}},
		{"a PCI address without a function", `{resourceName: a, selectors: {pciAddresses: ["0000:3b:00"]}}`,
			[]string{"spec.selectors.pciAddresses[0]: Invalid"}},
		{"a PCI address of a device that cannot be", `{resourceName: a, selectors: {pciAddresses: ["0000:3b:20.0"]}}`,
			[]string{"spec.selectors.pciAddresses[0]: Invalid"}},
		{"an ACPI index of zero", `{resourceName: a, selectors: {acpiIndexes: ["0"]}}`, []string{"spec.selectors.acpiIndexes[0]: Invalid"}},
		{"an ACPI index in words", `{resourceName: a, selectors: {acpiIndexes: ["1", one]}}`, []string{"spec.selectors.acpiIndexes[1]: Invalid"}},
		{"a range that runs backwards", `{resourceName: a, selectors: {pfNames: ["ens2f0#7-2"]}}`,
			[]string{"spec.selectors.pfNames[0]: Invalid"}},
		{"a range without a name", `{resourceName: a, selectors: {pfNames: ["#0"]}}`, []string{"spec.selectors.pfNames[0]: Invalid"}},
		{"a range of nothing", `{resourceName: a, selectors: {rootDevices: ["0000:3b:00.0#"]}}`,
			[]string{"spec.selectors.rootDevices[0]: Invalid"}},
		{"a root device that is a name", `{resourceName: a, selectors: {rootDevices: [ens2f0]}}`,
			[]string{"spec.selectors.rootDevices[0]: Invalid"}},
		{"a partition key of zero", `{resourceName: a, selectors: {pKeys: ["0x0000"]}}`, []string{"spec.selectors.pKeys[0]: Invalid"}},
		{"a partition key of 17 bits", `{resourceName: a, selectors: {pKeys: ["0x18000"]}}`, []string{"spec.selectors.pKeys[0]: Invalid"}},
		{"a partition key without 0x", `{resourceName: a, selectors: {pKeys: ["8012"]}}`, []string{"spec.selectors.pKeys[0]: Invalid"}},
		{"a negative NUMA node", `{resourceName: a, selectors: {numaNodes: [0, -1]}}`, []string{"spec.selectors.numaNodes[1]: Invalid"}},
		{"a negative rate", `{resourceName: a, selectors: {minRateGbps: -1}}`, []string{"spec.selectors.minRateGbps: Invalid"}},
		{"a node label that cannot be", `{resourceName: a, devices: [ib0], nodeSelector: {matchLabels: {"a b": c}}}`,
			[]string{`spec.nodeSelector.matchLabels: Invalid value: "a b"`}},
		{"an operator of no kind", `{resourceName: a, devices: [ib0], nodeSelector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}`,
			[]string{"spec.nodeSelector.matchExpressions[0].operator: Invalid"}},
		{"In without values", `{resourceName: a, devices: [ib0], nodeSelector: {matchExpressions: [{key: a, operator: In}]}}`,
			[]string{"spec.nodeSelector.matchExpressions[0].values: Required"}},
		{"Exists with values", `{resourceName: a, devices: [ib0], nodeSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}`,
			[]string{"spec.nodeSelector.matchExpressions[0].values: Forbidden"}},
		{"seven mistakes at once", `{resourceName: a b, resourcePrefix: "-", rdmaHcaMax: -1, mode: All, selectors: {vendors: ["1"], ` +
			`linkTypes: [ib], numaNodes: [-1]}}`, []string{
			"spec.resourceName: Invalid", "spec.resourcePrefix: Invalid", "spec.rdmaHcaMax: Invalid", "spec.mode: Unsupported",
			"spec.selectors.vendors[0]: Invalid",
			"spec.selectors.linkTypes[0]: Unsupported", "spec.selectors.numaNodes[0]: Invalid",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var spec RDMAPoolSpec

			if err := yaml.UnmarshalStrict([]byte(test.spec), &spec); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, err := range spec.Validate(field.NewPath("spec")) {
				got = append(got, err.Error())
			}
			matched := len(got) == len(test.want)
			for _, want := range test.want {
				matched = matched && slices.ContainsFunc(got, func(text string) bool { return strings.HasPrefix(text, want) })
			}
			if !matched {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestRDMAPoolAcceptsValidSpecs(t *testing.T) {
	for _, text := range []string{
		`{resourceName: hca_shared_devices_a, rdmaHcaMax: 1000, selectors: {vendors: [15B3], deviceIDs: ["1021"], ifNames: [ibp3s0], drivers: ` +
			`[mlx5_core], linkTypes: [infiniband, ether]}}`,
		`{resourceName: a, resourcePrefix: example.com, mode: Exclusive, selectors: {isRdma: true}}`,
		`{resourceName: a, rdmaHcaMax: 100000, deviceNodes: All, excludeTopology: true, devices: [ib0]}`,
		`{resourceName: a, selectors: {pfNames: ["p0#0,2-7,9"], rootDevices: ["0000:3b:00.0#0-3"], acpiIndexes: ["4294967295"], pKeys: ` +
			`["0x8012"], linkLayers: [Ethernet], numaNodes: [0], minRateGbps: 400, pciAddresses: ["3b:00.0"]}}`,
		`{resourceName: a, devices: [ib0], nodeSelector: {matchLabels: {rack: a}, matchExpressions: [{key: b, operator: NotIn, values: [c]}]}}`,
	} {
		var spec RDMAPoolSpec
		if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
			t.Fatal(err)
		}
		if errs := spec.Validate(field.NewPath("spec")); len(errs) > 0 {
			t.Errorf("%s: %v", text, errs.ToAggregate())
		}
	}
}
