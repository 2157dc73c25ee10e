package provider

import (
	"fmt"
	"strings"
	"testing"

	"gpufabric.io/provider/internal/apiserver"
)

// testEmptyValues applies values that are as good as left out: each is refused by the plan, or the plan after the apply is empty.
func testEmptyValues(t *testing.T, s *apiserver.Server) {
	const layouts = "layout = \"a\"\n  layouts = { a = { gpus = [%s] } }"
	layout := func(entry string) string { return fmt.Sprintf(layouts, entry) }
	for i, test := range []struct{ kind, body, refused string }{
		{"rdma_pool", "selectors = { if_names = [\"ib0\"], vendors = [], numa_nodes = [], is_rdma = false, min_rate_gbps = 0 }", ""},
		{"rdma_pool", "devices = []\n  selectors = { if_names = [\"ib0\"] }", ""},
		{"rdma_pool", "devices = [\"ib0\"]\n  selectors = {}", ""},
		{"rdma_pool", "devices = [\"ib0\"]\n  selectors = { vendors = [] }", ""},
		{"rdma_pool", "devices = [\"ib0\"]\n  node_selector = {}", ""},
		{"rdma_pool", "devices = [\"ib0\"]\n  node_selector = { match_expressions = [{ key = \"a\", operator = \"Exists\", values = null }] }",
			""},
		{"rdma_pool", "devices = [\"ib0\"]\n  labels = {}\n  annotations = { a = \"\" }", ""},
		{"rdma_pool", "devices = [\"ib0\", \"\"]", "devices"},
		{"vgpu_profile", "mode = \"Exclusive\"\n  namespaces = []\n  product_names = []\n  node_selector = null", ""},
		{"vgpu_profile", "mode = \"Exclusive\"\n  cores = 0", "cores"},
		{"vgpu_profile", "mode = \"Exclusive\"\n  split = 0", "split"},
		{"vgpu_profile", "mode = \"Exclusive\"\n  memory = \"0\"", "memory"},
		{"vgpu_profile", "mode = \"MIG\"\n  memory = \"1000m\"", "memory"},
		{"mig_layout", layout("{ devices = [] }"), "devices"},
		{"mig_layout", layout("{ mig_devices = {} }"), ""},
		{"mig_layout", layout("{ mig_devices = { \"1g.10gb\" = 0 } }"), "mig_devices"},
		{"mig_layout", layout("{ devices = [1, 0], mig_devices = {} }, { devices = [2] }"), ""},
		{"secondary_network", "type = \"ipoib\"\n  master = \"ib0\"\n  ipam = { range = \"10.0.0.0/8\", exclude = [] }", ""},
		{"secondary_network", "type = \"ipoib\"\n  master = \"ib0\"\n  ipam = { range = \"fd00::/64\", gateway = \"fd00::0001\" }", ""},
		{"secondary_network", "type = \"ipoib\"\n  master = \"i<&b0\"\n  annotations = {}", ""},
	} {
		t.Run(fmt.Sprint(test.kind, ": ", strings.Join(strings.Fields(test.body), " ")), func(t *testing.T) {
			more := ""
			if test.kind == "rdma_pool" {
				more = "resource_name = \"a\"\n  "
			}
			c := newCore(t)
			cfg, err := c.parse(as(s) + fmt.Sprintf("resource \"gpufabric_%s\" \"test\" {\n  name = \"empty-%d\"\n  %s%s\n}\n", test.kind, i, more,
				test.body))
			must(t, err)
			err = c.converge(t.Context(), cfg, nil)
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) || len(c.instances) > 0 {
					t.Errorf("want a plan that names %s, got error %v", test.refused, err)
				}
			} else if err != nil {
				t.Error(err)
			} else if changes, err := c.preview(t.Context(), cfg); err != nil || changes[0].action != "no-op" {
				t.Errorf("the plan after the apply: %s, error %v\n%v\n%v", changes[0].action, err, changes[0].prior, changes[0].planned)
			}
			cfg.blocks = nil
			must(t, c.converge(t.Context(), cfg, nil))
		})
	}
}
