package charts

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
)

// A value of null removes the chart's default, and templates have to read what is left.
func TestChartTakesOrNamesEveryValueThatIsNull(t *testing.T) {
	for name, on := range map[string]string{"gpufabric": "gpufabric/ci/everything.yaml", "fake-hardware": "fake-hardware/ci/everything.yaml"} {
		loaded := load(t, name)
		for _, path := range valuePaths(nil, loaded.Values) {
			if slices.Contains(path[:len(path)-1], "resources") && path[0] != "controller" {
				continue // as the controller's
			}
			values, err := ValuesFile(on)
			if err != nil {
				t.Fatal(err)
			}
			at := values
			for _, key := range path[:len(path)-1] {
				next, ok := at[key].(map[string]any)
				if !ok {
					next = map[string]any{}
					at[key] = next
				}
				at = next
			}
			key := path[len(path)-1]
			at[key] = nil
			files, err := render(loaded, values, Cluster{})
			where := name + ": " + strings.Join(path, ".")
			if err != nil {
				// The schema's errors name the key, and so do the chart's own.
				if text := err.Error(); !strings.Contains(text, key) || strings.Contains(text, "nil pointer") || strings.Contains(text, "wrong type") ||
					strings.Contains(text, "error calling index") {
					t.Errorf("%s: %v", where, err)
				}
				continue
			}
			for file, text := range files {
				for _, trace := range []string{"<nil>", "<no value>", "%!"} {
					if strings.Contains(text, trace) {
						t.Errorf("%s is null, and %s is rendered with %q", where, file, trace)
					}
				}
			}
		}
	}
}

// valuePaths are the paths of all keys of a chart's values.
func valuePaths(above []string, values map[string]any) [][]string {
	var out [][]string
	for key, value := range values {
		path := append(append([]string(nil), above...), key)
		out = append(out, path)
		if below, ok := value.(map[string]any); ok {
			out = append(out, valuePaths(path, below)...)
		}
	}
	return out
}

// Helm gives a chart that another one depends on the key global, and the key by which that chart switches it on.
func TestChartIsADependencyOfAnotherChart(t *testing.T) {
	for _, name := range []string{"gpufabric", "fake-hardware"} {
		for _, test := range []struct {
			name    string
			values  map[string]any
			objects bool
		}{
			{"without values", map[string]any{}, true},
			{"with values for all charts", map[string]any{"global": map[string]any{"imageRegistry": "registry.example"}}, true},
			{"switched on", map[string]any{name: map[string]any{"enabled": true}}, true},
			{"switched off", map[string]any{name: map[string]any{"enabled": false}}, false},
		} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				above := &chart.Chart{Metadata: &chart.Metadata{APIVersion: "v2", Name: "platform", Version: "1.0.0", Dependencies: []*chart.Dependency{
					{Name: name, Version: ">=0.0.0-0", Condition: name + ".enabled"},
				}}}
				above.AddDependency(load(t, name))
				if err := chartutil.ProcessDependenciesWithMerge(above, test.values); err != nil {
					t.Fatal(err)
				}
				files, err := render(above, test.values, Cluster{})
				if err != nil {
					t.Fatal(err)
				}
				if got := len(manifests(files)) > 0; got != test.objects {
					t.Errorf("%d files are rendered", len(files))
				}
			})
		}
	}
}
