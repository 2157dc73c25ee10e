package snapshot

import (
	"cmp"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// tidy removes duplicates of objects that several requests returned, and sorts everything.
func (s *Snapshot) tidy() {
	s.Pods = unique(s.Pods, func(p *corev1.Pod) client.Object { return p })
	s.Events = unique(s.Events, func(e *corev1.Event) client.Object { return e })
	slices.SortFunc(s.Unread, func(a, b Unread) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Why, b.Why))
	})
	s.Unread = slices.Compact(s.Unread)
}

// unique keeps the newest of objects with one UID, by namespace and name.
func unique[T any](all []T, object func(*T) client.Object) []T {
	slices.SortStableFunc(all, func(a, b T) int {
		x, y := object(&a), object(&b)
		return cmp.Or(cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetName(), y.GetName()),
			cmp.Compare(x.GetUID(), y.GetUID()))
	})
	return slices.CompactFunc(all, func(a, b T) bool { return object(&a).GetUID() == object(&b).GetUID() && object(&a).GetUID() != "" })
}

func decode(body []byte, into any) error { return json.Unmarshal(body, into) }
