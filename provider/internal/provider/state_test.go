package provider

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// texts reads the string attributes of a state that are set.
func texts(t *testing.T, schema *tfprotov6.Schema, state *tfprotov6.DynamicValue) map[string]string {
	t.Helper()
	value, err := state.Unmarshal(schema.ValueType())
	must(t, err)
	attributes := map[string]tftypes.Value{}
	must(t, value.As(&attributes))
	set := map[string]string{}
	for name, v := range attributes {
		var text *string
		if v.Type().Is(tftypes.String) && v.As(&text) == nil && text != nil {
			set[name] = *text
		}
	}
	return set
}

// Every schema is at version 0. A state of version 0 that an older build wrote is read as it is: what was added since is null, what was
// dropped is left out, and a list of one that is a set now is read. Nothing was released, so no upgrader exists.
func TestProviderReadsStateOfVersion0(t *testing.T) {
	server, schemas := newServer(t)
	for name, schema := range schemas.ResourceSchemas {
		t.Run(name, func(t *testing.T) {
			if schema.Version != 0 {
				t.Fatalf("the schema is at version %d: write a state upgrader, and a test of it", schema.Version)
			}
			state := `{"id": "x", "name": "old", "dropped_since": true}`
			if name == "gpufabric_rdma_pool" {
				state = `{"id": "x", "name": "old", "devices": ["ib1", "ib0"], "node_selector": {"match_labels": {"a": "b"}, "match_expressions": []}}`
			}
			resp, err := server.UpgradeResourceState(t.Context(), &tfprotov6.UpgradeResourceStateRequest{TypeName: name, Version: 0,
				RawState: &tfprotov6.RawState{JSON: []byte(state)}})
			must(t, err)
			for _, d := range resp.Diagnostics {
				t.Errorf("%s: %s", d.Summary, d.Detail)
			}
			if got := texts(t, schema, resp.UpgradedState); len(got) != 2 || got["name"] != "old" || got["id"] != "x" {
				t.Errorf("got %v, want id and name", got)
			}
		})
	}
}

func TestProviderMovesStateOfOtherProviders(t *testing.T) {
	const kubernetes, helm = "registry.terraform.io/hashicorp/kubernetes", "registry.opentofu.org/hashicorp/helm"
	manifest := func(apiVersion, kind, metadata string) string {
		return fmt.Sprintf(
			`{"manifest": {"value": {"apiVersion": %q, "kind": %q, "metadata": %s}, "type": ["object", {}]}, "wait": null}`,
			apiVersion,
			kind,
			metadata,
		)
	}
	server, schemas := newServer(t)
	for _, c := range []struct {
		name, provider, source, state, target string
		id, wrong                             string
	}{
		{"a ComputeDomain comes from a kubernetes_manifest", kubernetes, "kubernetes_manifest",
			manifest("resource.nvidia.com/v1beta1", "ComputeDomain", `{"name": "rack", "namespace": "team"}`), "gpufabric_compute_domain",
			"team/rack", ""},
		{"without a namespace it is in default", kubernetes, "kubernetes_manifest",
			manifest("resource.nvidia.com/v1beta1", "ComputeDomain", `{"name": "rack"}`), "gpufabric_compute_domain", "default/rack", ""},
		{"a cluster-wide kind has none", kubernetes, "kubernetes_manifest",
			manifest("gpufabric.io/v1alpha1", "MIGLayout", `{"name": "halves"}`), "gpufabric_mig_layout", "halves", ""},
		{"another kind is refused with both names", kubernetes, "kubernetes_manifest",
			manifest("v1", "ConfigMap", `{"name": "x"}`), "gpufabric_rdma_pool", "", "the kubernetes_manifest holds a ConfigMap of v1"},
		{"a manifest of another form is refused with what to do", kubernetes, "kubernetes_manifest", `{"manifest": 7}`, "gpufabric_rdma_pool", "",
			"Import the object instead"},
		{"a driver stack comes from a " +
			"helm_release", helm, "helm_release", `{"name": "gpufabric", "namespace": "gpufabric-system", "chart": "./gpufabric"}`,
			"gpufabric_driver_stack", "gpufabric-system/gpufabric", ""},
		{"another resource does not", kubernetes, "kubernetes_config_map", `{"metadata": []}`, "gpufabric_compute_domain", "", "move"},
		{"nor one of another provider", "registry.terraform.io/somebody/kubernetes-like", "kubernetes_manifest",
			manifest("gpufabric.io/v1alpha1", "MIGLayout", `{"name": "x"}`), "gpufabric_mig_layout", "", "move"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, err := server.MoveResourceState(
				t.Context(),
				&tfprotov6.MoveResourceStateRequest{SourceProviderAddress: c.provider, SourceTypeName: c.source, TargetTypeName: c.target,
					SourceState: &tfprotov6.RawState{JSON: []byte(c.state)}},
			)
			must(t, err)
			var said strings.Builder
			for _, d := range resp.Diagnostics {
				said.WriteString(d.Summary + ": " + d.Detail)
			}
			if c.wrong != "" {
				if !strings.Contains(strings.ToLower(said.String()), strings.ToLower(c.wrong)) {
					t.Errorf("got %q, want %q in it", said.String(), c.wrong)
				}
				return
			}
			if said.Len() > 0 {
				t.Fatal(said.String())
			}
			if got := texts(t, schemas.ResourceSchemas[c.target], resp.TargetState); got["id"] != c.id {
				t.Errorf("got %v, want the id %s", got, c.id)
			}
			if resp.TargetIdentity == nil {
				t.Error("the moved resource has no identity")
			}
		})
	}
}
