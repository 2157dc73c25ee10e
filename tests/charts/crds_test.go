package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestChartHasCRDsOfAPI compares files, so that the chart has what `make generate` writes.
func TestChartHasCRDsOfAPI(t *testing.T) {
	source, copied := crdFiles(t, filepath.Join(Dir(""), "../drivers/api/crds")), crdFiles(t, Dir("gpufabric/files/crds"))
	if len(source) == 0 {
		t.Fatal("drivers/api/crds holds no CRD")
	}
	for name, content := range source {
		if copied[name] != content {
			t.Errorf("charts/gpufabric/files/crds/%s is not drivers/api/crds/%s: copy it", name, name)
		}
	}
	for name := range copied {
		if _, ok := source[name]; !ok {
			t.Errorf("charts/gpufabric/files/crds/%s is no CRD of drivers/api/crds: remove it", name)
		}
	}
}

func TestChartRendersCRDsUnchangedBesidesLabels(t *testing.T) {
	source := crdFiles(t, Dir("gpufabric/files/crds"))
	networks := 0 // the network operator's, which are not installed without RDMA
	for name := range source {
		if strings.HasPrefix(name, "mellanox.com_") {
			networks++
		}
	}
	for _, test := range []struct {
		name   string
		values map[string]any
		count  int
		policy string
	}{
		{"kept at uninstall", nil, len(source) - networks, "keep"},
		{"with RDMA", map[string]any{"rdma": on()}, len(source), "keep"},
		{"removed at uninstall", map[string]any{"crds": map[string]any{"keep": false}}, len(source) - networks, ""},
		{"not installed", map[string]any{"crds": map[string]any{"install": false}}, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			count := 0
			for _, object := range renderValues(t, "gpufabric", test.values) {
				if object.GetKind() != "CustomResourceDefinition" {
					continue
				}
				count++
				if got := object.GetAnnotations()["helm.sh/resource-policy"]; got != test.policy {
					t.Errorf("%s: resource policy %q, want %q", object.GetName(), got, test.policy)
				}
				if got := object.GetLabels()["app.kubernetes.io/part-of"]; got != "gpufabric" {
					t.Errorf("%s: part-of %q: another release would not know it again", object.GetName(), got)
				}
				var want map[string]any
				for _, content := range source {
					var one map[string]any
					if err := yaml.Unmarshal([]byte(content), &one); err != nil {
						t.Fatal(err)
					}
					if one["metadata"].(map[string]any)["name"] == object.GetName() {
						want = one
					}
				}
				if diff := cmp.Diff(want["spec"], object.Object["spec"]); diff != "" {
					t.Errorf("%s: the specification changed in rendering:\n%s", object.GetName(), diff)
				}
			}
			if count != test.count {
				t.Errorf("%d CRDs rendered, want %d", count, test.count)
			}
		})
	}
}

// crdFiles reads a directory of CRDs, by file name.
func crdFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = string(content)
	}
	return out
}

// TestPolicyGuardsEveryFieldThatSumsNodes compares the statuses in which nodes have entries with the fields that the
// policies guard.
func TestPolicyGuardsEveryFieldThatSumsNodes(t *testing.T) {
	objects := renderValues(t, "gpufabric", everything())
	policies := map[string]string{}
	for _, object := range objects {
		if object.GetKind() == "ValidatingAdmissionPolicy" {
			policies[object.GetName()] = object.YAML
		}
	}
	for policy, name := range map[string]string{"gpufabric-rdma-pools": "rdmapools.gpufabric.io",
		"gpufabric-mig-layouts": "miglayouts.gpufabric.io"} {
		for _, object := range objects {
			if object.GetKind() != "CustomResourceDefinition" || object.GetName() != name {
				continue
			}
			versions, _, err := unstructured.NestedSlice(object.Object, "spec", "versions")
			if err != nil {
				t.Fatal(err)
			}
			fields, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "status", "properties")
			if err != nil || len(fields) == 0 {
				t.Fatalf("%s: no status: %v", name, err)
			}
			for field := range fields {
				if field != "nodes" && !strings.Contains(policies[policy], "oldObject.?status.?"+field+" ") &&
					!strings.Contains(policies[policy], "oldObject.?status.?"+field+"\n") {
					t.Errorf("policy %s lets a plugin change status.%s of %s", policy, field, name)
				}
			}
		}
	}
}
