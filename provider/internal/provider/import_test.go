package provider

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
)

// testImports imports objects that another client made. One with fields that the resource has no attributes for is refused, before an
// apply removes them; empty values and the API server's defaults are no such fields.
func testImports(t *testing.T, s *apiserver.Server) {
	server, schemas := configured(t, s)
	for _, test := range []struct {
		life
		name, spec, refused string
	}{
		{lives[0], "domain", `{"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "import"}}}`, ""},
		{lives[1], "pool", `{"resourceName": "a", "devices": ["ib0"], "excludeTopology": false, "nodeSelector": {"matchLabels": {}}}`, ""},
		{lives[1], "selectors", `{"resourceName": "a", "selectors": {"ifNames": ["ib1"]}, "rdmaHcaMax": 3}`, ""},
		{lives[2], "profile", `{"mode": "Exclusive", "namespaces": [], "nodeSelector": {"matchLabels": {"a": "b"}}}`, ""},
		{lives[3], "config", `{"layout": "off",
			"config": {"version": "v1", "mig-configs": {"none": [], "off": [{"devices": "all", "mig-enabled": false}]}}}`, ""},
		{lives[3], "auto", `{"auto": {"shapes": [{"profile": "1g.10gb"}]}}`, `.spec.auto (of "kubectl-create")`},
		{lives[3], "gpus", `{"nodeSelector": {"matchLabels": {"a": "b"}},
			"gpus": [{"uuid": "GPU-1", "instances": [{"profile": "1g.10gb", "start": 0}]}]}`, `.spec.gpus (of "kubectl-create")`},
		{lives[4], "network", `{"config": "{\"cniVersion\": \"0.3.1\", \"type\": \"ipoib\", \"master\": \"ib0\"}"}`, ""},
	} {
		t.Run(test.life.name+" "+test.name, func(t *testing.T) {
			namespace := map[bool]string{true: "default"}[test.kind.Namespaced]
			objects, name, kind := s.Dynamic.Resource(test.kind.GVR()).Namespace(namespace), "import-"+test.name, "gpufabric_"+test.life.name
			var spec map[string]any
			must(t, json.Unmarshal([]byte(test.spec), &spec))
			_, err := objects.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": test.kind.APIVersion(),
				"kind": test.kind.Name, "metadata": map[string]any{"name": name}, "spec": spec}}, metav1.CreateOptions{FieldManager: "kubectl-create"})
			must(t, err)
			defer func() { must(t, objects.Delete(t.Context(), name, metav1.DeleteOptions{})) }()
			c := newCore(t)
			imported, err := c.importOne(t.Context(), server, kind, strings.TrimPrefix(namespace+"/"+name, "/"))
			warned := listWarnings(t, server, schemas, kind)
			if test.refused == "" {
				if err != nil || imported == nil || warned != "" {
					t.Errorf("imported %v, error %v, warnings of the list %q", imported, err, warned)
				}
				return
			}
			if err == nil {
				t.Fatalf("imported as %s, want it refused for %s", imported.state, test.refused)
			}
			contains(t, err.Error(), test.kind.Name+" cannot be imported", test.refused)
			contains(t, warned, test.refused)
			c.planText(as(s) + fmt.Sprintf("data %q \"test\" {\n  name = %q\n}\n", kind, name))
			read := map[string]string{}
			flatten(read, "", c.data["data."+kind+".test"])
			if _, there := read["layout"]; there || read["id"] != name {
				t.Errorf("the data source reads %v, want no layout", read)
			}
		})
	}
}

// listWarnings lists the objects of a resource, and returns the diagnostics.
func listWarnings(t *testing.T, server listServer, schemas *tfprotov6.GetProviderSchemaResponse, kind string) string {
	t.Helper()
	stream, err := server.ListResource(t.Context(), &tfprotov6.ListResourceRequest{TypeName: kind, IncludeResource: true, Limit: 100,
		Config: dynamicValue(t, schemas.ListResourceSchemas[kind], nil)})
	must(t, err)
	var all []string
	for result := range stream.Results {
		for _, d := range result.Diagnostics {
			all = append(all, fmt.Sprintf("%s %s: %s", d.Severity, d.Summary, d.Detail))
		}
	}
	return strings.Join(all, "\n")
}
