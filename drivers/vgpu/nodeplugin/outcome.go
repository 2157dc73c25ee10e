package nodeplugin

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/assignment"
	"gpufabric.io/drivers/vgpu/instances"
)

// outcome tells the scheduler what became of its decisions, through the pods' annotations. It implements hook.Outcome: the hook only enqueues.
type outcome struct {
	client    kubernetes.Interface
	resources assignment.Resources
	node      string
	queue     chan result
	// waiting are containers of a pod that have not got their shares yet, by pod UID. Only run touches it.
	waiting map[types.UID]map[string]bool
	// shown are the MIG instances of the last pod that was told of, which its cached annotations may not have yet.
	shown map[types.UID]map[string][]instances.Instance
}

type result struct {
	pod       *corev1.Pod
	container string
	why       error
	// given, where it is set, is told instead of a phase.
	given []instances.Instance
}

// queueLength is more results than a node makes at once: 110 pods of a few containers. One more is dropped with a word; the scheduler then learns from the
// pod's phase.
const queueLength = 512

func newOutcome(client kubernetes.Interface, resources assignment.Resources, node string) *outcome {
	return &outcome{client: client, resources: resources, node: node, queue: make(chan result, queueLength), waiting: map[types.UID]map[string]bool{}}
}

func (o *outcome) Served(pod *corev1.Pod, container string) {
	o.add(result{pod: pod, container: container})
}

func (o *outcome) Failed(pod *corev1.Pod, container string, why error) {
	o.add(result{pod: pod, container: container, why: why})
}

func (o *outcome) Partitioned(pod *corev1.Pod, container string, given []instances.Instance) {
	o.add(result{pod: pod, container: container, given: given})
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
	if r.given != nil {
		return o.show(ctx, r)
	}
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

// instancesAnnotation shows people which MIG instances a pod's containers have: a JSON object of lists, by container.
const instancesAnnotation = "vgpu.gpufabric.io/mig-instances"

// show writes which instances a container has into the pod's annotation, beside those of its other containers.
func (o *outcome) show(ctx context.Context, r result) error {
	shown := o.shown[r.pod.UID]
	if shown == nil {
		shown = map[string][]instances.Instance{}
		// What another program wrote there is written over.
		_ = json.Unmarshal([]byte(r.pod.Annotations[instancesAnnotation]), &shown)
		o.shown = map[types.UID]map[string][]instances.Instance{r.pod.UID: shown}
	}
	shown[r.container] = r.given
	text, err := json.Marshal(shown)
	if err != nil || string(text) == r.pod.Annotations[instancesAnnotation] {
		return err
	}
	return o.annotate(ctx, r.pod, map[string]any{instancesAnnotation: string(text)})
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
