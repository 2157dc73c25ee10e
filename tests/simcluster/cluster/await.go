package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// AwaitNodes returns when count nodes are Ready and schedulable; progress, if not nil, is told each new number.
func AwaitNodes(ctx context.Context, client kubernetes.Interface, count int, progress func(ready int)) error {
	ready := map[string]bool{}
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		if !ok {
			return false, nil
		}
		before := len(ready)
		if event.Type != watch.Deleted && nodeReady(node) {
			ready[node.Name] = true
		} else {
			delete(ready, node.Name)
		}
		if progress != nil && len(ready) != before {
			progress(len(ready))
		}
		return len(ready) >= count, nil
	})
	if err != nil && len(ready) < count {
		return fmt.Errorf("wait for nodes: %d of %d are Ready: %w", len(ready), count, context.Cause(ctx))
	}
	return nil
}

func nodeReady(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
			return false
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
