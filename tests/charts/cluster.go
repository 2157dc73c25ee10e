package charts

import (
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// Cluster is the cluster for which a chart is rendered: a server's version, the APIs that it lacks, and what is already installed.
// The zero value is an empty cluster of the version that the charts are made for.
type Cluster struct {
	Version string                      // "" means Version
	Lacks   []string                    // group/version pairs that the server does not serve
	Serves  []string                    // group/version pairs that it serves besides
	Objects []unstructured.Unstructured // what the chart's lookups find
	Release string                      // name of the release; "" means gpufabric
}

func (c Cluster) capabilities() (*chartutil.Capabilities, error) {
	version := c.Version
	if version == "" {
		version = Version
	}
	parsed, err := chartutil.ParseKubeVersion(version)
	if err != nil {
		return nil, err
	}
	out := chartutil.DefaultCapabilities.Copy()
	out.KubeVersion = *parsed
	out.APIVersions = append(slices.DeleteFunc(slices.Clone(out.APIVersions), c.lacks), c.Serves...)
	return out, nil
}

func (c Cluster) lacks(api string) bool {
	for _, missing := range c.Lacks {
		if api == missing || strings.HasPrefix(api, missing+"/") {
			return true
		}
	}
	return false
}

// GetClientFor serves the template function lookup from Objects.
func (c Cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	group, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, false, err
	}
	resource, _ := meta.UnsafeGuessKindToResource(group.WithKind(kind))
	var objects []runtime.Object
	for i := range c.Objects {
		if c.Objects[i].GetAPIVersion() == apiVersion && c.Objects[i].GetKind() == kind {
			objects = append(objects, &c.Objects[i])
		}
	}
	lists := map[schema.GroupVersionResource]string{resource: kind + "List"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	clusterWide := kind == "CustomResourceDefinition" || kind == "DeviceClass" || kind == "Namespace"
	return client.Resource(resource), !clusterWide, nil
}
