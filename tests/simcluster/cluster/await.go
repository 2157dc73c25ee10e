package cluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// AwaitNodes returns when count nodes are Ready and schedulable. progress, if not nil, is called with each new number.
func AwaitNodes(ctx context.Context, client kubernetes.Interface, count int, progress func(ready int)) error {
	return awaitNodes(ctx, client, count, nil, progress)
}

// awaitNodes is AwaitNodes of the nodes of these names alone; nil: of all.
func awaitNodes(ctx context.Context, client kubernetes.Interface, count int, names []string, progress func(ready int)) error {
	ready := map[string]bool{}
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		if !ok || names != nil && !slices.Contains(names, node.Name) {
			return false, nil
		}
		before := len(ready)
		if event.Type != watch.Deleted && NodeReady(node) {
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

// AwaitPodStarted returns when a pod is no longer Pending.
func AwaitPodStarted(ctx context.Context, client kubernetes.Interface, namespace, name string) error {
	said := "it does not exist"
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", namespace, fields.OneTermEqualSelector("metadata.name", name))
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Pod{}, nil, func(event watch.Event) (bool, error) {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Deleted {
			return false, nil
		}
		said = waiting(pod)
		return pod.Status.Phase != "" && pod.Status.Phase != corev1.PodPending, nil
	})
	if err != nil {
		return fmt.Errorf("wait for pod %s/%s to start: %w; %s", namespace, name, context.Cause(ctx), said)
	}
	return nil
}

// NodeReady reports whether a node is Ready and no taint says otherwise.
func NodeReady(node *corev1.Node) bool {
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

// AwaitSlices returns when the driver has published devices of count nodes.
func AwaitSlices(ctx context.Context, client kubernetes.Interface, driver string, count int) error {
	published := map[string]string{} // slice to node
	nodes := map[string]int{}
	list := cache.NewListWatchFromClient(client.ResourceV1().RESTClient(), "resourceslices", metav1.NamespaceAll,
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, driver))
	_, err := watchtools.UntilWithSync(ctx, list, &resourceapi.ResourceSlice{}, nil, func(event watch.Event) (bool, error) {
		slice, ok := event.Object.(*resourceapi.ResourceSlice)
		if !ok || slice.Spec.NodeName == nil {
			return false, nil
		}
		_, known := published[slice.Name]
		switch {
		case event.Type == watch.Deleted && known:
			if node := published[slice.Name]; nodes[node] == 1 {
				delete(nodes, node)
			} else {
				nodes[node]--
			}
			delete(published, slice.Name)
		case event.Type != watch.Deleted && !known && len(slice.Spec.Devices) > 0:
			published[slice.Name] = *slice.Spec.NodeName
			nodes[*slice.Spec.NodeName]++
		}
		return len(nodes) >= count, nil
	})
	if err != nil && len(nodes) < count {
		return fmt.Errorf("wait for the devices of driver %s: %d of %d nodes have published theirs: %w", driver, len(nodes), count,
			context.Cause(ctx))
	}
	return nil
}
