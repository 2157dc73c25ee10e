package release

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/provider/internal/object"
)

// managerOf returns the field manager that wrote the different field of the live object, the latest of several. It is empty where only this
// provider wrote it, and where no manager is recorded: for a default, for a new order of elements that have keys, and for fields of
// another part of the object.
func managerOf(entries []metav1.ManagedFieldsEntry, live map[string]any, d difference) string {
	manager, depth := "", 0
	var at metav1.Time
	for _, e := range entries {
		var fields map[string]any
		if e.Manager == object.FieldManager || e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		steps := ownedSteps(fields, live, d)
		if steps == 0 || steps < depth || steps == depth && (e.Time == nil || e.Time.Before(&at)) {
			continue
		}
		manager, depth, at = e.Manager, steps, metav1.Time{}
		if e.Time != nil {
			at = *e.Time
		}
	}
	return manager
}

// ownedSteps returns the number of steps of the difference's path down to what a manager's fields own: the whole path, or fewer where
// they own a map or list that holds it as one value; 0 where they own neither. The fields are a FieldsV1 (fieldmanagers of
// sigs.k8s.io/structured-merge-diff): f:NAME, k:{KEYS} and v:VALUE name what they hold, and an element without any is one value.
func ownedSteps(fields, live map[string]any, d difference) int {
	var at any = live
	for i, s := range d.path {
		if len(fields) == 0 {
			return i
		}
		var next any
		if s.field != "" {
			next = fields["f:"+s.field]
			m, _ := at.(map[string]any)
			at = m[s.field]
		} else {
			list, _ := at.([]any)
			at = byKey(list, s.key)[s.value]
			next = elementIn(fields, at)
		}
		inner, ok := next.(map[string]any)
		if !ok {
			return 0
		}
		fields = inner
	}
	if list, ok := d.have.([]any); ok && d.want != nil && len(fields) > 0 && !ownsNew(fields, d.want, list) {
		return 0
	}
	return len(d.path)
}

// ownsNew reports whether the fields of a list own an element of have that want lacks.
func ownsNew(fields map[string]any, want any, have []any) bool {
	old, _ := want.([]any)
	return slices.ContainsFunc(have, func(element any) bool {
		same := func(other any) bool { return reflect.DeepEqual(element, other) }
		return elementIn(fields, element) != nil && !slices.ContainsFunc(old, same)
	})
}

// elementIn returns the fields of an element in those of its list; nil where they have none.
func elementIn(fields map[string]any, element any) any {
	for name, inner := range fields {
		if text, ok := strings.CutPrefix(name, "v:"); ok {
			var value any
			if json.Unmarshal([]byte(text), &value) == nil && isScalar(element) && fmt.Sprint(value) == fmt.Sprint(element) {
				return inner
			}
		}
		text, keyed := strings.CutPrefix(name, "k:")
		var keys map[string]any
		m, isMap := element.(map[string]any)
		if !keyed || !isMap || json.Unmarshal([]byte(text), &keys) != nil {
			continue
		}
		fits := true
		for key, value := range keys {
			fits = fits && fmt.Sprint(m[key]) == fmt.Sprint(value)
		}
		if fits {
			return inner
		}
	}
	return nil
}
