package demand

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/doctor/selector"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/planner"
)

// classPrefix is the prefix of the extended resource of a DeviceClass, before the class's name.
const classPrefix = resourceapi.ResourceDeviceClassPrefix

// maxDevices bounds the devices of one pod that are planned for; the API allows a claim 32.
const maxDevices = 32

// wants finds out which shapes pods wait for.
type wants struct {
	// samples are evaluated against a request's selectors.
	samples samples
	classes map[string]*resourceapi.DeviceClass
	claims  *claimIndex
	// known are the shapes of requests, by their class and selectors; -1: none. selectors are parsed expressions.
	known     map[string]int
	selectors map[string]selector.Selector
	// read are the requests whose selectors were evaluated in this decision, by namespace.
	read map[string]int
}

const (
	// maxKnown limits the stored requests, whose texts tenants write.
	maxKnown = 10_000
	// maxRead bounds how many requests of a namespace are evaluated in one decision, so that one with many selectors does not keep the
	// others waiting: its further pods are looked at by the next decisions.
	maxRead = 50
)

// budget reports whether a pod of the namespace may be looked at in this decision.
func (w *wants) budget(namespace string) bool { return w.read[namespace] < maxRead }

// waits reports whether the scheduler found no node for a pod, which only a change can help.
func waits(pod *corev1.Pod) (since time.Time, waits bool) {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) > 0 {
		return time.Time{}, false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// admitted reports whether one of the nodes may run a pod: its labels and taints, and its capacity for pods, of which others may have
// a part.
func (w *wants) admitted(pod *corev1.Pod, nodes []*corev1.Node) bool {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	for name := range requests {
		if w.extended(string(name)) != "" {
			delete(requests, name)
		}
	}
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		if !hasRoom(n, requests) {
			return false
		}
		if match, err := affinity.Match(n); err != nil || !match {
			return false
		}
		_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, pod.Spec.Tolerations,
			func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, true)
		return !untolerated
	})
}

// hasRoom reports whether a node with no pods could meet the requests.
func hasRoom(n *corev1.Node, requests corev1.ResourceList) bool {
	if len(n.Status.Allocatable) == 0 {
		return true // its kubelet has not reported yet
	}
	for name, wanted := range requests {
		if has := n.Status.Allocatable[name]; has.Cmp(wanted) < 0 {
			return false
		}
	}
	return true
}

// part is the demand of a pod by one of its claims, or by extended resources, which have no claim before the pod is scheduled.
type part struct {
	claim  types.NamespacedName
	shapes []int // one entry a device
	// together: a constraint of the claim wants them of one GPU.
	together bool
}

// waiting is the unmet demand of a part.
func (p part) waiting(pod *corev1.Pod, since time.Time) []planner.Waiting {
	one := planner.Waiting{Since: since, Namespace: pod.Namespace}
	if pod.Spec.Priority != nil {
		one.Priority = *pod.Spec.Priority
	}
	if p.together {
		one.Shape, one.Beside = p.shapes[0], p.shapes[1:]
		return []planner.Waiting{one}
	}
	var out []planner.Waiting
	for _, shape := range p.shapes {
		one.Shape = shape
		out = append(out, one)
	}
	return out
}

// parts returns the demand of a pod. complete: all of its claims exist.
func (w *wants) parts(pod *corev1.Pod) (out []part, complete bool) {
	complete = true
	left := maxDevices
	add := func(claim types.NamespacedName, together bool, shapes []int) {
		shapes = shapes[:min(len(shapes), left)]
		if left -= len(shapes); len(shapes) > 0 {
			out = append(out, part{claim, shapes, together && len(shapes) > 1})
		}
	}
	for i := range pod.Spec.ResourceClaims {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: claimName(pod, &pod.Spec.ResourceClaims[i])}
		claim := w.claims.get(name)
		if claim == nil {
			complete = false
			continue
		}
		var together []int
		for j := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[j]
			if ofOneGPU(claim, r.Name) {
				together = append(together, w.request(pod.Namespace, r)...)
			} else {
				add(name, false, w.request(pod.Namespace, r))
			}
		}
		add(name, true, together)
	}
	for i := range pod.Spec.Containers {
		for name, amount := range pod.Spec.Containers[i].Resources.Requests {
			if class := w.extended(string(name)); class != "" {
				add(types.NamespacedName{}, false, repeated(w.shape(pod.Namespace, class, nil, nil), amount.Value()))
			}
		}
	}
	return out, complete
}

// ofOneGPU reports whether a constraint wants the devices of a request to have the same parent.
func ofOneGPU(c *resourceapi.ResourceClaim, request string) bool {
	return slices.ContainsFunc(c.Spec.Devices.Constraints, func(k resourceapi.DeviceConstraint) bool {
		return k.MatchAttribute != nil && string(*k.MatchAttribute) == devices.Driver+"/"+string(devices.AttrParentUUID) &&
			(len(k.Requests) == 0 || slices.Contains(k.Requests, request))
	})
}

// claimName is the name of a pod's claim, empty where it is still unknown.
func claimName(pod *corev1.Pod, reference *corev1.PodResourceClaim) string {
	if reference.ResourceClaimName != nil {
		return *reference.ResourceClaimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == reference.Name && s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	return ""
}

// request returns the shapes of a request: of alternatives those of the first that a shape satisfies.
func (w *wants) request(namespace string, r *resourceapi.DeviceRequest) []int {
	if e := r.Exactly; e != nil {
		if e.AllocationMode != resourceapi.DeviceAllocationModeExactCount && e.AllocationMode != "" || e.AdminAccess != nil && *e.AdminAccess {
			return nil
		}
		return repeated(w.shape(namespace, e.DeviceClassName, e.Selectors, e.Capacity), max(e.Count, 1))
	}
	for i := range r.FirstAvailable {
		a := &r.FirstAvailable[i]
		if a.AllocationMode != resourceapi.DeviceAllocationModeExactCount && a.AllocationMode != "" {
			continue
		}
		if shape := w.shape(namespace, a.DeviceClassName, a.Selectors, a.Capacity); shape >= 0 {
			return repeated(shape, max(a.Count, 1))
		}
	}
	return nil
}

func repeated(shape int, count int64) []int {
	if shape < 0 || count < 1 {
		return nil
	}
	return slices.Repeat([]int{shape}, int(min(count, maxDevices)))
}

// extended is the DeviceClass behind an extended resource, empty where there is none.
func (w *wants) extended(resource string) string {
	if name, is := strings.CutPrefix(resource, classPrefix); is {
		return name
	}
	if !strings.Contains(resource, "/") {
		return ""
	}
	for name, class := range w.classes {
		if class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == resource {
			return name
		}
	}
	return ""
}

// shape is the smallest shape that satisfies a class, selectors and capacities; -1: none.
func (w *wants) shape(namespace, class string, own []resourceapi.DeviceSelector, capacity *resourceapi.CapacityRequirements) int {
	c := w.classes[class]
	if c == nil {
		return -1
	}
	key := strings.Builder{}
	key.WriteString(class + "/" + c.ResourceVersion)
	for _, s := range own {
		if s.CEL != nil {
			key.WriteString("\x00" + s.CEL.Expression)
		}
	}
	if capacity != nil {
		key.WriteString("\x00" + capacity.String())
	}
	if shape, known := w.known[key.String()]; known {
		return shape
	}
	found := -1
	w.read[namespace]++
	for _, kind := range w.samples {
		for i, d := range kind {
			if d != nil && (found < 0 || i < found) && w.satisfies(d, slices.Concat(c.Spec.Selectors, own), capacity) {
				found = i
			}
		}
	}
	if len(w.known) >= maxKnown {
		clear(w.known)
	}
	w.known[key.String()] = found
	return found
}

func (w *wants) satisfies(d *resourceapi.Device, selectors []resourceapi.DeviceSelector, capacity *resourceapi.CapacityRequirements) bool {
	for _, s := range selectors {
		if s.CEL == nil {
			return false
		}
		parsed, known := w.selectors[s.CEL.Expression]
		if !known {
			parsed = selector.Read(s.CEL.Expression)
			if len(w.selectors) >= maxKnown {
				clear(w.selectors)
			}
			w.selectors[s.CEL.Expression] = parsed
		}
		if verdict, _ := parsed.Judge(devices.Driver, d); verdict != selector.Yes {
			return false
		}
	}
	if capacity == nil {
		return true
	}
	for name, wanted := range capacity.Requests {
		if has, ok := d.Capacity[resourceapi.QualifiedName(strings.TrimPrefix(string(name), devices.Driver+"/"))]; !ok ||
			has.Value.Cmp(wanted) < 0 {
			return false
		}
	}
	return true
}
