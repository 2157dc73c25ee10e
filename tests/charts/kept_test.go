package charts

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestUninstallKeepsAuthorityWhenItKeepsComputeDomains: a domain that outlives the release needs the seed of its certificates. The page
// names all that is kept.
func TestUninstallKeepsAuthorityWhenItKeepsComputeDomains(t *testing.T) {
	const authority = "Secret gpufabric-imex-authority"
	page, err := os.ReadFile(Dir("../docs/uninstall.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name        string
		crds        map[string]any
		domainsStay bool
	}{
		{"as the chart comes", nil, true},
		{"the kinds go", map[string]any{"keep": false}, false},
		{"another installs the kinds, which stay", map[string]any{"keep": false, "install": false}, true},
		{"another installs the kinds", map[string]any{"install": false}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := everything()
			if test.crds != nil {
				values["crds"] = test.crds
			}
			var kept []string
			for _, object := range renderValues(t, "gpufabric", values) {
				if object.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
					continue
				}
				name := object.GetKind() + " " + object.GetName()
				kept = append(kept, name)
				reported := strings.Contains(string(page), "the "+object.GetKind()+" `"+object.GetName()+"`")
				if object.GetKind() != "CustomResourceDefinition" && !reported {
					t.Errorf("docs/uninstall.md does not name %s, which stays", name)
				}
			}
			domains := slices.ContainsFunc(kept, func(name string) bool { return strings.HasSuffix(name, "computedomains.resource.nvidia.com") })
			if installs := test.crds["install"] != false; installs && domains != test.domainsStay {
				t.Errorf("the kind of ComputeDomains is kept: %t", domains)
			}
			if slices.Contains(kept, authority) != test.domainsStay {
				t.Errorf("kept are %v, and ComputeDomains stay: %t", kept, test.domainsStay)
			}
		})
	}
}

// TestPodMonitorSelectsNamespaceOfEachRole, and no other: pods of other namespaces are not shown Prometheus' token.
func TestPodMonitorSelectsNamespaceOfEachRole(t *testing.T) {
	for _, test := range []struct {
		name   string
		values map[string]any
		want   []string
	}{
		{"all roles in the release's namespace", nil, nil},
		{"RDMA in its own", map[string]any{"rdma": map[string]any{"enabled": true, "namespace": "rdma"}}, []string{namespace, "rdma"}},
		{"both in one", map[string]any{"gpus": on(), "rdma": map[string]any{"enabled": true, "namespace": "nodes"},
			"vgpu": map[string]any{"enabled": true, "namespace": "nodes"}}, []string{namespace, "nodes"}},
		{"a namespace of a role that is off", map[string]any{"vgpu": map[string]any{"namespace": "vgpu"}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := map[string]any{"metrics": map[string]any{"podMonitor": on()}}
			for key, value := range test.values {
				values[key] = value
			}
			var got []string
			roles := map[string]bool{}
			for _, object := range renderValues(t, "gpufabric", values) {
				switch object.GetKind() {
				case "PodMonitor":
					got, _, _ = unstructured.NestedStringSlice(object.Object, "spec", "namespaceSelector", "matchNames")
				case "DaemonSet", "Deployment":
					roles[object.GetNamespace()] = true
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("namespaces (-want +rendered):\n%s", diff)
			}
			for role := range roles {
				if role != namespace && !slices.Contains(got, role) {
					t.Errorf("a role runs in namespace %s, where no metrics are read", role)
				}
			}
		})
	}
}
