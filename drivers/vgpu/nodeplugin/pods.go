package nodeplugin

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/assignment"
)

// pods are this node's pods: a watch, and the API server behind it.
type pods struct {
	client kubernetes.Interface
	lister listers.PodLister

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
}

// watchPods starts a watch of the node's pods and waits until it is filled. ended hears of each pod whose containers run no more.
func watchPods(ctx context.Context, client kubernetes.Interface, node string, ended func(*corev1.Pod)) (*pods, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}))
	informer := factory.Core().V1().Pods()
	// What is not looked at is not kept: on a node of many pods this is most of the memory.
	if err := informer.Informer().SetTransform(slim); err != nil {
		return nil, fmt.Errorf("watch pods of node %s: %w", node, err)
	}
	p := &pods{client: client, lister: informer.Lister(), changed: make(chan struct{})}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { p.signal() },
		UpdateFunc: func(_, object any) {
			if pod, ok := object.(*corev1.Pod); ok && over(pod) {
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
	factory.Start(ctx.Done())
	for _, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, fmt.Errorf("watch pods of node %s: %w", node, context.Cause(ctx))
		}
	}
	return p, nil
}

func slim(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		pod.ManagedFields, pod.Spec.Volumes = nil, nil
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.Conditions = nil, nil, nil
	}
	return object, nil
}

func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (p *pods) signal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Changed is closed when a pod comes or changes after this call.
func (p *pods) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Pod implements hook.Pods.
func (p *pods) Pod(ctx context.Context, namespace, name, uid string, fresh bool) (*corev1.Pod, error) {
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

// All are the node's pods as last heard of.
func (p *pods) All() ([]*corev1.Pod, error) { return p.lister.List(labels.Everything()) }

// outcome tells the scheduler what became of its decisions, through the pods' annotations. It implements hook.Outcome: the hook only enqueues.
type outcome struct {
	client    kubernetes.Interface
	resources assignment.Resources
	node      string
	queue     chan result
	// waiting are containers of a pod that have not got their shares yet, by pod UID. Only run touches it.
	waiting map[types.UID]map[string]bool
}

type result struct {
	pod       *corev1.Pod
	container string
	why       error
}

// queueLength is more results than a node makes at once: 110 pods of a few containers. One more is dropped with a word; the scheduler then learns from the
// pod's phase.
const queueLength = 512

func newOutcome(client kubernetes.Interface, resources assignment.Resources, node string) *outcome {
	return &outcome{client: client, resources: resources, node: node, queue: make(chan result, queueLength), waiting: map[types.UID]map[string]bool{}}
}

func (o *outcome) Served(pod *corev1.Pod, container string) { o.add(result{pod, container, nil}) }

func (o *outcome) Failed(pod *corev1.Pod, container string, why error) {
	o.add(result{pod, container, why})
}

func (o *outcome) add(r result) {
	select {
	case o.queue <- r:
	default:
		klog.Background().Info("Too many results wait to be told to the scheduler; one is dropped", "pod", klog.KObj(r.pod))
	}
}

func (o *outcome) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-o.queue:
			if err := o.tell(ctx, r); err != nil {
				klog.FromContext(ctx).Error(err, "Telling the scheduler what became of a container", "pod", klog.KObj(r.pod), "container", r.container)
			}
		}
	}
}

// tell writes the pod's bind phase: failed at the first failure, success once every container that asked for a share has it. Either ends the scheduler's
// lock on the node.
func (o *outcome) tell(ctx context.Context, r result) error {
	phase := annotation.BindFailed
	if r.why == nil {
		waiting := o.waiting[r.pod.UID]
		if waiting == nil {
			waiting = map[string]bool{}
			for _, c := range r.pod.Spec.Containers {
				if o.resources.Asks(&c) > 0 {
					waiting[c.Name] = true
				}
			}
			o.waiting[r.pod.UID] = waiting
		}
		delete(waiting, r.container)
		if len(waiting) > 0 {
			return nil
		}
		phase = annotation.BindSuccess
	}
	delete(o.waiting, r.pod.UID)
	if r.pod.Annotations[annotation.BindPhase] == phase {
		return nil // a restarted container: nothing changed
	}
	// On failure the shares go back to "to be allocated", so that the next try finds them as the scheduler wrote them.
	annotations := map[string]any{annotation.BindPhase: phase, annotation.PodPending: nil}
	if r.why != nil {
		annotations[annotation.PodPending] = r.pod.Annotations[annotation.PodDevices]
	}
	if err := o.annotate(ctx, r.pod, annotations); err != nil {
		return err
	}
	return o.unlock(ctx)
}

func (o *outcome) annotate(ctx context.Context, pod *corev1.Pod, annotations map[string]any) error {
	// The UID keeps the patch from a later pod of the same name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = o.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if errors.IsNotFound(err) || errors.IsConflict(err) {
		return nil // the pod is gone
	}
	return err
}

// unlock ends the node lock that Volcano takes with deviceshare.NodeLockEnable.
func (o *outcome) unlock(ctx context.Context) error {
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("end the scheduler's lock on node %s: %w", o.node, err)
	}
	if _, locked := node.Annotations[annotation.NodeLock]; !locked {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, annotation.NodeLock)
	if _, err := o.client.CoreV1().Nodes().Patch(ctx, o.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("end the scheduler's lock on node %s: %w", o.node, err)
	}
	return nil
}
