package preemption

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"
)

// asks reports whether a pod has requests for DRA devices: by claims, or by an extended resource that a DeviceClass serves.
func (c *claims) asks(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || len(c.extendedResources(pod)) > 0
}

// extendedResources are the extended resources of a pod that a DeviceClass serves, sorted.
func (c *claims) extendedResources(pod *corev1.Pod) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if !quantity.IsZero() && schedutil.IsDRAExtendedResourceName(name) && c.manager.DeviceClassResolver().GetDeviceClass(name) != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// extended is the claim that the scheduler would create for the pod's extended resources on a node. It is nil where the scheduler
// would create none: a node whose device plugin has the resource uses that. The scheduler creates that claim only once it has found
// devices for it, so it does not exist before.
func (c *claims) extended(pod *corev1.Pod, info fwk.NodeInfo) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-extended-resources",
		UID: pod.UID}}
	requests := &claim.Spec.Devices.Requests
	for _, name := range c.extendedResources(pod) {
		if info.GetAllocatable().GetScalarResources()[name] > 0 {
			continue
		}
		for _, count := range counts(pod, name) {
			*requests = append(*requests, resourceapi.DeviceRequest{Name: fmt.Sprintf("request-%d", len(*requests)),
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: c.manager.DeviceClassResolver().GetDeviceClass(name).Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
					Count: count}})
		}
	}
	if len(*requests) == 0 {
		return nil
	}
	return claim
}

// counts reports how many devices of a resource the scheduler requests. It requests them for each container that keeps its own. For
// init containers it requests once the excess of the largest over the later containers: it ends before they start, and uses theirs
// until then.
func counts(pod *corev1.Pod, name corev1.ResourceName) []int64 {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	var own []int64
	var later, more int64
	for i := range slices.Backward(containers) {
		quantity := containers[i].Resources.Requests[name]
		count := quantity.Value()
		policy := containers[i].RestartPolicy
		if ends := i < len(pod.Spec.InitContainers) && (policy == nil || *policy != corev1.ContainerRestartPolicyAlways); ends {
			more = max(more, count-later)
		} else if count > 0 {
			own, later = append(own, count), later+count
		}
	}
	if more > 0 {
		own = append(own, more)
	}
	return own
}

// stale is a claim that the scheduler created for a pod's extended resources in a failed attempt. The scheduler deletes such a
// claim and tries again. Until then its devices are the pod's, and no other pod is evicted.
func stale(pod *corev1.Pod, all []*resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	for _, claim := range all {
		if claim.Namespace == pod.Namespace && claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" &&
			metav1.IsControlledBy(claim, pod) {
			return claim
		}
	}
	return nil
}
