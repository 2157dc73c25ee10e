package release

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// leaveToOthers copies from the stored object the fields that the manifest does not own: the API server's metadata, fields that
// controllers and the cluster write (a caBundle, a scale, a restart), and the content of objects that the chart makes empty for a
// controller to fill.
func leaveToOthers(want, have *unstructured.Unstructured) {
	for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "finalizers", "ownerReferences",
		"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		keep(want.Object, have.Object, "metadata", field)
	}
	want.SetLabels(withSystemKeys(want.GetLabels(), have.GetLabels()))
	want.SetAnnotations(withSystemKeys(want.GetAnnotations(), have.GetAnnotations()))
	keep(want.Object, have.Object, "status")
	switch want.GetKind() {
	case "Secret", "ConfigMap":
		if isEmpty(want.Object["data"]) && isEmpty(want.Object["stringData"]) && isEmpty(want.Object["binaryData"]) {
			keep(want.Object, have.Object, "data")
			keep(want.Object, have.Object, "binaryData")
		}
	case "Deployment", "StatefulSet", "ReplicaSet":
		keep(want.Object, have.Object, "spec", "replicas") // an autoscaler's, where the manifest has none
		keepTemplate(want, have)
	case "DaemonSet":
		keepTemplate(want, have)
	case "ServiceAccount":
		keep(want.Object, have.Object, "secrets")
		keep(want.Object, have.Object, "imagePullSecrets")
	case "ClusterRole":
		if want.Object["aggregationRule"] != nil {
			keep(want.Object, have.Object, "rules")
		}
	case "PersistentVolumeClaim":
		for _, field := range []string{"volumeName", "storageClassName", "volumeMode"} {
			keep(want.Object, have.Object, "spec", field)
		}
	}
	keepBundles(want.Object, have.Object)
}

// keep copies a field that want lacks.
func keep(want, have map[string]any, path ...string) {
	for _, field := range path[:len(path)-1] {
		h, ok := have[field].(map[string]any)
		if !ok {
			return
		}
		w, ok := want[field].(map[string]any)
		if !ok {
			w = map[string]any{}
			want[field] = w
		}
		want, have = w, h
	}
	last := path[len(path)-1]
	if _, ok := want[last]; !ok && have[last] != nil {
		want[last] = have[last]
	}
}

// keepTemplate keeps the note of `kubectl rollout restart`: to remove it would restart the pods once more.
func keepTemplate(want, have *unstructured.Unstructured) {
	const restarted = "kubectl.kubernetes.io/restartedAt"
	path := []string{"spec", "template", "metadata", "annotations"}
	if at, ok, _ := unstructured.NestedString(have.Object, append(slices.Clone(path), restarted)...); ok {
		annotations, _, _ := unstructured.NestedStringMap(want.Object, path...)
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[restarted] = at
		_ = unstructured.SetNestedStringMap(want.Object, annotations, path...) // the manifest's template is a map
	}
}

// withSystemKeys adds the labels or annotations of Kubernetes' own components, which a manifest does not set.
func withSystemKeys(want, have map[string]string) map[string]string {
	for key, value := range have {
		prefix, _, found := strings.Cut(key, "/")
		if _, set := want[key]; set || !found || !system(prefix) {
			continue
		}
		if want == nil {
			want = map[string]string{}
		}
		want[key] = value
	}
	return want
}

func system(prefix string) bool {
	for _, domain := range []string{"kubernetes.io", "k8s.io", "gpufabric.io"} {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return true
		}
	}
	return false
}

// keepBundles keeps each caBundle that the manifest leaves open: a controller, or cert-manager, writes it.
func keepBundles(want, have any) {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return
		}
		if bundle := h["caBundle"]; bundle != nil && isEmpty(w["caBundle"]) {
			w["caBundle"] = bundle
		}
		for key, value := range w {
			keepBundles(value, h[key])
		}
	case []any:
		h, ok := have.([]any)
		key := listKey(w, h)
		if !ok || key == "" {
			return
		}
		stored := byKey(h, key)
		for name, item := range byKey(w, key) {
			keepBundles(item, stored[name])
		}
	}
}

// Ignored are the differences that are accepted: "KIND NAMESPACE/NAME: FIELD", as drift writes them, with * for any part of a word.
type Ignored []*regexp.Regexp

// ParseIgnored reads patterns. A pattern covers the fields below its field, and without a field the whole object.
func ParseIgnored(patterns []string) (Ignored, error) {
	var list Ignored
	for _, p := range patterns {
		kind, _, found := strings.Cut(p, " ")
		if !found || kind == "" {
			return nil, fmt.Errorf("%q is not a drift: write KIND NAMESPACE/NAME: FIELD as the attribute drift does, for example "+
				`"DaemonSet gpufabric-system/*: spec.template.spec.containers[*].env[HTTPS_PROXY]"`, p)
		}
		text := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(p)), `\*`, `.*`)
		list = append(list, regexp.MustCompile(`^`+text+`($|: |\.|\[)`)) // quoted text always compiles
	}
	return list, nil
}

func (i Ignored) matches(object, field string) bool {
	text := object
	if field != "" {
		text += ": " + field
	}
	return slices.ContainsFunc(i, func(r *regexp.Regexp) bool { return r.MatchString(text) })
}
