package charts

import (
	"testing"
)

// rendering is a chart with one set of values, rendered.
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
		{"fake-hardware as it comes", "fake-hardware", ""},
	} {
		out = append(out, rendering{one.name, render(t, one.chart, one.values)})
	}
	return out
}

func render(t *testing.T, name, valuesFile string) []Object {
	t.Helper()
	loaded, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if valuesFile != "" {
		if values, err = ValuesFile(valuesFile); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := Render(loaded, values, Cluster{})
	if err != nil {
		t.Fatalf("render %s with %s: %v", name, valuesFile, err)
	}
	return objects
}
