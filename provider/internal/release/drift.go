package release

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"gpufabric.io/provider/internal/object"
)

// Matches reports whether the release is deployed with spec's chart and values.
func (r *Release) Matches(spec Spec) bool {
	return r.Status == "deployed" && r.ChartDigest == spec.Chart.Digest && maps.Equal(Flatten(r.Values), Flatten(spec.Values))
}

// Drift compares the release's manifest with the cluster. It says, one sentence each, which objects are gone and which fields
// somebody changed. It ignores fields that the manifest does not set, since the API server and controllers fill those in. secret
// names values, as Flatten writes them, that no sentence may show; values of a Secret are never shown.
func (m *Manager) Drift(ctx context.Context, r *Release, secret []string) ([]string, error) {
	list, err := objects(r.Manifest, r.Namespace)
	if err != nil {
		return nil, err
	}
	getter, err := m.client.Getter(m.namespace)
	if err != nil {
		return nil, err
	}
	mapper, err := getter.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	var drift []string
	for _, want := range list {
		title := want.GetKind() + " " + want.GetName()
		gvk := want.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			drift = append(drift, fmt.Sprintf("%s: the cluster no longer serves %s", title, gvk.GroupVersion()))
			continue
		}
		if err != nil {
			return nil, err
		}
		var client dynamic.ResourceInterface = m.client.Dynamic.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			title = want.GetKind() + " " + object.Key{Namespace: want.GetNamespace(), Name: want.GetName()}.String()
			client = m.client.Dynamic.Resource(mapping.Resource).Namespace(want.GetNamespace())
		}
		have, err := client.Get(ctx, want.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			drift = append(drift, title+" was deleted")
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, field := range slices.Sorted(maps.Keys(want.Object)) {
			switch field {
			case "apiVersion", "kind", "metadata", "status":
				continue
			case "stringData":
				continue // the API server moves it into data
			}
			if where := differs(field, want.Object[field], have.Object[field]); where != "" {
				drift = append(drift, title+": "+r.discreet(want.GetKind(), where, secret))
			}
		}
	}
	return drift, nil
}

// discreet removes values that must not be shown from a sentence of differs: a state stores it.
func (r *Release) discreet(kind, where string, secret []string) string {
	path, _, _ := strings.Cut(where, " is ")
	hidden := path + " is not what the release says, and a secret"
	if kind == "Secret" && strings.Contains(where, ", the release says ") {
		return hidden
	}
	values := Flatten(r.Values)
	for _, name := range secret {
		if v := values[name]; v != "" && strings.Contains(where, v) {
			return hidden
		}
	}
	return where
}

// differs returns where have lacks or contradicts what want sets; empty when it does not.
func differs(path string, want, have any) string {
	switch w := want.(type) {
	case nil:
		return ""
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok && len(w) > 0 {
			return path + " is gone"
		}
		for _, key := range slices.Sorted(maps.Keys(w)) {
			if where := differs(path+"."+key, w[key], h[key]); where != "" {
				return where
			}
		}
		return ""
	case []any:
		h, ok := have.([]any)
		if len(w) != len(h) || (!ok && len(w) > 0) {
			return fmt.Sprintf("%s has %d items, the release says %d", path, len(h), len(w))
		}
		for i := range w {
			if where := differs(fmt.Sprintf("%s[%d]", path, i), w[i], h[i]); where != "" {
				return where
			}
		}
		return ""
	}
	if have == nil && isZero(want) {
		return "" // the API server leaves out empty values
	}
	if same(want, have) {
		return ""
	}
	return fmt.Sprintf("%s is %v, the release says %v", path, have, want)
}

func isZero(v any) bool { return v == "" || v == false || fmt.Sprint(v) == "0" }

// same compares scalars as the API server does: numbers by value, quantities by amount (it stores 1000m as 1).
func same(want, have any) bool {
	w, h := fmt.Sprint(want), fmt.Sprint(have)
	if w == h || strings.TrimSpace(w) == strings.TrimSpace(h) {
		return true
	}
	wq, err := resource.ParseQuantity(w)
	if err != nil {
		return false
	}
	hq, err := resource.ParseQuantity(h)
	return err == nil && wq.Cmp(hq) == 0
}
