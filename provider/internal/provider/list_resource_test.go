package provider

import (
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
)

// testList speaks the plugin protocol itself: `terraform query` needs Terraform 1.14, the protocol does not.
func testList(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	for _, name := range []string{"listed-a", "listed-b", "listed-c"} {
		obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
			"metadata": map[string]any{
				"name":   name,
				"labels": map[string]any{"name": name},
			}, "spec": map[string]any{"numNodes": int64(2), "channel": map[string]any{"resourceClaimTemplate": map[string]any{"name": name}}}}}
		_, err := s.Dynamic.Resource(computeDomains).Namespace("default").Create(t.Context(), obj, metav1.CreateOptions{})
		must(t, err)
	}
	server, schemas := configured(t, s)
	for _, c := range []struct {
		name, kind string
		config     map[string]string
		limit      int64
		want       []string
	}{
		{"all domains are listed, page by page", "gpufabric_compute_domain", nil, 0,
			[]string{"default/listed-a", "default/listed-b", "default/listed-c"}},
		{"a label selector chooses", "gpufabric_compute_domain", map[string]string{"label_selector": "name=listed-b"}, 0,
			[]string{"default/listed-b"}},
		{"a limit is kept", "gpufabric_compute_domain", nil, 2, []string{"default/listed-a", "default/listed-b"}},
		{"another namespace has none", "gpufabric_compute_domain", map[string]string{"namespace": "kube-system"}, 0, nil},
		{"releases of another chart are none", "gpufabric_driver_stack", map[string]string{"chart": "nothing"}, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream, err := server.ListResource(
				t.Context(),
				&tfprotov6.ListResourceRequest{
					TypeName:        c.kind,
					IncludeResource: true,
					Limit:           c.limit,
					Config:          dynamicValue(t, schemas.ListResourceSchemas[c.kind], c.config),
				},
			)
			must(t, err)
			var got []string
			for r := range stream.Results {
				for _, d := range r.Diagnostics {
					t.Errorf("%s: %s", d.Summary, d.Detail)
				}
				if r.Resource == nil || r.Identity == nil {
					t.Errorf("%s comes without resource or identity", r.DisplayName)
				}
				got = append(got, r.DisplayName)
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %v, want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("got %v, want %v", got, c.want)
				}
			}
		})
	}
	t.Run("a label selector that is none is an error", func(t *testing.T) {
		stream, err := server.ListResource(t.Context(), &tfprotov6.ListResourceRequest{TypeName: "gpufabric_compute_domain",
			Config: dynamicValue(t, schemas.ListResourceSchemas["gpufabric_compute_domain"], map[string]string{"label_selector": "=="})})
		must(t, err)
		failed := false
		for r := range stream.Results {
			failed = failed || len(r.Diagnostics) > 0
		}
		if !failed {
			t.Error("want a diagnostic")
		}
	})
}

// configured returns a provider server that is connected to s, and its schemas.
func configured(t *testing.T, s *apiserver.Server) (listServer, *tfprotov6.GetProviderSchemaResponse) {
	t.Helper()
	server, schemas := newServer(t)
	resp, err := server.ConfigureProvider(
		t.Context(),
		&tfprotov6.ConfigureProviderRequest{
			TerraformVersion: "1.14.0",
			Config:           dynamicValue(t, schemas.Provider, map[string]string{"config_path": s.Kubeconfig}),
		},
	)
	must(t, err)
	for _, d := range resp.Diagnostics {
		t.Fatalf("%s: %s", d.Summary, d.Detail)
	}
	return server, schemas
}

// dynamicValue writes a configuration in which only these string attributes are set.
func dynamicValue(t *testing.T, schema *tfprotov6.Schema, set map[string]string) *tfprotov6.DynamicValue {
	t.Helper()
	kind := schema.ValueType().(tftypes.Object)
	values := map[string]tftypes.Value{}
	for name, attribute := range kind.AttributeTypes {
		values[name] = tftypes.NewValue(attribute, nil)
		if text, ok := set[name]; ok {
			values[name] = tftypes.NewValue(attribute, text)
		}
	}
	value, err := tfprotov6.NewDynamicValue(kind, tftypes.NewValue(kind, values))
	must(t, err)
	return &value
}
