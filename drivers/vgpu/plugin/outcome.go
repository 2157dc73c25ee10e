package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
)

// outcome reports the results of the scheduler's decisions to it, through the pods' annotations. It implements hook.Outcome: the
// hook only adds to the queue.
type outcome struct {
	client    kubernetes.Interface
	resources annotation.Resources
	node      string
	queue     chan result
	// served are the containers of a pod that have their shares, by pod UID, until the pod is gone. Only run uses it.
	served map[types.UID]map[string]bool
	// failing fails pods that are refused for too long.
	failing *failing
	// limits are the backends of the containers of these pods, as far as reported.
	limits map[types.UID]map[string]string
	// ended reports whether a pod has ended. It must be set before run.
	ended func(context.Context, *corev1.Pod) (bool, error)
	// after is time.After; tests replace it.
	after func(time.Duration) <-chan time.Time
	// shown are the MIG instances of the last reported pod, which its cached annotations may lack.
	shown map[types.UID]map[string][]instances.Instance
}

type result struct {
	pod       *corev1.Pod
	container string
	why       error
	// by is the backend that limits the container to its share.
	by injection.Backend
	// given, where it is set, is written instead of a phase.
	given []instances.Instance
	// gone means only that the pod has ended.
	gone bool
}

// queueLength is more results than a node makes at once: 110 pods of a few containers. A result beyond it is dropped with a log entry; the
// scheduler then uses the pod's phase.
const queueLength = 512

func newOutcome(client kubernetes.Interface, resources annotation.Resources, node string, failing *failing) *outcome {
	return &outcome{client: client, resources: resources, node: node, failing: failing, queue: make(chan result, queueLength),
		served: map[types.UID]map[string]bool{}, limits: map[types.UID]map[string]string{}, after: time.After}
}

func (o *outcome) Served(pod *corev1.Pod, container string, by injection.Backend) {
	o.add(result{pod: pod, container: container, by: by})
}

func (o *outcome) Failed(pod *corev1.Pod, container string, why error) {
	o.add(result{pod: pod, container: container, why: why})
}

func (o *outcome) Partitioned(pod *corev1.Pod, container string, given []instances.Instance) {
	o.add(result{pod: pod, container: container, given: given})
}

// Gone reports that a pod has ended.
func (o *outcome) Gone(pod *corev1.Pod) {
	o.add(result{pod: pod, gone: true})
}

func (o *outcome) add(r result) {
	select {
	case o.queue <- r:
	default:
		klog.Background().Info("Too many results wait to be reported to the scheduler; one is dropped", "pod", klog.KObj(r.pod))
	}
}

func (o *outcome) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-o.queue:
			if err := o.persist(ctx, r); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "The result for a container could not be reported to the scheduler",
					"pod", klog.KObj(r.pod), "container", r.container)
			}
		}
	}
}

// patchBackoff is how long a result that the API server does not accept is retried: a minute in all, with pauses from half a second
// to half a minute.
var patchBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 7}

// persist retries a result until it is accepted, or until a retry cannot help. Later results wait: they may be for the same pod.
func (o *outcome) persist(ctx context.Context, r result) error {
	retry := patchBackoff
	for {
		err := o.report(ctx, r)
		if err == nil || retry.Steps == 0 || errors.IsForbidden(err) || errors.IsInvalid(err) || errors.IsBadRequest(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-o.after(retry.Step()):
		}
	}
}

// report writes a result, but none for a pod that has ended: a slow call of the runtime may end after its pod.
func (o *outcome) report(ctx context.Context, r result) error {
	if r.gone {
		o.forget(r.pod.UID)
		return nil
	}
	if err := o.write(ctx, r); err != nil {
		return err
	}
	switch {
	case r.why != nil:
		if err := o.failing.refused(ctx, r.pod, r.container, r.why); err != nil {
			return err
		}
	case r.given == nil:
		o.failing.served(r.pod.UID, r.container)
	}
	ended, err := o.ended(ctx, r.pod)
	if ended {
		o.forget(r.pod.UID)
	}
	return err
}

func (o *outcome) forget(pod types.UID) {
	delete(o.served, pod)
	delete(o.limits, pod)
	o.failing.forget(pod)
	delete(o.shown, pod)
}

// write writes the pod's bind phase: failed at the first failure, success once every container that requested a share has it.
// Either ends the scheduler's lock on the node.
func (o *outcome) write(ctx context.Context, r result) error {
	if r.given != nil {
		return o.show(ctx, r)
	}
	served := o.served[r.pod.UID]
	if served == nil {
		served = map[string]bool{}
		o.served[r.pod.UID] = served
	}
	phase := annotation.BindFailed
	served[r.container] = r.why == nil
	limits := o.limitsOf(r)
	if r.why == nil {
		if slices.ContainsFunc(r.pod.Spec.Containers, func(c corev1.Container) bool { return o.resources.Asks(&c) > 0 && !served[c.Name] }) {
			return nil
		}
		phase = annotation.BindSuccess
	}
	if r.pod.Annotations[annotation.BindPhase] == phase && r.pod.Annotations[annotation.Limits] == limits {
		return nil // a restarted container: its backend is the same
	}
	// After a failure the shares become "to be allocated" again, so that the next try finds them as the scheduler wrote them.
	annotations := map[string]any{annotation.BindPhase: phase, annotation.PodPending: nil}
	if limits != "" {
		annotations[annotation.Limits] = limits
	}
	if r.why != nil {
		annotations[annotation.PodPending] = r.pod.Annotations[annotation.PodDevices]
	}
	if err := o.annotate(ctx, r.pod, annotations); err != nil {
		return err
	}
	return o.unlock(ctx, r.pod)
}

// limitsOf returns the backends of a pod's containers, updated with a result, in the form of the annotation.
func (o *outcome) limitsOf(r result) string {
	of := o.limits[r.pod.UID]
	if of == nil {
		of = limitsOf(r.pod)
		o.limits[r.pod.UID] = of
	}
	if r.by != "" {
		of[r.container] = string(r.by)
	}
	return annotation.FormatLimits(of)
}

// limitsOf returns the limiters of a pod's containers from its annotation. It is only for people and metrics: no decision depends on it.
func limitsOf(pod *corev1.Pod) map[string]string {
	return annotation.ParseLimits(pod.Annotations[annotation.Limits])
}

// instancesAnnotation shows people which MIG instances a pod's containers have: a JSON object of lists, by container.
const instancesAnnotation = "vgpu.gpufabric.io/mig-instances"

// show adds a container's instances to the pod's annotation, beside those of its other containers.
func (o *outcome) show(ctx context.Context, r result) error {
	shown := o.shown[r.pod.UID]
	if shown == nil {
		shown = map[string][]instances.Instance{}
		// A value of another program is overwritten.
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
	// The UID keeps the patch away from a later pod of the same name.
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

// unlock removes the node's lock that the pod's scheduler took for it (Volcano with deviceshare.NodeLockEnable, HAMi, ours), and no
// other lock.
func (o *outcome) unlock(ctx context.Context, pod *corev1.Pod) error {
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("end the scheduler's lock on node %s: %w", o.node, err)
	}
	lock := node.Annotations[annotation.NodeLock]
	if !annotation.Locks(lock, pod) {
		return nil
	}
	path := "/metadata/annotations/" + annotation.NodeLock
	patch, err := json.Marshal([]map[string]string{{"op": "test", "path": path, "value": lock}, {"op": "remove", "path": path}})
	if err != nil {
		return err
	}
	// Invalid: the lock is gone by now, or another's.
	if _, err := o.client.CoreV1().Nodes().Patch(ctx, o.node, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil &&
		!errors.IsInvalid(err) {
		return fmt.Errorf("end the scheduler's lock on node %s: %w", o.node, err)
	}
	return nil
}
