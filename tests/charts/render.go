// Package charts renders the charts of this repository as Helm does, and checks the result against the Kubernetes API's own types.
package charts

import (
	"fmt"
	"path/filepath"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/repository"
)

// Version of Kubernetes that the charts are made for.
const Version = "v1.36.3"

// Object is one rendered object: its template, its YAML, and the same decoded.
type Object struct {
	Template string // path within the chart, as in gpufabric/templates/controller.yaml
	YAML     string
	unstructured.Unstructured
}

// Dir is the directory charts/NAME of the checkout that holds the working directory.
func Dir(name string) string {
	root, err := repository.Root()
	if err != nil {
		root = "." // reading the chart then fails with the path
	}
	return filepath.Join(root, "charts", name)
}

// Load reads the chart NAME from its directory.
func Load(name string) (*chart.Chart, error) {
	loaded, err := loader.LoadDir(Dir(name))
	if err != nil {
		return nil, fmt.Errorf("load chart %s: %w", name, err)
	}
	return loaded, nil
}

// ValuesFile reads a values file, given by its path below charts/.
func ValuesFile(path string) (map[string]any, error) {
	values, err := chartutil.ReadValuesFile(Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read values %s: %w", path, err)
	}
	return values, nil
}

// Render renders a chart as release "gpufabric" of namespace "gpufabric-system" against a cluster, in the order of the
// templates' names. It fails where `helm install` would: for values that the schema or the templates refuse, and for a wrong
// Kubernetes version.
func Render(loaded *chart.Chart, values map[string]any, cluster Cluster) ([]Object, error) {
	files, err := render(loaded, values, cluster)
	if err != nil {
		return nil, err
	}
	return decode(files)
}

// Notes renders what `helm install` prints at its end.
func Notes(loaded *chart.Chart, values map[string]any, cluster Cluster) (string, error) {
	files, err := render(loaded, values, cluster)
	if err != nil {
		return "", err
	}
	return files[loaded.Name()+"/templates/NOTES.txt"], nil
}

// render returns the rendered templates by their paths.
func render(loaded *chart.Chart, values map[string]any, cluster Cluster) (map[string]string, error) {
	return renderAs(loaded, values, cluster, chartutil.ReleaseOptions{Revision: 1, IsInstall: true})
}

// renderAs renders for a revision; name and namespace are those of Render.
func renderAs(loaded *chart.Chart, values map[string]any, cluster Cluster, options chartutil.ReleaseOptions) (map[string]string, error) {
	capabilities, err := cluster.capabilities()
	if err != nil {
		return nil, err
	}
	if wanted := loaded.Metadata.KubeVersion; wanted != "" && !chartutil.IsCompatibleRange(wanted, capabilities.KubeVersion.String()) {
		return nil, fmt.Errorf("chart %s requires kubeVersion %s, the server is %s", loaded.Name(), wanted, capabilities.KubeVersion)
	}
	options.Name, options.Namespace = cluster.Release, "gpufabric-system"
	if options.Name == "" {
		options.Name = "gpufabric"
	}
	input, err := chartutil.ToRenderValues(loaded, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.RenderWithClientProvider(loaded, input, cluster)
}

func decode(files map[string]string) ([]Object, error) {
	var objects []Object
	for _, name := range manifests(files) {
		decoded, err := decodeFile(name, files[name])
		if err != nil {
			return nil, err
		}
		objects = append(objects, decoded...)
	}
	return objects, nil
}

// manifests are the names of the files with objects, sorted.
func manifests(files map[string]string) []string {
	names := make([]string, 0, len(files))
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// decodeFile returns the objects of a rendered template, in their order.
func decodeFile(name, content string) ([]Object, error) {
	documents := releaseutil.SplitManifests(content)
	keys := make([]string, 0, len(documents))
	for key := range documents {
		keys = append(keys, key)
	}
	sort.Sort(releaseutil.BySplitManifestsOrder(keys))
	var objects []Object
	for _, key := range keys {
		object := Object{Template: name, YAML: documents[key]}
		if err := yaml.UnmarshalStrict([]byte(object.YAML), &object.Object); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, object.YAML)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects, nil
}
