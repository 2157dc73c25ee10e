package computedomain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// PodReady reports whether an IMEX daemon's pod is ready.
func PodReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// WhyNotReady returns the reason for which an IMEX daemon's pod is not ready.
func WhyNotReady(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "its pod is ending"
	}
	for _, status := range pod.Status.ContainerStatuses {
		switch waiting, ended := status.State.Waiting, status.State.Terminated; {
		case waiting != nil && waiting.Message != "":
			return fmt.Sprintf("its container waits: %s: %s", waiting.Reason, waiting.Message)
		case waiting != nil:
			return "its container waits: " + waiting.Reason
		case ended != nil:
			return fmt.Sprintf("its container ended: %s, exit code %d", ended.Reason, ended.ExitCode)
		case status.State.Running != nil:
			return "nvidia-imex is not READY"
		}
	}
	if pod.Spec.NodeName == "" {
		return "its pod is not scheduled"
	}
	return "its container has not started"
}
