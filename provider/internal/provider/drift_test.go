package provider

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"gpufabric.io/provider/internal/apiserver"
)

// drifted is a resource with what others can do to its spec.
type drifted struct {
	life
	more string // configuration beside name, labels and annotations
	// changed, removed and added are merge patches of a field that the configuration sets, of the same field, and of one that it leaves
	// out; empty: the API refuses every change of the spec. other is a patch to a spec of another form, which excludes that of the
	// configuration.
	changed, removed, added, other string
}

func driftedLives() []drifted {
	all := []drifted{
		{life: lives[0], more: "num_nodes = 2"},
		{life: lives[1], more: "rdma_hca_max = 5", changed: `{"spec":{"rdmaHcaMax":6}}`, removed: `{"spec":{"rdmaHcaMax":null}}`,
			added: `{"spec":{"nodeSelector":{"matchLabels":{"nobody":"here"}}}}`,
			other: `{"spec":{"devices":null,"selectors":{"ifNames":["ib1"]}}}`},
		{life: lives[2], more: "namespaces = [\"default\"]", changed: `{"spec":{"namespaces":["kube-system"]}}`,
			removed: `{"spec":{"namespaces":null}}`, added: `{"spec":{"productNames":["none"]}}`},
		{life: lives[3], changed: `{"spec":{"layout":"on","config":{"mig-configs":{"on":[{"devices":"all","mig-enabled":false}]}}}}`,
			removed: `{"spec":{"config":{"mig-configs":{"off":null,"on":[{"devices":"all","mig-enabled":false}]}},"layout":"on"}}`,
			added:   `{"spec":{"nodeSelector":{"matchLabels":{"nobody":"here"}}}}`,
			other:   `{"spec":{"layout":null,"config":null,"auto":{"shapes":[{"profile":"1g.10gb"}]}}}`},
		{life: lives[4], changed: `{"spec":{"config":"{\"cniVersion\":\"0.3.1\",\"type\":\"ipoib\",\"master\":\"ib7\"}"}}`,
			removed: `{"spec":{"config":null}}`,
			added: `{"spec":{"config":"{\"cniVersion\":\"0.3.1\",\"name\":\"drift\",\"type\":\"ipoib\",\"master\":\"ib0\",` +
				`\"linkInContainer\":true}"}}`,
			other: `{"spec":{"config":"{\"cniVersion\":\"0.3.1\",\"name\":\"drift\",\"type\":\"ipoib\",\"master\":\"ib0\"}}"}}`},
	}
	return all
}

// testDrift changes the object of each resource as another manager would. The next plan shows each kind of drift, names its manager where
// an apply repairs the object, and the plan after that apply is empty. Labels and annotations that others add stay theirs.
func testDrift(t *testing.T, s *apiserver.Server) {
	for _, d := range driftedLives() {
		config := as(s) + fmt.Sprintf("resource \"gpufabric_%s\" \"test\" {\n  name = \"drift\"\n  labels = { team = \"a\" }\n  annotations = "+
			"{ note = \"a\" }\n  %s\n  %s\n}\n", d.name, d.body, d.more)
		objects := s.Dynamic.Resource(d.kind.GVR()).Namespace(map[bool]string{true: "default"}[d.kind.Namespaced])
		c := newCore(t)
		cfg, err := c.parse(config)
		must(t, err)
		must(t, c.converge(t.Context(), cfg, nil))
		patch := func(t *testing.T, patch string, kind types.PatchType, options metav1.PatchOptions) {
			t.Helper()
			_, err := objects.Patch(t.Context(), "drift", kind, []byte(patch), options)
			must(t, err)
		}
		edit := func(text string) func(*testing.T) {
			return func(t *testing.T) {
				patch(t, text, types.MergePatchType, metav1.PatchOptions{FieldManager: "kubectl-edit"})
			}
		}
		for _, k := range []struct {
			name, action, named string
			do                  func(*testing.T)
		}{
			{"a field of the spec is changed", "update", "kubectl-edit", edit(d.changed)},
			{"a field of the spec is removed", "update", "", edit(d.removed)},
			{"a field of the spec is added", "update", "kubectl-edit", edit(d.added)},
			{"the spec is of another form", "update", "", edit(d.other)},
			{"a label is changed", "update", "kubectl-edit", edit(`{"metadata":{"labels":{"team":"b"}}}`)},
			{"a label is removed", "update", "", edit(`{"metadata":{"labels":{"team":null}}}`)},
			{"an annotation is changed", "update", "kubectl-edit", edit(`{"metadata":{"annotations":{"note":"b"}}}`)},
			{"an annotation is removed", "update", "", edit(`{"metadata":{"annotations":{"note":null}}}`)},
			{"another label is added", "no-op", "", edit(`{"metadata":{"labels":{"theirs":"x"}}}`)},
			{"another annotation is added", "no-op", "", edit(`{"metadata":{"annotations":{"theirs":"x"}}}`)},
			{"a finalizer is added", "no-op", "", edit(`{"metadata":{"finalizers":["example.invalid/theirs"]}}`)},
			{"the finalizer is removed", "no-op", "", edit(`{"metadata":{"finalizers":null}}`)},
			{"the state's mark is removed", "no-op", "", edit(`{"metadata":{"annotations":{"gpufabric.io/terraform-owner":null}}}`)},
			{"a label is changed without the mark", "update", "kubectl-edit", edit(`{"metadata":{"labels":{"team":"b"}}}`)},
			{"the object is deleted", "create", "", func(t *testing.T) { deleteAndWait(t, objects) }},
			{"the object is deleted and made anew by others", "create", "", func(t *testing.T) { remake(t, objects) }},
		} {
			t.Run(d.name+": "+k.name, func(t *testing.T) {
				c.t = t
				if k.name == "the spec is of another form" && d.other == "" {
					return // the kind has one form
				}
				if strings.Contains(k.name, "of the spec") && d.changed == "" {
					_, err := objects.Patch(t.Context(), "drift", types.MergePatchType, []byte(`{"spec":{"numNodes":3}}`), metav1.PatchOptions{})
					if err == nil || !strings.Contains(err.Error(), "cannot be changed") {
						t.Errorf("the API takes a change of the spec: %v", err)
					}
					return
				}
				k.do(t)
				changes, err := c.preview(t.Context(), cfg)
				must(t, err)
				if changes[0].action != k.action {
					t.Fatalf("planned: %s, want %s", changes[0].action, k.action)
				}
				if strings.HasSuffix(k.name, "by others") { // not this state's: refused, and left alone
					err := c.converge(t.Context(), cfg, nil)
					if err == nil || !strings.Contains(err.Error(), "import block") {
						t.Errorf("want it refused with the import, got %v", err)
					}
					deleteAndWait(t, objects)
				}
				c.warnings = nil
				must(t, c.converge(t.Context(), cfg, nil))
				if !slices.ContainsFunc(append(c.warnings, ""), func(w string) bool { return strings.Contains(w, k.named) }) {
					t.Errorf("warnings %q do not name %s", c.warnings, k.named)
				}
				if changes, err = c.preview(t.Context(), cfg); err != nil || changes[0].action != "no-op" {
					t.Errorf("the plan after the apply: %s, %v, error %v; want none", changes[0].action, changes[0].planned, err)
				}
			})
		}
		c.t = t
		cfg.blocks = nil
		must(t, c.converge(t.Context(), cfg, nil))
	}
}

func deleteAndWait(t *testing.T, objects dynamic.ResourceInterface) {
	t.Helper()
	must(t, objects.Delete(t.Context(), "drift", metav1.DeleteOptions{}))
	until(t, t.Context(), "the object is gone", func() bool {
		_, err := objects.Get(t.Context(), "drift", metav1.GetOptions{})
		return err != nil
	})
}

// remake deletes the object and makes one of the same content.
func remake(t *testing.T, objects dynamic.ResourceInterface) {
	t.Helper()
	old, err := objects.Get(t.Context(), "drift", metav1.GetOptions{})
	must(t, err)
	deleteAndWait(t, objects)
	_, err = objects.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": old.GetAPIVersion(), "kind": old.GetKind(),
		"metadata": map[string]any{"name": "drift"}, "spec": old.Object["spec"],
	}}, metav1.CreateOptions{FieldManager: "kubectl-create"})
	must(t, err)
}
