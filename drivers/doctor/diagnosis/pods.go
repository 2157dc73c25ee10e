package diagnosis

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/doctor/findings"
)

// fabricPod reports whether a pod requests devices.
func (e *examination) fabricPod(p *corev1.Pod) bool {
	if len(p.Spec.ResourceClaims) > 0 {
		return true
	}
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		for name := range c.Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/") || strings.HasPrefix(string(name), "rdma/") || strings.HasPrefix(string(name),
				"volcano.sh/vgpu") {
				return true
			}
		}
		return false
	})
}

// pod checks a pod, and its node and claims even if it runs.
func (e *examination) pod(p *corev1.Pod) {
	if p.Status.Phase == corev1.PodSucceeded {
		return
	}
	e.waiting(p)
	if n := e.nodes[p.Spec.NodeName]; n != nil && !podReady(p) {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				e.find("NodeNotReady", "node "+n.Name, "the node's condition Ready", "%s: %s", c.Reason, c.Message)
			}
		}
	}
	for _, r := range p.Spec.ResourceClaims {
		if c, _, _ := e.claimOf(p, r); c != nil {
			e.heldTaints(c)
		}
	}
}

// waiting looks for the reason why a pod does not run.
func (e *examination) waiting(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		e.unscheduled(p)
		return
	}
	object := podObject(p)
	if p.Status.Reason == "UnexpectedAdmissionError" || p.Status.Phase == corev1.PodFailed && strings.Contains(p.Status.Message,
		"UnexpectedAdmissionError") {
		e.find("UnexpectedAdmissionError", object, "the pod's status", "%s", p.Status.Message)
	}
	if podReady(p) {
		return
	}
	e.podClaims(p)
	e.image(p)
	e.runtime(p, object)
	e.eventsOf("Pod", &p.ObjectMeta, func(v *corev1.Event) {
		switch v.Reason {
		case "RDMADeviceNotInPodNetwork", "RDMAInterfaceIncomplete", "NotExclusive", "SharesRefused", "ShareNotLimited":
			e.find(v.Reason, object, "Event "+v.Reason+" of the pod", "%s", v.Message)
		case "FailedCreatePodSandBox":
			if exhausted(v.Message) {
				e.find("SecondaryNetworkExhausted", object, "Event "+v.Reason+" of the pod", "%s", v.Message)
			}
		case "FailedPrepareDynamicResources":
			if strings.Contains(v.Message, "not registered") || strings.Contains(v.Message, "DRA driver") && strings.Contains(v.Message,
				"not found") {
				e.unregistered(p, v, object)
			}
		}
	})
}

// exhausted reports whether a sandbox was not made because a secondary network has no address left, by the words of whereabouts
// (pkg/allocate: AssignmentError) and of nvidia-k8s-ipam (pkg/ipam-node/handlers: specificError).
func exhausted(message string) bool {
	return strings.Contains(message, "Could not allocate IP in range") || strings.Contains(message, "no free addresses in the pool")
}

// unregistered finds the plugin that is not registered with the kubelet, and checks its pod.
func (e *examination) unregistered(p *corev1.Pod, v *corev1.Event, object string) {
	for driver, component := range components() {
		if n := e.nodes[p.Spec.NodeName]; strings.Contains(v.Message, driver) && n != nil {
			e.component(component, n)
			if e.pluginPod(component, n.Name) == nil && e.Reads("pods") {
				e.find("PluginNotRunning", "node "+n.Name, "gpufabric's pods", "node %s has no pod of %s", n.Name, component)
			}
		}
	}
	e.find("PluginNotRegistered", object, "Event FailedPrepareDynamicResources of the pod", "%s", v.Message)
}

// runtime looks for CDI devices that the container runtime cannot resolve.
func (e *examination) runtime(p *corev1.Pod, object string) {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		message := ""
		if s.State.Waiting != nil {
			message = s.State.Waiting.Message
		} else if s.State.Terminated != nil {
			message = s.State.Terminated.Message
		}
		if strings.Contains(message, "CDI device") || strings.Contains(message, "unresolvable CDI") {
			e.find("CDIDeviceUnresolved", object, "the status of container "+s.Name, "%s", message)
		}
	}
	if n := e.nodes[p.Spec.NodeName]; n != nil {
		e.eventsOf("Node", &n.ObjectMeta, func(v *corev1.Event) {
			if v.Reason == "ContainerRuntimeReadsNoCDI" && e.age(v) < nodeWords {
				e.find(v.Reason, "node "+n.Name, "Event "+v.Reason+" of the node", "%s", v.Message)
			}
		})
	}
}

// podClaims looks for the reason why a pod's claims are not prepared.
func (e *examination) podClaims(p *corev1.Pod) {
	for _, r := range p.Spec.ResourceClaims {
		c, _, why := e.claimOf(p, r)
		if why != "" && why != "unread" {
			e.claimMissing(p, r, why, podObject(p))
		}
		if c != nil {
			e.unprepared(c)
		}
	}
}

// unprepared checks an allocated claim: the last message of its driver, and behind that the node and the domain.
func (e *examination) unprepared(c *resourceapi.ResourceClaim) {
	if c.Status.Allocation == nil {
		return
	}
	object := "claim " + c.Namespace + "/" + c.Name
	code := ""
	for _, d := range c.Status.Devices {
		for _, condition := range d.Conditions {
			if condition.Type == "Ready" && condition.Status == metav1.ConditionFalse {
				code = condition.Reason
				e.find(code, object, "the condition Ready of device "+d.Device+" in the claim's status", "%s", condition.Message)
			}
		}
	}
	if code == "" {
		if v := e.lastWords(c); v != nil {
			code = v.Reason
			e.find(code, object, "Event "+v.Reason+" of the claim", "%s", v.Message)
		}
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		pool := e.devices().byDriver[r.Driver][r.Pool]
		if pool == nil || e.nodes[pool.node] == nil {
			continue
		}
		n := e.nodes[pool.node]
		if code != "" {
			e.conditions(n)
			e.component(components()[r.Driver], n)
		}
		if r.Driver == computedomain.Driver && code == "WaitingForIMEXDaemon" {
			e.domainOf(c, n)
		}
		break
	}
}

// lastWords is the newest Event of our roles on a claim.
func (e *examination) lastWords(c *resourceapi.ResourceClaim) *corev1.Event {
	var last *corev1.Event
	e.eventsOf("ResourceClaim", &c.ObjectMeta, func(v *corev1.Event) {
		if f, ok := findings.Find(v.Reason); ok && f.Stage >= findings.Driver {
			if last == nil || e.age(v) <= e.age(last) {
				last = v
			}
		}
		if v.Reason == "Prepared" {
			last = nil
		}
	})
	return last
}

// domainOf checks the domain that a claim waits for: its daemon on this node.
func (e *examination) domainOf(c *resourceapi.ResourceClaim, n *corev1.Node) {
	key := types.NamespacedName{Namespace: c.Annotations[computedomain.AnnotationNamespace], Name: c.Annotations[computedomain.AnnotationName]}
	for i := range e.Domains {
		d := &e.Domains[i]
		if d.Namespace == key.Namespace && d.Name == key.Name {
			for j := range e.Pods {
				if p := &e.Pods[j]; p.Spec.NodeName == n.Name && p.Labels["resource.nvidia.com/computeDomain"] == string(d.UID) && isDaemon(p) &&
					!podReady(p) {
					e.daemon(p, d)
				}
			}
		}
	}
}

// heldTaints checks whether a claim's devices have failed since their allocation.
func (e *examination) heldTaints(c *resourceapi.ResourceClaim) {
	if c.Status.Allocation == nil {
		return
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		pool := e.devices().byDriver[r.Driver][r.Pool]
		if pool == nil {
			continue
		}
		for _, d := range pool.devices {
			for _, t := range d.Taints {
				if d.Name == r.Device {
					e.taint(t, r.Driver, pool.node, d.Name)
				}
			}
		}
	}
}

// claimAndPods checks a claim, and the pods that use it.
func (e *examination) claimAndPods(c *resourceapi.ResourceClaim) {
	if c.Status.Allocation != nil {
		ready := false
		for _, consumer := range c.Status.ReservedFor {
			if p := e.pods[types.NamespacedName{Namespace: c.Namespace, Name: consumer.Name}]; p != nil {
				ready = ready || podReady(p)
			}
		}
		if !ready {
			e.unprepared(c)
		}
		e.heldTaints(c)
		return
	}
	user := e.userOf(c)
	if user != nil {
		e.unscheduled(user)
		return
	}
	for _, w := range wants(&c.Spec, "claim "+c.Namespace+"/"+c.Name, c.Namespace+"/"+c.Name) {
		e.request(w, nil)
	}
}

// userOf is a pod that waits with a claim.
func (e *examination) userOf(c *resourceapi.ResourceClaim) *corev1.Pod {
	for i := range e.Pods {
		p := &e.Pods[i]
		if p.Namespace == c.Namespace && p.Spec.NodeName == "" && slices.ContainsFunc(p.Spec.ResourceClaims,
			func(r corev1.PodResourceClaim) bool {
				used, _, _ := e.claimOf(p, r)
				return used == c
			}) {
			return p
		}
	}
	return nil
}
