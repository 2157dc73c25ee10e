package v1alpha1

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// StatusOf is an object of a kind of this package with nothing but a name and these fields of its status, for a server-side apply by
// the owner of the fields. Without a status it has no field, which removes all that the owner had.
func StatusOf(kind, name string, status any) (*unstructured.Unstructured, error) {
	fields := map[string]any{}
	if status != nil {
		var err error
		if fields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(status); err != nil {
			return nil, err
		}
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	object.SetGroupVersionKind(SchemeGroupVersion().WithKind(kind))
	object.SetName(name)
	return object, nil
}
