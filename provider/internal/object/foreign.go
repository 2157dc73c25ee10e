package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// foreignField is a field of a spec that another manager added.
type foreignField struct {
	at []string // from the object's root
	Conflict
}

// refuse returns a *ConflictError, before anything is written, where another manager applies a field of the live spec that the wanted
// one leaves out: server-side apply reports no such field. The error names the conflicts of the apply too.
func (s *Store) refuse(ctx context.Context, live, wanted *unstructured.Unstructured, force bool) error {
	refused := &ConflictError{Kind: s.kind.Name, Key: Key{Namespace: live.GetNamespace(), Name: live.GetName()}}
	for _, f := range foreignFields(live, wanted) {
		if f.Applied {
			refused.Conflicts = append(refused.Conflicts, f.Conflict)
		}
	}
	if force || len(refused.Conflicts) == 0 {
		return nil
	}
	_, err := s.resource(refused.Key).Apply(ctx, refused.Key.Name, wanted, metav1.ApplyOptions{FieldManager: FieldManager,
		DryRun: []string{metav1.DryRunAll}})
	var others *ConflictError
	if apierrors.IsConflict(err) && errors.As(conflict(s.kind.Name, refused.Key, err), &others) {
		refused.Conflicts = append(refused.Conflicts, others.Conflicts...)
	}
	return refused
}

// withdraw removes the fields of the spec that others added and that the applied configuration leaves out: server-side apply leaves
// them alone. A field that another manager has applied since refuse looked is a *ConflictError, unless force takes it over. Fields
// that the API server adds by default have no manager, and stay.
func (s *Store) withdraw(ctx context.Context, live, wanted *unstructured.Unstructured, force bool) (
	*unstructured.Unstructured, []Conflict, error) {
	fields := foreignFields(live, wanted)
	if len(fields) == 0 {
		return live, nil, nil
	}
	key := Key{Namespace: live.GetNamespace(), Name: live.GetName()}
	patch := map[string]any{"metadata": map[string]any{"uid": string(live.GetUID())}} // a status may be written meanwhile
	conflicts := make([]Conflict, 0, len(fields))
	for _, f := range fields {
		conflicts = append(conflicts, f.Conflict)
		if err := unstructured.SetNestedField(patch, nil, f.at...); err != nil {
			return nil, nil, fmt.Errorf("remove %s of %s %s: %w", f.Field, s.kind.Name, key, err)
		}
	}
	refused := &ConflictError{Kind: s.kind.Name, Key: key, Conflicts: conflicts}
	if refused.applied() && !force {
		return nil, nil, refused
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, nil, err
	}
	left, err := s.resource(key).Patch(ctx, key.Name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: FieldManager})
	return left, conflicts, err
}

// foreignFields finds the fields of live's spec that wanted lacks and that another manager owns.
func foreignFields(live, wanted *unstructured.Unstructured) []foreignField {
	var found []foreignField
	var look func(has, wants map[string]any, at []string)
	look = func(has, wants map[string]any, at []string) {
		for _, name := range slices.Sorted(maps.Keys(has)) {
			here := append(slices.Clone(at), name)
			other, both := wants[name]
			inner, isMap := has[name].(map[string]any)
			otherInner, otherIsMap := other.(map[string]any)
			switch {
			case both && isMap && otherIsMap:
				look(inner, otherInner, here)
			case both: // server-side apply has set it
			default:
				if manager, applied := managerOf(live, here); manager != "" {
					found = append(found, foreignField{here, Conflict{"." + strings.Join(here, "."), fmt.Sprintf("%q", manager), applied}})
				}
			}
		}
	}
	spec, _, _ := unstructured.NestedMap(live.Object, "spec")
	want, _, _ := unstructured.NestedMap(wanted.Object, "spec")
	look(spec, want, []string{"spec"})
	return found
}

// Unmanaged returns the fields of live's spec that wanted lacks, that other managers own, and that have a value: an empty one means the
// same as none.
func Unmanaged(live, wanted *unstructured.Unstructured) []Conflict {
	var fields []Conflict
	for _, f := range foreignFields(live, wanted) {
		if value, _, err := unstructured.NestedFieldNoCopy(live.Object, f.at...); err == nil && !isEmpty(value) {
			fields = append(fields, f.Conflict)
		}
	}
	return fields
}

// isEmpty reports whether a value of JSON is null, false, zero, or has no content.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		for _, inner := range v {
			if !isEmpty(inner) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	}
	return reflect.ValueOf(value).IsZero()
}

// managerOf names the manager beside ours that owns a field, and whether it does so by server-side apply.
func managerOf(obj *unstructured.Unstructured, at []string) (manager string, applied bool) {
	for _, entry := range obj.GetManagedFields() {
		if entry.Manager == FieldManager || entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		var owned map[string]any
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) != nil {
			continue // the API server writes no other form
		}
		path := make([]string, len(at))
		for i, name := range at {
			path[i] = "f:" + name
		}
		if _, found, err := unstructured.NestedFieldNoCopy(owned, path...); found && err == nil {
			return entry.Manager, entry.Operation == metav1.ManagedFieldsOperationApply
		}
	}
	return "", false
}
