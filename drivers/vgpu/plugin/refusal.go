package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/vgpu/podwatch"
)

// sharesRefused is the reason of a pod that was failed because its node refuses its shares, and of the Event about it.
const sharesRefused = "SharesRefused"

// failing fails pods whose shares the node has refused for some time. The kubelet has admitted such a pod, and retries its
// container for ever, so its controller makes no replacement. A failed pod is replaced.
type failing struct {
	client kubernetes.Interface
	node   string
	// patience is how long a pod may be refused before it is failed; 0: for ever.
	patience time.Duration
	now      func() time.Time
	events   record.EventRecorder
	// since is when each pod's containers were first refused without having been served since. Only the outcome's run uses it.
	since map[types.UID]map[string]time.Time
}

// served removes the record of a container's refusal.
func (f *failing) served(pod types.UID, container string) { delete(f.since[pod], container) }

func (f *failing) forget(pod types.UID) { delete(f.since, pod) }

// refused records a container's refusal, and fails its pod where that has gone on for too long. The kubelet tries again at least
// every five minutes, so each try is a time to check.
func (f *failing) refused(ctx context.Context, pod *corev1.Pod, container string, why error) error {
	if f.patience == 0 || podwatch.Over(pod) {
		return nil
	}
	if f.since[pod.UID] == nil {
		f.since[pod.UID] = map[string]time.Time{}
	}
	first, known := f.since[pod.UID][container]
	if !known {
		first = f.now()
		f.since[pod.UID][container] = first
	}
	if f.now().Sub(first) < f.patience {
		return nil
	}
	message := fmt.Sprintf("node %s has refused container %s its shares of GPUs for %s (vgpu.refusalPatience): %s", f.node, container,
		f.patience, why)
	if len(message) > mostMessage {
		message = strings.ToValidUTF8(message[:mostMessage], "")
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"phase": corev1.PodFailed, "reason": sharesRefused, "message": message}})
	if err != nil {
		return err
	}
	_, err = f.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if errors.IsNotFound(err) || errors.IsConflict(err) {
		return nil // the pod is gone
	}
	if err != nil {
		return fmt.Errorf("fail pod %s/%s, whose shares are refused: %w", pod.Namespace, pod.Name, err)
	}
	klog.FromContext(ctx).Info("A pod is failed, since its shares are refused", "pod", klog.KObj(pod), "container", container)
	f.events.Event(pod, corev1.EventTypeWarning, sharesRefused, message)
	f.forget(pod.UID)
	return nil
}

// mostMessage is the maximum length of an Event's message, in bytes.
const mostMessage = 1024
