package profiles

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/scheduler/cards"
)

// policies returns the policies for a pod's slices, nil where nothing sets one. The pod's own annotations take precedence over the
// policy of the first of its DeviceClasses that belongs to a VGPUProfile. The scheduler's default applies where that profile has
// none. An error is a mistake in an annotation, with the allowed values.
func (p *Plugin) policies(pod *corev1.Pod) (*cards.Policies, error) {
	classes := p.classes(pod)
	if len(classes) == 0 {
		return nil, nil
	}
	chosen, found := p.defaults, cards.HasPolicy(pod)
	for _, class := range classes {
		policy, ok, err := ofClass(class)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if policy != "" {
			chosen = cards.Policies{Node: policy, Card: policy}
		}
		found = true
		break
	}
	if !found {
		return nil, nil
	}
	chosen, err := chosen.Of(pod)
	return &chosen, err
}

// ofClass is the policy of a DeviceClass, empty for a VGPUProfile's class without one; false where the class belongs to no profile
// and has no policy.
func ofClass(class *resourceapi.DeviceClass) (cards.Policy, bool, error) {
	value, ok := class.Annotations[v1alpha1.VGPUPolicyAnnotation]
	if !ok {
		owner := metav1.GetControllerOf(class)
		return "", owner != nil && owner.Kind == "VGPUProfile" && strings.HasPrefix(owner.APIVersion, v1alpha1.GroupName+"/"), nil
	}
	switch v1alpha1.VGPUPolicy(value) {
	case v1alpha1.VGPUBinpack:
		return cards.Binpack, true, nil
	case v1alpha1.VGPUSpread:
		return cards.Spread, true, nil
	}
	return "", false, fmt.Errorf("DeviceClass %s: annotation %s is %q, where %s and %s are allowed",
		class.Name, v1alpha1.VGPUPolicyAnnotation, value, v1alpha1.VGPUBinpack, v1alpha1.VGPUSpread)
}

// classes are the DeviceClasses that a pod's unallocated claims and extended resources name, in the pod's order. The stock plugin
// reports missing ones.
func (p *Plugin) classes(pod *corev1.Pod) []*resourceapi.DeviceClass {
	var found []*resourceapi.DeviceClass
	named := func(name string) {
		if class, err := p.manager.DeviceClasses().Get(name); err == nil {
			found = append(found, class)
		}
	}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, err := p.manager.SharedDRAManager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil || claim.Status.Allocation != nil {
			continue
		}
		for _, request := range claim.Spec.Devices.Requests {
			if request.Exactly != nil {
				named(request.Exactly.DeviceClassName)
			}
			for _, alternative := range request.FirstAvailable {
				named(alternative.DeviceClassName)
			}
		}
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, name := range slices.Sorted(maps.Keys(container.Resources.Requests)) {
			if class := p.manager.DeviceClassResolver().GetDeviceClass(name); class != nil {
				found = append(found, class)
			}
		}
	}
	return found
}
