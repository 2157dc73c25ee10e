package charts

import (
	"fmt"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// rendering is a chart that was rendered with one set of values.
type rendering struct {
	name    string
	objects []Object
}

// renderings renders every chart with every values file that the repository has for it.
func renderings(t *testing.T) []rendering {
	t.Helper()
	var out []rendering
	for _, one := range []struct{ name, chart, values string }{
		{"gpufabric as it comes", "gpufabric", ""},
		{"gpufabric on fake hardware", "gpufabric", "fake-hardware/gpufabric-values.yaml"},
		{"gpufabric with a driver container", "gpufabric", "gpufabric/ci/driver-container.yaml"},
		{"gpufabric with everything on", "gpufabric", "gpufabric/ci/everything.yaml"},
		{"fake-hardware as it comes", "fake-hardware", ""},
		{"fake-hardware with everything on", "fake-hardware", "fake-hardware/ci/everything.yaml"},
	} {
		out = append(out, rendering{one.name, renderFile(t, one.chart, one.values)})
	}
	return out
}

func renderFile(t *testing.T, chart, valuesFile string) []Object {
	t.Helper()
	values := map[string]any{}
	if valuesFile != "" {
		var err error
		if values, err = ValuesFile(valuesFile); err != nil {
			t.Fatal(err)
		}
	}
	return renderValues(t, chart, values)
}

// renderValues renders a chart for an empty cluster. The objects are the caller's own.
func renderValues(t *testing.T, chart string, values map[string]any) []Object {
	t.Helper()
	objects, err := shared.rendered.render(chart, values)
	if err != nil {
		t.Fatalf("render %s: %v", chart, err)
	}
	return objects
}

// rendered has what was rendered and decoded before: most tests render one of a few sets of values, and most templates give the same for
// many sets. No test changes a chart on disk.
type rendered struct {
	charts map[string][]Object // by chart and values
	files  map[string][]Object // by name and content
}

// render returns copies of the objects.
func (r *rendered) render(name string, values map[string]any) ([]Object, error) {
	key := name + fmt.Sprintf("%#v", values)
	objects, found := r.charts[key]
	if !found {
		loaded, err := Load(name)
		if err != nil {
			return nil, err
		}
		files, err := render(loaded, values, Cluster{})
		if err != nil {
			return nil, err
		}
		if objects, err = r.decode(files); err != nil {
			return nil, err
		}
		r.charts[key] = objects
	}
	copies := make([]Object, len(objects))
	for i, one := range objects {
		copies[i] = Object{Template: one.Template, YAML: one.YAML, Unstructured: *one.DeepCopy()}
	}
	return copies, nil
}

// decode is the function decode. It decodes each content once.
func (r *rendered) decode(files map[string]string) ([]Object, error) {
	var objects []Object
	for _, name := range manifests(files) {
		key := name + "\n" + files[name]
		decoded, found := r.files[key]
		if !found {
			var err error
			if decoded, err = decodeFile(name, files[name]); err != nil {
				return nil, err
			}
			r.files[key] = decoded
		}
		objects = append(objects, decoded...)
	}
	return objects, nil
}

func load(t *testing.T, name string) *chart.Chart {
	t.Helper()
	loaded, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func TestNotesNameNamespaceAndEnabledDrivers(t *testing.T) {
	for _, test := range []struct {
		name, chart string
		values      map[string]any
		says, not   []string
	}{
		{"as it comes", "gpufabric", nil, []string{"-n gpufabric-system get pods", "computedomains", "component=compute-domain-plugin",
			"keeps the CRDs"}, nil},
		{"GPUs alone", "gpufabric", map[string]any{"gpus": on(), "computeDomains": off(), "crds": map[string]any{"keep": false}},
			[]string{"component=gpu-plugin"}, []string{"gpu.clique", "keeps the CRDs"}},
		{"fake hardware", "fake-hardware", nil, []string{"fakefabric.gpufabric.io/profile=", "-n gpufabric-system rollout status"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			notes, err := Notes(load(t, test.chart), test.values, Cluster{})
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range test.says {
				if !strings.Contains(notes, part) {
					t.Errorf("the notes lack %q:\n%s", part, notes)
				}
			}
			for _, part := range test.not {
				if strings.Contains(notes, part) {
					t.Errorf("the notes speak of %q:\n%s", part, notes)
				}
			}
		})
	}
}

// The notes remind of an earlier consent to uninstall anyway: the next uninstall would not ask.
func TestNotesWarnAboutForcedUninstall(t *testing.T) {
	const warns = "The next one will ask nobody"
	for annotations, want := range map[string]bool{`{"gpufabric.io/uninstall": "anyway"}`: true, `{"gpufabric.io/uninstall": "no"}`: false,
		`{"a": "b"}`: false} {
		own := object(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "` + namespace + `", "annotations": ` + annotations + `}}`)
		notes, err := Notes(load(t, "gpufabric"), nil, Cluster{Objects: []unstructured.Unstructured{*own}})
		if err != nil || strings.Contains(notes, warns) != want {
			t.Errorf("namespace with annotations %s: warned %t, want %t (%v)", annotations, !want, want, err)
		}
	}
}
