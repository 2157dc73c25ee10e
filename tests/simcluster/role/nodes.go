package role

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// OnEachNode runs the program on each node of the cluster, as a DaemonSet does: also on those that are added, and no longer on those that
// are deleted. It returns when ctx is done and all have ended.
func (r Role) OnEachNode(ctx context.Context, client kubernetes.Interface) error {
	path, err := r.program()
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	stops := map[string]context.CancelFunc{} // by node; the informer calls its handlers one after the other
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.Everything()),
		ObjectType:    &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) {
				node, ok := object.(*corev1.Node)
				if !ok {
					return
				}
				on, stop := context.WithCancel(ctx)
				stops[node.Name] = stop
				running.Go(func() { r.onNode(on, path, node.Name) })
			},
			DeleteFunc: func(object any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil && stops[key] != nil {
					stops[key]()
					delete(stops, key)
				}
			},
		},
	})
	informer.RunWithContext(ctx)
	return nil
}
