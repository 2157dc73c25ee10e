package provider

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

func TestFunctionsComputeAndRejectArguments(t *testing.T) {
	call := func(text string) string { return "output \"test\" {\n  value = provider::gpufabric::" + text + "\n}\n" }
	const config = `{"configList": [{"resourceName": "a", "rdmaHcaMax": 10, "selectors": {"vendors": ["15b3"], "linkTypes": ` +
		`["infiniband"]}}, {"resourceName": "b", "devices": ["ib0"]}]}`
	for _, c := range []struct {
		name, call string
		want       knownvalue.Check
	}{
		{"parse_clique_id", `parse_clique_id("69a19a31-f41c-45a5-8245-579b6bce5bdd.32766").clique_id`, knownvalue.Int64Exact(32766)},
		{"parse_mig_profile", `parse_mig_profile("1g.10gb+me").attributes[0]`, knownvalue.StringExact("me")},
		{"mig_layouts with a profile twice", `mig_layouts("H100-80GB", "3g.40gb", "3g.40gb")[0][1]`, knownvalue.StringExact("3g.40gb")},
		{"mig_layouts that do not exist", `mig_layouts("H100-80GB", "7g.80gb", "1g.10gb")`, knownvalue.ListSizeExact(0)},
		{"vgpu_fit", `vgpu_fit(49140, 10240, 10, 10).slices`, knownvalue.Int64Exact(4)},
		{"rdma_selector of selectors", "rdma_selector(" + quote(config) + `, "a").link_types`,
			knownvalue.SetExact([]knownvalue.Check{knownvalue.StringExact("infiniband")})},
		{"rdma_selector of devices", "rdma_selector(" + quote(config) + `, "b").if_names`,
			knownvalue.SetExact([]knownvalue.Check{knownvalue.StringExact("ib0")})},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := newCore(t).parse(call(c.call))
			must(t, err)
			text, err := ctyjson.Marshal(cfg.outputs["test"], cfg.outputs["test"].Type())
			must(t, err)
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.UseNumber()
			var got any
			must(t, decoder.Decode(&got))
			must(t, c.want.CheckValue(got))
		})
	}
	for _, c := range []struct{ name, call, want string }{
		{"a wrong clique names the form", `parse_clique_id("rack-1")`, "want <ClusterUUID>.<CliqueID>"},
		{"a wrong profile names the form", `parse_mig_profile("big")`, "is not a MIG profile"},
		{"a wrong model names those known", `mig_layouts("T4")`, "want one of A100-40GB"},
		{"a profile that the model lacks is named", `mig_layouts("H100-80GB", "1g.5gb")`, `has no profile "1g.5gb"`},
		{"a slice larger than the GPU is refused", `vgpu_fit(1, 2, 0, 1)`, "more than the GPU's 1 MiB"},
		{"a config.json without the entry names those there", "rdma_selector(" + quote(config) + `, "c")`, "it has a, b"},
		{"text that is no config.json is refused", `rdma_selector("x", "c")`, "not a config.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := newCore(t).parse(call(c.call)); err == nil || !words(c.want).MatchString(err.Error()) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// quote writes a string as HCL does.
func quote(s string) string { return strconv.Quote(s) }
