package provider

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/provider/internal/apiserver"
)

const poolAddress = "gpufabric_rdma_pool.test"

func pool(s *apiserver.Server, name, more string) string {
	return as(s) + fmt.Sprintf("resource \"gpufabric_rdma_pool\" \"test\" {\n  name = %q\n%s\n}\n", name, more)
}

func testRDMAPool(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, filepath.Join(repository, "drivers/api/crds/gpufabric.io_rdmapools.yaml"))
	s.Serve(t, rdmaPoolKind.GVR(), func(obj *unstructured.Unstructured) map[string]any {
		if units, _, _ := unstructured.NestedInt64(obj.Object, "spec", "rdmaHcaMax"); obj.GetName() == "edited" && units == 5 {
			_, err := s.Dynamic.Resource(
				rdmaPoolKind.GVR(),
			).Patch(
				t.Context(),
				"edited",
				"application/merge-patch+json",
				[]byte(`{"spec":{"rdmaHcaMax":6}}`),
				metav1.PatchOptions{FieldManager: "kubectl-edit"},
			)
			must(t, err)
		}
		node := map[string]any{
			"name":               "a",
			"observedGeneration": obj.GetGeneration(),
			"devices":            int64(2),
			"healthyDevices":     int64(2),
			"units":              int64(64),
		}
		return map[string]any{
			"observedGeneration": obj.GetGeneration(),
			"resource":           "rdma/x",
			"nodes":              []any{node},
			"healthyDevices":     node["healthyDevices"],
			"conditions":         []any{readyCondition("True")},
		}
	})
	t.Run("that somebody edits while it is waited for is applied as planned, and the next plan shows the edit", func(t *testing.T) {
		check(t, resource.TestStep{Config: pool(s, "edited", "resource_name = \"a\"\ndevices = [\"ib0\"]\nrdma_hca_max = 5"),
			Check: resource.TestCheckResourceAttr(poolAddress, "rdma_hca_max", "5"), ExpectNonEmptyPlan: true})
	})
	t.Run("is created with every setting, changed in place and imported", func(t *testing.T) {
		full := `
			resource_name = "hca_shared_devices_a"
			rdma_hca_max  = 64
			device_nodes  = "All"
			node_selector = {
				match_labels      = { rack = "1" }
				match_expressions = [{ key = "gpu", operator = "Exists" }, { key = "zone", operator = "In", values = ["a", "b"] }]
			}
			selectors = { vendors = ["15b3"], acpi_indexes = ["101"], pf_names = ["ens2f0#0,2-7"], numa_nodes = [0, 1], min_rate_gbps = 400, ` +
			`is_rdma = true }
			wait_for  = "ready"`
		check(t, resource.TestStep{Config: pool(s, "full", full), Check: resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr(poolAddress, "id", "full"),
			resource.TestCheckResourceAttr(poolAddress, "ready", "true"),
			resource.TestCheckResourceAttr(poolAddress, "resource", "rdma/hca_shared_devices_a"),
			resource.TestCheckResourceAttr(poolAddress, "nodes.0.units", "64"),
		)}, resource.TestStep{ResourceName: poolAddress, ImportState: true, ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"wait_for"}}, resource.TestStep{Config: pool(s, "full",
			"resource_name = \"hca_shared_devices_a\"\nselectors = { vendors = [\"15b3\"] }"),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(poolAddress, plancheck.ResourceActionUpdate)},
			},
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(poolAddress, "rdma_hca_max", "0"),
				resource.TestCheckNoResourceAttr(poolAddress, "node_selector.match_labels.rack")),
		})
	})
	t.Run("that somebody edited is set back", func(t *testing.T) {
		config := pool(s, "edited-once", "resource_name = \"a\"\ndevices = [\"ib0\"]\nrdma_hca_max = 7")
		check(t, resource.TestStep{Config: config}, resource.TestStep{PreConfig: func() {
			_, err := s.Dynamic.Resource(rdmaPoolKind.GVR()).Patch(t.Context(), "edited-once", "application/merge-patch+json",
				[]byte(`{"spec":{"rdmaHcaMax":6}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
			must(t, err)
		}, Config: config, ConfigPlanChecks: updates(poolAddress)})
	})
	t.Run("whose fields somebody else applies is not overwritten, unless told so", func(t *testing.T) {
		taken := pool(s, "taken", "resource_name = \"a\"\ndevices = [\"ib0\"]\nrdma_hca_max = 7")
		check(t, resource.TestStep{Config: pool(s, "taken", "resource_name = \"a\"\ndevices = [\"ib0\"]\nrdma_hca_max = 5")},
			resource.TestStep{PreConfig: func() {
				obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool",
					"metadata": map[string]any{"name": "taken"},
					"spec":     map[string]any{"resourceName": "a", "devices": []any{"ib0"}, "rdmaHcaMax": int64(6)}}}
				_, err := s.Dynamic.Resource(rdmaPoolKind.GVR()).Apply(t.Context(), "taken", obj,
					metav1.ApplyOptions{FieldManager: "flux", Force: true})
				must(t, err)
			}, Config: taken, ExpectError: words(`.spec.rdmaHcaMax is owned by "flux"`)},
			resource.TestStep{Config: pool(s, "taken", "resource_name = \"a\"\ndevices = [\"ib0\"]\nrdma_hca_max = 7\nforce_conflicts = true"),
				Check: resource.TestCheckResourceAttr(poolAddress, "rdma_hca_max", "7")})
	})
	t.Run("to which somebody else applies a field that the configuration leaves out is not written, unless told so", func(t *testing.T) {
		const base = "resource_name = \"a\"\ndevices = [\"ib0\"]\nrdma_hca_max = "
		pools := s.Dynamic.Resource(rdmaPoolKind.GVR())
		check(t, resource.TestStep{Config: pool(s, "extended", base+"5")},
			resource.TestStep{PreConfig: func() {
				obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool",
					"metadata": map[string]any{"name": "extended"},
					"spec":     map[string]any{"rdmaHcaMax": int64(6), "nodeSelector": map[string]any{"matchLabels": map[string]any{"a": "b"}}}}}
				_, err := pools.Apply(t.Context(), "extended", obj, metav1.ApplyOptions{FieldManager: "flux", Force: true})
				must(t, err)
			}, Config: pool(s, "extended", base+"7"),
				ExpectError: regexp.MustCompile(`(?s)\.spec\.nodeSelector is owned by "flux".*\.spec\.rdmaHcaMax is owned by "flux"`)},
			resource.TestStep{PreConfig: func() {
				live, err := pools.Get(t.Context(), "extended", metav1.GetOptions{})
				must(t, err)
				if units, _, _ := unstructured.NestedInt64(live.Object, "spec", "rdmaHcaMax"); units != 6 {
					t.Errorf("the refused apply wrote rdmaHcaMax = %d", units)
				}
			}, Config: pool(s, "extended", base+"7\nforce_conflicts = true"), Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(poolAddress, "rdma_hca_max", "7"),
				resource.TestCheckNoResourceAttr(poolAddress, "node_selector.match_labels.a"))})
	})
	t.Run("of which an apply writes a part only is in the state as it is then, and the next apply goes on", func(t *testing.T) {
		proxy := newCounter(t, s)
		config := func(c *core, units int) *configuration {
			cfg, err := c.parse(fmt.Sprintf("provider \"gpufabric\" {\n  host = %q\n  token = %q\n  insecure = true\n}\nresource "+
				"\"gpufabric_rdma_pool\" \"test\" {\n  name = \"partly\"\n  resource_name = \"a\"\n  devices = [\"ib0\"]\n  rdma_hca_max = %d\n}\n",
				proxy.url, apiserver.AdminToken, units))
			must(t, err)
			return cfg
		}
		c := newCore(t)
		must(t, c.converge(t.Context(), config(c, 5), nil))
		_, err := s.Dynamic.Resource(rdmaPoolKind.GVR()).Patch(t.Context(), "partly", types.MergePatchType,
			[]byte(`{"spec":{"nodeSelector":{"matchLabels":{"nobody":"here"}}}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
		must(t, err)
		proxy.refuse(string(types.MergePatchType))
		if err := c.converge(t.Context(), config(c, 7), nil); err == nil {
			t.Error("the apply hides that the foreign field stays")
		}
		shown := map[string]string{}
		flatten(shown, "", c.instances[poolAddress].state)
		if shown["rdma_hca_max"] != "7" || shown["node_selector.match_labels.nobody"] != "here" {
			t.Errorf("the state after the write: rdma_hca_max %s, node_selector %s; want what the cluster has",
				shown["rdma_hca_max"], shown["node_selector.match_labels.nobody"])
		}
		proxy.refuse("")
		must(t, c.converge(t.Context(), config(c, 7), nil))
		if changes, err := c.preview(t.Context(), config(c, 7)); err != nil || changes[0].action != "no-op" {
			t.Errorf("the plan after it: %s, error %v", changes[0].action, err)
		}
		cfg := config(c, 7)
		cfg.blocks = nil
		must(t, c.converge(t.Context(), cfg, nil))
	})
	t.Run("that is there already is not taken over, and the import is spelt out", func(t *testing.T) {
		check(t, resource.TestStep{PreConfig: func() {
			obj := &unstructured.Unstructured{
				Object: map[string]any{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool", "metadata": map[string]any{"name": "theirs"},
					"spec": map[string]any{"resourceName": "a", "devices": []any{"ib0"}}},
			}
			_, err := s.Dynamic.Resource(rdmaPoolKind.GVR()).Create(t.Context(), obj, metav1.CreateOptions{FieldManager: "kubectl-create"})
			must(t, err)
		}, Config: pool(s, "theirs", "resource_name = \"a\"\ndevices = [\"ib0\"]"), ExpectError: words(`managed by "kubectl-create"`)})
	})
}
