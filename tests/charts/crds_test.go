package charts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// TestTheChartCarriesTheCRDsOfTheAPI compares files, so that `make generate` and the chart cannot part.
func TestTheChartCarriesTheCRDsOfTheAPI(t *testing.T) {
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

func TestACRDIsRenderedAsItIsBesidesItsLabels(t *testing.T) {
	source := crdFiles(t, Dir("gpufabric/files/crds"))
	for _, test := range []struct {
		name   string
		crds   map[string]any
		count  int
		policy string
	}{
		{"kept at uninstall", nil, len(source), "keep"},
		{"removed at uninstall", map[string]any{"keep": false}, len(source), ""},
		{"not installed", map[string]any{"install": false}, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := map[string]any{}
			if test.crds != nil {
				values["crds"] = test.crds
			}
			count := 0
			for _, object := range renderValues(t, "gpufabric", values) {
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
