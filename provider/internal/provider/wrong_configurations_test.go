package provider

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
)

// TestProviderRejectsWrongConfigurations tries mistakes in resources, data sources and functions. Every message names the attribute, its
// value, and the allowed values. No cluster is needed: all are found at plan time. Mistakes in the provider block are in
// TestProviderRejectsUnusableConfiguration.
func TestProviderRejectsWrongConfigurations(t *testing.T) {
	const (
		channel = `channel = { resource_claim_template = "c" }`
		chart   = `chart = "testdata/stack"`
		pool    = `resource_name = "a"` + "\n" + `selectors = { vendors = ["15b3"] }`
		layouts = `layouts = { x = { gpus = [{ mig_devices = { "1g.5gb" = 7 } }] } }`
	)
	for _, c := range []struct {
		name, kind, body string
		want             []string
	}{
		// gpufabric_compute_domain
		{"a domain without a name", "compute_domain", channel, []string{`"name" is required`}},
		{"a domain with an empty name", "compute_domain", `name = ""` + "\n" + channel,
			[]string{"Attribute name", "between 1 and 253", "got: 0"}},
		{"a domain's name in capitals", "compute_domain", `name = "Rack"` + "\n" + channel,
			[]string{"Attribute name", "lower-case letters", `got: Rack`}},
		{"a domain's name that ends in a dash", "compute_domain", `name = "rack-"` + "\n" + channel,
			[]string{"Attribute name", "start and end with a letter or digit"}},
		{"a domain's name with two dots", "compute_domain", `name = "a..b"` + "\n" + channel,
			[]string{"Attribute name", "each part between dots", "got: a..b"}},
		{"a domain's name with a dash beside a dot", "compute_domain", `name = "a.-b"` + "\n" + channel,
			[]string{"Attribute name", "each part between dots", "got: a.-b"}},
		{"a domain's name of 254 " +
			"characters", "compute_domain", `name = "` + strings.Repeat("a", 254) + `"` + "\n" + channel,
			[]string{"Attribute name", "between 1 and 253", "got: 254"}},
		{"a domain's namespace with a dot", "compute_domain", `name = "a"` + "\n" + `namespace = "a.b"` + "\n" + channel,
			[]string{"Attribute namespace", "got: a.b"}},
		{"a domain of -1 nodes", "compute_domain", `name = "a"` + "\n" + `num_nodes = -1` + "\n" + channel,
			[]string{"Attribute num_nodes", "at least 0", "got: -1"}},
		{"a domain of 1.5 nodes", "compute_domain", `name = "a"` + "\n" + `num_nodes = 1.5` + "\n" + channel, []string{"num_nodes"}},
		{"a domain of many nodes in words", "compute_domain", `name = "a"` + "\n" + `num_nodes = "many"` + "\n" + channel,
			[]string{"num_nodes", "a number is required"}},
		{"a domain without a channel", "compute_domain", `name = "a"`, []string{`"channel" is required`}},
		{"a channel without a template", "compute_domain", `name = "a"` + "\n" + `channel = {}`,
			[]string{`attribute "resource_claim_template" is required`}},
		{"a channel with an empty template name", "compute_domain", `name = "a"` + "\n" + `channel = { resource_claim_template = "" }`,
			[]string{"Attribute channel.resource_claim_template", "between 1 and 253"}},
		{"a channel with an unknown allocation mode", "compute_domain",
			`name = "a"` + "\n" + `channel = { resource_claim_template = "c", allocation_mode = "Some" }`,
			[]string{"Attribute channel.allocation_mode", `["Single" "All"]`, `got: "Some"`}},
		{"a channel with a misspelt " +
			"attribute", "compute_domain", `name = "a"` + "\n" + `channel = { resource_claim_templat = "c" }`, []string{"resource_claim_templat"}},
		{"a domain that waits for something else", "compute_domain", `name = "a"` + "\n" + `wait_for = "running"` + "\n" + channel,
			[]string{"Attribute wait_for", `["none" "accepted" "ready"]`, `got: "running"`}},
		{"a domain with a computed attribute set", "compute_domain", `name = "a"` + "\n" + `ready = true` + "\n" + channel, []string{"ready"}},
		{"a time-out that is no " +
			"duration", "compute_domain", `name = "a"` + "\n" + `timeouts = { create = "soon" }` + "\n" + channel,
			[]string{`"soon" must be a string containing a sequence of decimal numbers`}},
		{"a time-out below zero", "compute_domain", `name = "a"` + "\n" + `timeouts = { create = "-5m" }` + "\n" + channel,
			[]string{"timeouts.create", `"-5m"`, "10m"}},
		{"a time-out of zero", "driver_stack", chart + "\n" + `timeouts = { delete = "0s" }`, []string{"timeouts.delete", `"0s"`}},
		{"a label key with two slashes", "compute_domain", `name = "a"` + "\n" + `labels = { "a/b/c" = "x" }` + "\n" + channel,
			[]string{`labels["a/b/c"]`, "no label or annotation key"}},
		{"a label value with a blank", "compute_domain", `name = "a"` + "\n" + `labels = { team = "two words" }` + "\n" + channel,
			[]string{`"two words" is no label value`}},
		{"a label value of 64 characters", "compute_domain", `name = "a"` + "\n" + `labels = { team = "` + strings.Repeat("a", 64) + `" }` +
			"\n" + channel, []string{"is no label value", "63"}},
		{"an annotation key with a blank", "compute_domain", `name = "a"` + "\n" + `annotations = { "two words" = "x" }` + "\n" + channel,
			[]string{"no label or annotation key"}},
		{"labels that are a list", "compute_domain", `name = "a"` + "\n" + `labels = ["team"]` + "\n" + channel,
			[]string{"labels", "map of string required"}},

		// gpufabric_driver_stack
		{"a stack without a chart", "driver_stack", ``, []string{`"chart" is required`}},
		{"a stack with an empty chart", "driver_stack", `chart = ""`, []string{"Attribute chart", "at least 1"}},
		{"a chart that is not there", "driver_stack", `chart = "testdata/nowhere"`,
			[]string{`Chart "testdata/nowhere" not found`, "searched from", "path.module"}},
		{"a directory that is no chart", "driver_stack", `chart = "testdata"`, []string{`The directory "testdata" is not a chart`, "Chart.yaml"}},
		{"a file that is no archive", "driver_stack", `chart = "provider.go"`, []string{`chart "provider.go"`}},
		{"values that are no YAML", "driver_stack", chart + "\n" + `values = ["{"]`, []string{"values[0]", "not valid YAML"}},
		{"values that are a list", "driver_stack", chart + "\n" + `values = ["{}", "- a"]`, []string{"values[1]", "but this is a list"}},
		{"values that are a file's name", "driver_stack", chart + "\n" + `values = ["values.yaml"]`,
			[]string{"values[0]", "this is a text", `file("...")`}},
		{"values with a key twice", "driver_stack", chart + "\n" + `values = ["a: 1\na: 2"]`, []string{"values[0]", "already set"}},
		{"values that the chart does not know", "driver_stack", chart + "\n" + `values = ["controler: {}"]`,
			[]string{"do not fit the chart", "controler"}},
		{"values of the wrong type", "driver_stack", chart + "\n" + `values = ["controller: {replicas: many}"]`,
			[]string{"do not fit the chart", "/controller/replicas", "want integer"}},
		{"values out of range", "driver_stack", chart + "\n" + `values = ["controller: {replicas: -1}"]`,
			[]string{"do not fit the chart", "/controller/replicas", "-1"}},
		{"components that do not go " +
			"together", "driver_stack", `chart = "../../../charts/gpufabric"` + "\n" + `components = { vgpu = true }`,
			[]string{"do not fit the chart", "vgpu.enabled needs gpus.enabled"}},
		{"values that are one string", "driver_stack", chart + "\n" + `values = "a: 1"`, []string{"values", "list of string required"}},
		{"a release name of 54 " +
			"characters", "driver_stack", chart + "\n" + `name = "` + strings.Repeat("a", 54) + `"`,
			[]string{"Attribute name", "at most 53", "got: 54"}},
		{"a release name with an " +
			"underscore", "driver_stack", chart + "\n" + `name = "gpu_fabric"`, []string{"Attribute name", "got: gpu_fabric"}},
		{"a namespace in capitals", "driver_stack", chart + "\n" + `namespace = "GPU"`, []string{"Attribute namespace", "got: GPU"}},
		{"a stack that waits for something else", "driver_stack", chart + "\n" + `wait_for = "ready"`,
			[]string{"Attribute wait_for", `["rollout" "none"]`}},
		{"a component that is no boolean", "driver_stack", chart + "\n" + `components = { gpus = "some" }`,
			[]string{"components", "a bool is required"}},
		{"a driver root that is " +
			"relative", "driver_stack", chart + "\n" + `hardware = { driver_root = "run/nvidia" }`,
			[]string{"Attribute hardware.driver_root", "absolute path", "got: run/nvidia"}},
		{"a host mount that is " +
			"relative", "driver_stack", chart + "\n" + `hardware = { host_mounts = ["/a", "b"] }`,
			[]string{"Attribute hardware.host_mounts", "absolute path"}},

		// gpufabric_rdma_pool
		{"a pool without a resource", "rdma_pool", `name = "a"` + "\n" + `devices = ["ib0"]`, []string{`"resource_name" is required`}},
		{"a resource with a dash", "rdma_pool", `name = "a"` + "\n" + `devices = ["ib0"]` + "\n" + `resource_name = "hca-a"`,
			[]string{"resource_name", `"hca-a"`, "letters, digits and _"}},
		{"a pool without devices and " +
			"selectors", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"`, []string{"selectors", "at least one selector"}},
		{"a pool with devices and " +
			"selectors", "rdma_pool", `name = "a"` + "\n" + `devices = ["ib0"]` + "\n" + pool, []string{"devices", "not both"}},
		{"a pool of -1 units", "rdma_pool", `name = "a"` + "\n" + `rdma_hca_max = -1` + "\n" + pool,
			[]string{"rdma_hca_max", "-1", "must not be negative"}},
		{"a pool of too many units", "rdma_pool", `name = "a"` + "\n" + `rdma_hca_max = 100001` + "\n" + pool,
			[]string{"rdma_hca_max", "100001", "at most 100000"}},
		{"an exclusive pool with units", "rdma_pool", `name = "a"` + "\n" + `mode = "Exclusive"` + "\n" + `rdma_hca_max = 1` + "\n" + pool,
			[]string{"rdma_hca_max", "mode Exclusive"}},
		{"a pool of an unknown mode", "rdma_pool", `name = "a"` + "\n" + `mode = "shared"` + "\n" + pool,
			[]string{"mode", `"shared"`, `"Shared"`, `"Exclusive"`}},
		{"a pool with unknown device nodes", "rdma_pool", `name = "a"` + "\n" + `device_nodes = "Some"` + "\n" + pool,
			[]string{"device_nodes", `"Some"`, `"All"`}},
		{"an exclusive pool with all device nodes", "rdma_pool", `name = "a"` + "\n" + `mode = "Exclusive"` + "\n" + `device_nodes = "All"` +
			"\n" + pool, []string{"device_nodes", "must be Allocated"}},
		{"a prefix that is Kubernetes' own", "rdma_pool", `name = "a"` + "\n" + `resource_prefix = "kubernetes.io"` + "\n" + pool,
			[]string{"resource_prefix", "domain of your own"}},
		{"a vendor that is a name", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" +
			`selectors = { vendors = ["15b3", "mellanox"] }`, []string{"selectors.vendors", `"mellanox"`, "four hexadecimal digits"}},
		{"a link type that there is not", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `selectors = { link_types = ["ib"] }`,
			[]string{"selectors.link_types", `"ib"`, `"ether"`, `"infiniband"`}},
		{"a link layer that there is not", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" +
			`selectors = { link_layers = ["infiniband"] }`, []string{"selectors.link_layers", `"InfiniBand"`}},
		{"a PCI address without a " +
			"function", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `selectors = { pci_addresses = ["3b:00"] }`,
			[]string{"selectors.pci_addresses", "0000:3b:00.0"}},
		{"an ACPI index of zero", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `selectors = { acpi_indexes = ["101", "0"] }`,
			[]string{"selectors.acpi_indexes", "such as 101"}},
		{"a pool that only says is_rdma = false", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" +
			`selectors = { is_rdma = false }`, []string{"selectors", "at least one selector"}},
		{"a range of virtual functions " +
			"backwards", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `selectors = { pf_names = ["ens2f0#7-2"] }`,
			[]string{"selectors.pf_names", "#0,2-7"}},
		{"a root device that is a name", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" +
			`selectors = { root_devices = ["ens2f0"] }`, []string{"selectors.root_devices", "PCI address"}},
		{"a partition key of zero", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `selectors = { p_keys = ["0x0000"] }`,
			[]string{"selectors.p_keys", "0x0001 to 0xffff"}},
		{"a negative NUMA node", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `selectors = { numa_nodes = [-1] }`,
			[]string{"selectors.numa_nodes", "must not be negative"}},
		{"a negative rate", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `selectors = { min_rate_gbps = -1 }`,
			[]string{"selectors.min_rate_gbps", "must not be negative"}},
		{"an interface name of 16 " +
			"characters", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" + `devices = ["abcdefghijklmnop"]`,
			[]string{"devices", "1 to 15 characters"}},
		{"a node selector with an unknown " +
			"operator", "rdma_pool", `name = "a"` + "\n" + `node_selector = { match_expressions = [{ key = "a", operator = "Is" }] }` + "\n" + pool,
			[]string{"node_selector.match_expressions", "].operator", `"DoesNotExist"`, `got: "Is"`}},
		{"a node selector In nothing", "rdma_pool", `name = "a"` + "\n" +
			`node_selector = { match_expressions = [{ key = "a", operator = "In" }] }` + "\n" + pool,
			[]string{"node_selector.match_expressions[*].values", "must be specified"}},
		{"a node selector with no labels", "rdma_pool", `name = "a"` + "\n" + `node_selector = { match_labels = {} }` + "\n" + pool,
			[]string{"node_selector.match_labels", "at least 1"}},
		{"a pool with a namespace", "rdma_pool", `name = "a"` + "\n" + `namespace = "b"` + "\n" + pool, []string{"namespace"}},
		// The API does not distinguish an empty value from a missing one, so a plan with an empty value could not come true.
		{"an empty prefix", "rdma_pool", `name = "a"` + "\n" + `resource_prefix = ""` + "\n" + pool,
			[]string{"Attribute resource_prefix", "at least 1"}},
		{"an empty mode", "rdma_pool", `name = "a"` + "\n" + `mode = ""` + "\n" + pool, []string{"Attribute mode", "at least 1"}},
		{"empty device nodes", "rdma_pool", `name = "a"` + "\n" + `device_nodes = ""` + "\n" + pool,
			[]string{"Attribute device_nodes", "at least 1"}},
		{"a node selector with no " +
			"expressions", "rdma_pool", `name = "a"` + "\n" + `node_selector = { match_expressions = [] }` + "\n" + pool,
			[]string{"node_selector.match_expressions", "at least 1"}},
		{"an expression with no values", "rdma_pool", `name = "a"` + "\n" +
			`node_selector = { match_expressions = [{ key = "a", operator = "Exists", values = [] }] }` + "\n" + pool,
			[]string{"node_selector.match_expressions", "].values", "at least 1"}},

		// gpufabric_vgpu_profile
		{"a profile without a mode", "vgpu_profile", `name = "a"`, []string{`"mode" is required`}},
		{"a profile of an unknown mode", "vgpu_profile", `name = "a"` + "\n" + `mode = "hami-core"`,
			[]string{"mode", `"hami-core"`, `"Software"`}},
		{"a software slice without memory", "vgpu_profile", `name = "a"` + "\n" + `mode = "Software"`, []string{"memory", "such as 10Gi"}},
		{"a MIG slice without a size", "vgpu_profile", `name = "a"` + "\n" + `mode = "MIG"`, []string{"memory", "memory or cores"}},
		{"an exclusive slice with cores", "vgpu_profile", `name = "a"` + "\n" + `mode = "Exclusive"` + "\n" + `cores = 50`,
			[]string{"cores", "not allowed with mode Exclusive"}},
		{"a MIG slice with a split", "vgpu_profile", `name = "a"` + "\n" + `mode = "MIG"` + "\n" + `cores = 50` + "\n" + `split = 2`,
			[]string{"split", "only allowed with mode Software"}},
		{"memory that is no quantity", "vgpu_profile", `name = "a"` + "\n" + `mode = "Software"` + "\n" + `memory = "10 GB"`,
			[]string{"memory", `"10 GB" is no quantity`, "10Gi"}},
		{"memory of one byte", "vgpu_profile", `name = "a"` + "\n" + `mode = "Software"` + "\n" + `memory = "1"`,
			[]string{"memory", "at least 1Mi"}},
		{"memory of two tebibytes", "vgpu_profile", `name = "a"` + "\n" + `mode = "Software"` + "\n" + `memory = "2Ti"`,
			[]string{"memory", "at most 1Ti"}},
		{"zero cores", "vgpu_profile", `name = "a"` + "\n" + `mode = "Software"` + "\n" + `memory = "1Gi"` + "\n" + `cores = 0`,
			[]string{"cores", "between 1 and 100"}},
		{"cores over a hundred", "vgpu_profile", `name = "a"` + "\n" + `mode = "Software"` + "\n" + `memory = "1Gi"` + "\n" + `cores = 101`,
			[]string{"cores", "101", "between 1 and 100"}},
		{"a split of zero", "vgpu_profile", `name = "a"` + "\n" + `mode = "Software"` + "\n" + `memory = "1Gi"` + "\n" + `split = 0`,
			[]string{"split", "between 1 and 100"}},
		{"an unknown policy", "vgpu_profile", `name = "a"` + "\n" + `mode = "Exclusive"` + "\n" + `policy = "numa"`,
			[]string{"policy", `"numa"`, `"Binpack"`}},
		{"an empty policy", "vgpu_profile", `name = "a"` + "\n" + `mode = "Exclusive"` + "\n" + `policy = ""`,
			[]string{"Attribute policy", "at least 1"}},
		{"a namespace that cannot be", "vgpu_profile", `name = "a"` + "\n" + `mode = "Exclusive"` + "\n" + `namespaces = ["A"]`,
			[]string{"namespaces", `"A"`}},
		{"an empty product name", "vgpu_profile", `name = "a"` + "\n" + `mode = "Exclusive"` + "\n" + `product_names = [""]`,
			[]string{"product_names", "1 to 64 characters"}},

		// gpufabric_mig_layout
		{"a layout that is not among the layouts", "mig_layout", `name = "a"` + "\n" + `layout = "y"` + "\n" + layouts,
			[]string{"layout", `"y"`, "it has x"}},
		{"no layouts at all", "mig_layout", `name = "a"` + "\n" + `layout = "y"` + "\n" + `layouts = {}`, []string{"layouts", "at least 1"}},
		{"an unknown profile", "mig_layout", `name = "a"` + "\n" + `layout = "x"` + "\n" +
			`layouts = { x = { gpus = [{ mig_devices = { small = 1 } }] } }`,
			[]string{`layouts["x"].gpus[0].mig_devices["small"]`, "must be a MIG profile"}},
		{"nine instances", "mig_layout", `name = "a"` + "\n" + `layout = "x"` + "\n" +
			`layouts = { x = { gpus = [{ mig_devices = { "1g.5gb" = 9 } }] } }`,
			[]string{`layouts["x"].gpus[0].mig_devices["1g.5gb"]`, "between 1 and 8"}},
		{"a GPU index below zero", "mig_layout", `name = "a"` + "\n" + `layout = "x"` + "\n" +
			`layouts = { x = { gpus = [{ devices = [-1] }] } }`, []string{`layouts["x"].gpus[0].devices`, "between 0 and 255"}},
		{"a GPU index of more than 31 bits", "mig_layout", `name = "a"` + "\n" + `layout = "x"` + "\n" +
			`layouts = { x = { gpus = [{ devices = [3000000000] }] } }`, []string{`layouts["x"].gpus[0].devices`, "between 0 and 255"}},
		{"more than 31 bits of instances", "mig_layout", `name = "a"` + "\n" + `layout = "x"` + "\n" +
			`layouts = { x = { gpus = [{ mig_devices = { "1g.5gb" = 3000000000 } }] } }`, []string{`mig_devices["1g.5gb"]`, "between 1 and 8"}},
		{"a NUMA node of more than 31 bits", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" +
			`selectors = { numa_nodes = [3000000000] }`, []string{"numa_nodes", "between 0 and 2147483647"}},
		{"a rate of more than 31 bits", "rdma_pool", `name = "a"` + "\n" + `resource_name = "a"` + "\n" +
			`selectors = { min_rate_gbps = 3000000000 }`, []string{"min_rate_gbps", "between 0 and 2147483647"}},
		{"a device filter that is a name", "mig_layout", `name = "a"` + "\n" + `layout = "x"` + "\n" +
			`layouts = { x = { gpus = [{ device_filter = ["A100"] }] } }`, []string{`layouts["x"].gpus[0].device_filter`, "0x20B010DE"}},
		{"an empty device filter", "mig_layout", `name = "a"` + "\n" + `layout = "x"` + "\n" +
			`layouts = { x = { gpus = [{ device_filter = [] }] } }`, []string{`layouts["x"].gpus[0].device_filter`, "at least 1"}},

		{"a profile's name that is too long for a resource", "vgpu_profile", `name = "` + strings.Repeat("a", 64) + `"` + "\n" +
			`mode = "Exclusive"`, []string{"name", "extended resource", "63"}},

		// gpufabric_secondary_network
		{"a network of an unknown type", "secondary_network", `name = "a"` + "\n" + `type = "sriov"`,
			[]string{"Attribute type", `["macvlan" "ipoib" "host-device"]`, `got: "sriov"`}},
		{"a macvlan without a master", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"`, []string{"master", "Required value"}},
		{"a host device with a master", "secondary_network", `name = "a"` + "\n" + `type = "host-device"` + "\n" + `master = "eth0"`,
			[]string{"master", "not allowed with type host-device"}},
		{"a host device that is not named", "secondary_network", `name = "a"` + "\n" + `type = "host-device"`,
			[]string{"pci_bus_id", "selects the NIC"}},
		{"a macvlan with a PCI address", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`pci_bus_id = "0000:3b:00.0"`, []string{"pci_bus_id", "only allowed with type host-device"}},
		{"an ipoib with a mode", "secondary_network", `name = "a"` + "\n" + `type = "ipoib"` + "\n" + `master = "ib0"` + "\n" + `mode = "bridge"`,
			[]string{"mode", "only allowed with type macvlan"}},
		{"a macvlan of an unknown mode", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`mode = "fast"`, []string{"Attribute mode", `"passthru"`}},
		{"an MTU of 10", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" + `mtu = 10`,
			[]string{"Attribute mtu", "between 68 and 65520", "got: 10"}},
		{"a range without a length", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`ipam = { range = "10.0.0.0" }`, []string{"ipam.range", `"10.0.0.0"`, "CIDR"}},
		{"a gateway outside the range", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`ipam = { range = "10.0.0.0/24", gateway = "10.0.1.1" }`, []string{"ipam.gateway", `"10.0.1.1"`, "10.0.0.0/24"}},
		{"an empty gateway", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`ipam = { range = "10.0.0.0/24", gateway = "" }`, []string{"ipam.gateway", "at least 1"}},
		{"an empty first address", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`ipam = { range = "10.0.0.0/24", range_start = "" }`, []string{"ipam.range_start", "at least 1"}},
		{"a last address before the first", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`ipam = { range = "10.0.0.0/24", range_start = "10.0.0.20", range_end = "10.0.0.10" }`,
			[]string{"ipam.range_end", `"10.0.0.10"`, "10.0.0.20"}},
		{"an exclusion outside the range", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`ipam = { range = "10.0.0.0/24", exclude = ["10.0.1.0/28"] }`, []string{"ipam.exclude", "10.0.0.0/24"}},
		{"a resource without a prefix", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`resource_name = "hca"`, []string{"Attribute resource_name", "prefix/name"}},
		{"a resource as an annotation", "secondary_network", `name = "a"` + "\n" + `type = "macvlan"` + "\n" + `master = "eth0"` + "\n" +
			`annotations = { "k8s.v1.cni.cncf.io/resourceName" = "rdma/a" }`, []string{"annotations", "set resource_name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := fmt.Sprintf(
				"provider \"gpufabric\" {\n  host = \"https://127.0.0.1:1\"\n}\nresource \"gpufabric_%s\" \"test\" {\n%s\n}\n",
				c.kind,
				c.body,
			)
			check(t, resource.TestStep{Config: config, PlanOnly: true, ExpectError: inOrder(c.want...)})
		})
	}
}

// inOrder makes a pattern that finds the texts one after the other, however Terraform breaks the lines.
func inOrder(texts ...string) *regexp.Regexp {
	patterns := make([]string, len(texts))
	for i, text := range texts {
		patterns[i] = words(text).String()
	}
	return regexp.MustCompile("(?s)" + strings.Join(patterns, ".*"))
}
