package controlplane

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// AwaitDefaultAccount waits until a namespace has its default service account, without which no pod can be made in it. The
// controller manager makes it, some time after the API server serves.
func AwaitDefaultAccount(ctx context.Context, client kubernetes.Interface, namespace string) error {
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "serviceaccounts", namespace,
		fields.OneTermEqualSelector("metadata.name", "default"))
	if _, err := watchtools.UntilWithSync(ctx, list, &corev1.ServiceAccount{}, nil, func(event watch.Event) (bool, error) {
		return event.Type != watch.Deleted, nil
	}); err != nil {
		return fmt.Errorf("wait for the default service account of namespace %s, which the controller manager makes: %w", namespace, err)
	}
	return nil
}
