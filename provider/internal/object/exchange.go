package object

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/client-go/util/retry"
)

// rejects reports whether the API server, or its admission, rejects the object.
func rejects(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// exchange writes the wanted spec, and removes in the same request the fields that others added: an API with fields that exclude each
// other takes neither the wanted ones beside those, nor none of both. It returns the object as
// written, and the fields that it removed; an error beside the object came after the write.
func (s *Store) exchange(ctx context.Context, live, wanted *unstructured.Unstructured) (*unstructured.Unstructured, []Conflict, error) {
	key := Key{Namespace: live.GetNamespace(), Name: live.GetName()}
	spec, _, _ := unstructured.NestedMap(wanted.Object, "spec")
	patch := map[string]any{"metadata": map[string]any{"uid": string(live.GetUID())}, "spec": spec}
	var removed []Conflict
	for _, f := range foreignFields(live, wanted) {
		removed = append(removed, f.Conflict)
		if err := unstructured.SetNestedField(patch, nil, f.at...); err != nil {
			return nil, nil, fmt.Errorf("remove %s of %s %s: %w", f.Field, s.kind.Name, key, err)
		}
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, nil, err
	}
	options := metav1.PatchOptions{FieldManager: FieldManager}
	written, err := s.resource(key).Patch(ctx, key.Name, types.MergePatchType, text, options)
	if err != nil {
		return nil, nil, err
	}
	if err := s.declare(ctx, key); err != nil {
		return written, removed, err
	}
	applied, err := s.Apply(ctx, wanted, true)
	if err != nil {
		return written, removed, err
	}
	return applied, removed, nil
}

// declare makes the fields of the spec that exchange patched those of our server-side apply, which removes them once they are no longer
// configured. It does so after an exchange that was cut off too.
func (s *Store) declare(ctx context.Context, key Key) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { // a status may be written meanwhile
		obj, err := s.resource(key).Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil || !patched(obj) {
			return err
		}
		patch, err := csaupgrade.UpgradeManagedFieldsPatch(obj, sets.New(FieldManager), FieldManager)
		if err != nil || patch == nil {
			return err
		}
		_, err = s.resource(key).Patch(ctx, key.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		return err
	})
}

// patched reports whether a patch of ours owns fields of the object's spec.
func patched(obj *unstructured.Unstructured) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		var owned map[string]any
		return e.Manager == FieldManager && e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == "" && e.FieldsV1 != nil &&
			json.Unmarshal(e.FieldsV1.GetRawBytes(), &owned) == nil && owned["f:spec"] != nil
	})
}
