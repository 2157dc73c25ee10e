// Package podwatch follows the pods of one node. It keeps only the parts of each that GPU sharing needs.
package podwatch

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Pods are a node's pods: a watch, and the API server behind it.
type Pods struct {
	client kubernetes.Interface
	lister listers.PodLister

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
}

// Watch starts a watch of the node's pods and waits until it is filled. ended is called with each pod whose containers no longer
// run.
func Watch(ctx context.Context, client kubernetes.Interface, node string, ended func(*corev1.Pod)) (*Pods, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}))
	informer := factory.Core().V1().Pods()
	// Unneeded parts are dropped: on a node of many pods they are most of the memory.
	if err := informer.Informer().SetTransform(slim); err != nil {
		return nil, fmt.Errorf("watch pods of node %s: %w", node, err)
	}
	p := &Pods{client: client, lister: informer.Lister(), changed: make(chan struct{})}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if pod, ok := object.(*corev1.Pod); ok && Over(pod) {
				ended(pod)
			}
			p.signal()
		},
		UpdateFunc: func(before, object any) {
			pod, ok := object.(*corev1.Pod)
			// After an interruption, a watch may show a pod and its successor of the same name as a change of one pod.
			if old, had := before.(*corev1.Pod); ok && had && old.UID != pod.UID {
				ended(old)
			}
			if ok && Over(pod) {
				ended(pod)
			}
			p.signal()
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				ended(pod)
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch pods of node %s: %w", node, err)
	}
	klog.FromContext(ctx).Info("Waiting for the API server's list of this node's pods", "node", node)
	factory.Start(ctx.Done())
	for _, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, fmt.Errorf("watch pods of node %s: %w", node, context.Cause(ctx))
		}
	}
	return p, nil
}

// slim changes a copy: the object may have other users, such as a fake API server.
func slim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept := *pod
	kept.ManagedFields, kept.Spec.Volumes = nil, nil
	kept.Status.ContainerStatuses, kept.Status.InitContainerStatuses, kept.Status.Conditions = nil, nil, nil
	return &kept, nil
}

// Over reports whether a pod's containers no longer run.
func Over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (p *Pods) signal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Changed is closed when a pod appears or changes after this call.
func (p *Pods) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Pod returns the pod with that UID; fresh queries the API server instead of the watch. A pod of the same name with another UID is an
// error.
func (p *Pods) Pod(ctx context.Context, namespace, name, uid string, fresh bool) (*corev1.Pod, error) {
	var pod *corev1.Pod
	var err error
	if fresh {
		pod, err = p.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	} else {
		pod, err = p.lister.Pods(namespace).Get(name)
	}
	if err != nil {
		return nil, fmt.Errorf("find pod %s/%s: %w", namespace, name, err)
	}
	if string(pod.UID) != uid {
		return nil, fmt.Errorf("find pod %s/%s of UID %s: the pod of that name has UID %s now", namespace, name, uid, pod.UID)
	}
	return pod, nil
}

// Ended reports whether a pod of this node no longer runs. A pod that the watch does not have is read from the API server: it may be
// too new for the watch.
func (p *Pods) Ended(ctx context.Context, pod *corev1.Pod) (bool, error) {
	live, err := p.lister.Pods(pod.Namespace).Get(pod.Name)
	if err != nil || live.UID != pod.UID {
		live, err = p.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("find pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return live.UID != pod.UID || Over(live), nil
}

// All returns the node's pods as last seen.
func (p *Pods) All() ([]*corev1.Pod, error) { return p.lister.List(labels.Everything()) }
