package provider

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
)

// speaker is a model that can say what it waits for.
type speaker interface {
	objectModel
	waiting(ctx context.Context) string
}

// awaitCondition waits until the model itself says that it is settled, for kinds whose status tells all.
func awaitCondition[M speaker](kind object.Kind) func(context.Context, *cluster.Client, M, *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	return func(ctx context.Context, client *cluster.Client, m M, obj *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
		m.observe(ctx, obj) // its diagnostics were reported with the object as applied
		if m.settled() {
			return obj, "", nil
		}
		last, err := object.NewStore(client, kind).Await(ctx, m.key(), obj, func(obj *unstructured.Unstructured) (bool, error) {
			if obj == nil || obj.GetDeletionTimestamp() != nil {
				return false, object.ErrGone
			}
			m.observe(ctx, obj)
			progress(ctx, kind.Name+" "+m.key().String(), m.waiting(ctx))
			return m.settled(), nil
		})
		if last == nil {
			last = obj
		}
		return last, m.waiting(ctx), err
	}
}

// conditionOf returns the condition of a type, or an empty one.
func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	for _, c := range conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}
