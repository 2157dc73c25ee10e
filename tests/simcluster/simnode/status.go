package simnode

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/util/pod"
)

// status is what the pod's status is now.
func (w *worker) status() corev1.PodStatus {
	w.mu.Lock()
	pod, containers, message, reason := w.latest, w.containers, w.message, w.reason
	w.mu.Unlock()
	status := *pod.Status.DeepCopy()
	status.HostIP = w.node.config.Addresses.Node()
	status.HostIPs = []corev1.HostIP{{IP: status.HostIP}}
	status.PodIP = w.reportedAddress()
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	status.QOSClass = pod.Status.QOSClass
	if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: metav1.Now().Time}
	}
	if containers == nil {
		status.Phase = corev1.PodPending
		status.Message = message
		status.ContainerStatuses = nil
		for _, c := range pod.Spec.Containers {
			waiting := &corev1.ContainerStateWaiting{Reason: cmp.Or(reason, creating), Message: message}
			if reason != "" && !unreachable(c.Image) {
				waiting = &corev1.ContainerStateWaiting{Reason: creating}
			}
			status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image,
				State: corev1.ContainerState{Waiting: waiting}})
		}
		setConditions(&status, false, false, message)
		return status
	}
	status.Message = ""
	status.ContainerStatuses, status.InitContainerStatuses = nil, nil
	ready, ended, failed := true, 0, false
	for _, c := range containers {
		s := c.status()
		if slices.ContainsFunc(pod.Spec.InitContainers, func(i corev1.Container) bool { return i.Name == s.Name }) {
			status.InitContainerStatuses = append(status.InitContainerStatuses, s)
			continue
		}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
		ready = ready && s.Ready
		if t := s.State.Terminated; t != nil {
			ended++
			failed = failed || t.ExitCode != 0
		}
	}
	status.Phase = corev1.PodRunning
	// If the policy restarts it, a terminated container only waits for its restart; live() returns only when it will not be
	// restarted.
	if ended == len(pod.Spec.Containers) && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		switch {
		case !failed:
			status.Phase = corev1.PodSucceeded
		case pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
			status.Phase = corev1.PodFailed
		}
	}
	setConditions(&status, true, ready && pod.DeletionTimestamp == nil, "")
	return status
}

// reportedAddress is the address in the pod's status. It is the pod's own address, which peers use. Pods of Deployments are
// reached through services, so they report the address that EndpointSlices accept.
func (w *worker) reportedAddress() string {
	pod := w.pod()
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "ReplicaSet" && !pod.Spec.HostNetwork {
		return serviceAddress(w.address)
	}
	return w.address
}

func setConditions(status *corev1.PodStatus, initialized, ready bool, message string) {
	set := func(kind corev1.PodConditionType, on bool) {
		wanted := corev1.ConditionFalse
		if on {
			wanted = corev1.ConditionTrue
		}
		for i := range status.Conditions {
			if c := &status.Conditions[i]; c.Type == kind {
				if c.Status != wanted {
					c.Status, c.LastTransitionTime = wanted, metav1.Now()
				}
				c.Message = message
				return
			}
		}
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: wanted, LastTransitionTime: metav1.Now(),
			Message: message})
	}
	set(corev1.PodReadyToStartContainers, initialized)
	set(corev1.PodInitialized, initialized)
	set(corev1.ContainersReady, ready)
	set(corev1.PodReady, ready)
}

// report writes the status if it differs from the last one, and returns the phase that it wrote. A failed write returns
// PodUnknown, and is repeated with the next change.
func (w *worker) report(ctx context.Context) corev1.PodPhase {
	w.mu.Lock()
	pod, gone := w.latest, w.gone
	w.mu.Unlock()
	status := w.status()
	if gone || w.node.silent.Load() {
		return status.Phase
	}
	patched, _, unchanged, err := podutil.PatchPodStatus(ctx, w.node.client, pod.Namespace, pod.Name, pod.UID, pod.Status, status)
	switch {
	case apierrors.IsNotFound(err) || ctx.Err() != nil:
	case err != nil:
		klog.FromContext(ctx).V(2).Info("Writing the pod's status failed and is tried again", "err", err)
		time.AfterFunc(time.Second, w.notify)
		return corev1.PodUnknown
	case !unchanged:
		w.mu.Lock()
		// The watch may be ahead of this answer.
		if w.latest.ResourceVersion == pod.ResourceVersion {
			w.latest = patched
		}
		w.mu.Unlock()
	}
	return status.Phase
}

// warn records a Warning on the pod. It does not wait for success, since a lost Event does no harm.
func (n *Node) warn(ctx context.Context, pod *corev1.Pod, reason, message string) {
	const limit = 1024 // the API's
	if len(message) > limit {
		message = message[:limit]
	}
	now := metav1.Now()
	_, err := n.client.CoreV1().Events(pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: "kubelet", Host: n.config.Name}, ReportingController: "kubelet", ReportingInstance: n.config.Name,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Recording an event failed", "reason", reason, "err", err)
	}
}
