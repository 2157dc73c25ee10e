package release

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fetch reads a workload from the API server; nil when it does not exist.
func (m *Manager) fetch(ctx context.Context, w workload) (any, error) {
	apps := m.client.Typed.AppsV1()
	var (
		obj any
		err error
	)
	switch w.Kind {
	case "Deployment":
		obj, err = apps.Deployments(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	case "DaemonSet":
		obj, err = apps.DaemonSets(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	default:
		obj, err = apps.StatefulSets(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}
