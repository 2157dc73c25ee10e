package release

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"gpufabric.io/provider/internal/object"
)

// objects parses a manifest into its objects, with the release's namespace where they name none.
func objects(manifest, namespace string) ([]*unstructured.Unstructured, error) {
	documents := releaseutil.SplitManifests(manifest)
	var list []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(documents)) {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(documents[name]), &obj.Object); err != nil {
			return nil, fmt.Errorf("the release's manifest has a document that is not YAML: %w", err)
		}
		if len(obj.Object) == 0 {
			continue
		}
		if obj.GetNamespace() == "" {
			obj.SetNamespace(namespace)
		}
		list = append(list, obj)
	}
	return list, nil
}

// customResources lists the CRDs a release brought: those Helm removes with it, and those it leaves (from the chart's crds directory, from
// hooks, or kept by a resource policy).
func (r *Release) customResources() (removed, left []string, err error) {
	list, err := objects(r.Manifest, r.Namespace)
	if err != nil {
		return nil, nil, err
	}
	for _, obj := range list {
		if obj.GetKind() != object.CRDKind.Name {
			continue
		}
		if strings.EqualFold(strings.TrimSpace(obj.GetAnnotations()[kube.ResourcePolicyAnno]), kube.KeepPolicy) {
			left = append(left, obj.GetName())
		} else {
			removed = append(removed, obj.GetName())
		}
	}
	for _, hook := range r.stored.Hooks {
		list, err := objects(hook.Manifest, r.Namespace)
		if err != nil {
			return nil, nil, err
		}
		for _, obj := range list {
			if obj.GetKind() == object.CRDKind.Name {
				left = append(left, obj.GetName())
			}
		}
	}
	if r.stored.Chart != nil {
		list, err := crdObjects(r.stored.Chart)
		if err != nil {
			return nil, nil, err
		}
		for _, obj := range list {
			left = append(left, obj.GetName())
		}
	}
	slices.Sort(left)
	return removed, slices.Compact(left), nil
}
