package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/vgpu/podwatch"
)

// failing fails pods whose shares the node has refused for some time. The kubelet has admitted such a pod, and retries its
// container for ever, so its controller does not make a replacement. A failed pod is replaced.
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
	if err := f.fail(ctx, pod, fmt.Sprintf("node %s has refused container %s its shares of GPUs for %s (vgpu.refusalPatience): %s", f.node,
		container, f.patience, why)); err != nil {
		return err
	}
	f.forget(pod.UID)
	return nil
}

// fail fails a pod whose shares are refused.
func (f *failing) fail(ctx context.Context, pod *corev1.Pod, message string) error {
	if len(message) > mostMessage {
		message = strings.ToValidUTF8(message[:mostMessage], "")
	}
	if failed, err := host.FailPod(ctx, f.client, pod.Namespace, pod.Name, pod.UID, message); err != nil || !failed {
		return err
	}
	klog.FromContext(ctx).Info("Failing a pod, since its shares are refused", "pod", klog.KObj(pod), "because", message)
	f.events.Event(pod, corev1.EventTypeWarning, host.ReasonSharesRefused, message)
	return nil
}

// mostMessage is the maximum length of an Event's message, in bytes.
const mostMessage = 1024
