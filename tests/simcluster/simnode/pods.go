package simnode

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// servePods runs a worker for every pod that is bound to this node, until ctx is done and all workers have ended.
func (n *Node) servePods(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	changed := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		w := n.workers[pod.UID]
		if w == nil {
			if terminal(pod) || ctx.Err() != nil {
				return
			}
			w = newWorker(n, pod)
			n.workers[pod.UID] = w
			workers.Add(1)
			go func() {
				defer workers.Done()
				w.run(ctx)
				n.mu.Lock()
				delete(n.workers, pod.UID)
				n.mu.Unlock()
			}()
			return
		}
		w.update(pod)
	}
	selector := fields.OneTermEqualSelector("spec.nodeName", n.config.Name).String()
	pods := cache.NewFilteredListWatchFromClient(n.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		func(options *metav1.ListOptions) {
			options.FieldSelector = selector
		})
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: pods, ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, object any) { changed(object) },
			DeleteFunc: func(object any) {
				if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = tombstone.Obj
				}
				if pod, ok := object.(*corev1.Pod); ok {
					n.mu.Lock()
					w := n.workers[pod.UID]
					n.mu.Unlock()
					if w != nil {
						w.vanished()
					}
				}
			},
		},
	})
	informer.RunWithContext(ctx)
	return nil
}

// activePods are the pods that may hold devices, for the kubelet's managers.
func (n *Node) activePods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(n.workers))
	for _, w := range n.workers {
		if pod := w.pod(); !terminal(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Kill ends a container's program at once, as kill -9 would. The node starts it again after its back-off. The error names the
// existing containers.
func (n *Node) Kill(pod types.NamespacedName, container string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var have []string
	for _, w := range n.workers {
		p := w.pod()
		if p.Namespace != pod.Namespace || p.Name != pod.Name {
			have = append(have, p.Namespace+"/"+p.Name)
			continue
		}
		return w.kill(container)
	}
	return fmt.Errorf("kill a container of pod %s on node %s: no such pod here; there are %v", pod, n.config.Name, have)
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
