package diagnosis

import (
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/plugin"
	rdma "gpufabric.io/drivers/rdma/dra"
)

// components are the node plugins' names, by the driver of the devices that they publish.
func components() map[string]string {
	return map[string]string{devices.Driver: "gpu-plugin", computedomain.Driver: "compute-domain-plugin", rdma.Driver: "rdma-plugin"}
}

// nodeWords is how long an Event on a node counts: the API server keeps Events for an hour.
const nodeWords = time.Hour

// node checks a node, from its kubelet to the devices that it publishes.
func (e *examination) node(n *corev1.Node) {
	e.machine(n)
	e.conditions(n)
	e.plugins(n)
	e.published(n.Name)
	e.nodeEvents(n)
}

// machine checks the node as Kubernetes sees it.
func (e *examination) machine(n *corev1.Node) {
	object := "node " + n.Name
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			e.find("NodeNotReady", object, "the node's condition Ready", "%s: %s", c.Reason, c.Message)
		}
	}
	if n.Spec.Unschedulable && e.publishes(n.Name) {
		e.find("NodeCordoned", object, "the node's spec.unschedulable", "node %s takes no new pods", n.Name)
	}
	if tooOld(n.Status.NodeInfo.KubeletVersion) {
		e.find("KubeletTooOld", object, "the node's status.nodeInfo", "the kubelet is %s, and gpufabric needs %s",
			n.Status.NodeInfo.KubeletVersion, needed)
	}
	if l := e.lease[n.Name]; l != nil && l.Spec.RenewTime != nil {
		// The kubelet uses the node's clock for this time.
		ahead := l.Spec.RenewTime.Sub(e.Server.Taken)
		switch {
		case ahead > maxSkew:
			e.find("ClockSkew", object, "the node's Lease in kube-node-lease", "the node's clock is %v ahead of the API server's",
				ahead.Round(time.Second))
		case -ahead > maxSilence+maxSkew && isReady(n):
			e.find("ClockSkew", object, "the node's Lease in kube-node-lease", "the node is Ready, and its clock is %v behind the API server's",
				-ahead.Round(time.Second))
		}
	}
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// conditions reads gpu-plugin's conditions of the node.
func (e *examination) conditions(n *corev1.Node) {
	for _, c := range n.Status.Conditions {
		if (c.Type == plugin.DriverCondition || c.Type == plugin.FormsCondition) && c.Status == corev1.ConditionFalse && c.Reason != "FormsHeld" {
			e.find(c.Reason, "node "+n.Name, "the node's condition "+string(c.Type), "%s", c.Message)
		}
	}
}

// plugins looks for the node's pods of each node plugin.
func (e *examination) plugins(n *corev1.Node) {
	index(e.DaemonSets, func(d *appsv1.DaemonSet) {
		component := d.Labels[labelComponent]
		if d.Labels[labelPartOf] != ownName || !slices.Contains(slices.Collect(maps.Values(components())), component) || !e.Reads("pods") {
			return
		}
		p := e.pluginPod(component, n.Name)
		switch {
		case p == nil:
			if e.shouldRun(d, n) {
				e.find("PluginNotRunning", "node "+n.Name, "the pods of daemonset "+d.Namespace+"/"+d.Name, "node %s has no pod of %s", n.Name, d.Name)
			}
		case !podReady(p):
			before := len(e.found)
			e.ownPod(p)
			if len(e.found) == before {
				e.find("PluginNotReady", "pod "+p.Namespace+"/"+p.Name, "the pod's condition Ready", "%s on node %s is not ready (%s)", component,
					n.Name,
					p.Status.Phase)
			}
		}
	})
}

// shouldRun reports whether a DaemonSet's pods belong on a node. A node that is not ready is itself the finding.
func (e *examination) shouldRun(d *appsv1.DaemonSet, n *corev1.Node) bool {
	for key, value := range d.Spec.Template.Spec.NodeSelector {
		if n.Labels[key] != value {
			return false
		}
	}
	_, kept := untolerated(n.Spec.Taints, d.Spec.Template.Spec.Tolerations, true)
	return !kept && isReady(n) && d.Status.ObservedGeneration > 0
}

func (e *examination) pluginPod(component, node string) *corev1.Pod {
	if e.plugin == nil {
		e.plugin = map[[2]string]*corev1.Pod{}
		index(e.Pods, func(p *corev1.Pod) {
			if p.Labels[labelName] == ownName && p.DeletionTimestamp == nil {
				e.plugin[[2]string{p.Labels[labelComponent], p.Spec.NodeName}] = p
			}
		})
	}
	return e.plugin[[2]string{component, node}]
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// publishes reports whether a node publishes our devices.
func (e *examination) publishes(node string) bool {
	for driver := range components() {
		if len(e.devices().pools(driver, node)) > 0 {
			return true
		}
	}
	return false
}

// published checks a node's ResourceSlices: whether they exist and are complete, and the taints of their devices.
func (e *examination) published(node string) {
	if !e.Reads("resourceslices.resource.k8s.io") {
		return
	}
	stock := e.devices()
	for _, driver := range slices.Sorted(maps.Keys(components())) {
		component := components()[driver]
		pools := stock.pools(driver, node)
		if p := e.pluginPod(component, node); len(pools) == 0 && p != nil && podReady(p) && e.shouldPublish(driver, node) {
			e.find("SlicesMissing", "node "+node, "the ResourceSlices of driver "+driver, "%s runs on node %s and has published nothing",
				component, node)
		}
		for _, pool := range pools {
			if pool.slices < pool.expected {
				e.find("SlicesIncomplete", "node "+node, "the ResourceSlices of pool "+pool.name, "%d of %d ResourceSlices of generation %d are there",
					pool.slices, pool.expected, pool.generation)
			}
			for _, d := range pool.devices {
				for _, t := range d.Taints {
					e.taint(t, driver, node, d.Name)
				}
			}
		}
	}
}

// shouldPublish reports whether a running plugin publishes anything on a node: without hardware it does not publish GPUs.
func (e *examination) shouldPublish(driver, node string) bool {
	if driver == rdma.Driver {
		return !e.hasArgument("rdma-plugin", "--dra=false")
	}
	n := e.nodes[node]
	if driver == computedomain.Driver && e.hasArgument("compute-domain-plugin", "--fabric-only") && e.clique(node) == "" {
		return false
	}
	return n != nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == plugin.DriverCondition && c.Status == corev1.ConditionTrue
	})
}

// hasArgument reports whether a container of a component's DaemonSet has an argument.
func (e *examination) hasArgument(component, argument string) bool {
	return slices.ContainsFunc(e.DaemonSets, func(d appsv1.DaemonSet) bool {
		return d.Labels[labelComponent] == component && slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
			return slices.Contains(c.Args, argument)
		})
	})
}

// taint records a taint that keeps claims away. A device that is offered in another way is no fault.
func (e *examination) taint(t resourceapi.DeviceTaint, driver, node, device string) {
	if t.Effect == resourceapi.DeviceTaintEffectNone || strings.HasSuffix(t.Key, "/device-plugin") {
		return
	}
	code, says, behind := t.Key, "", 0.0
	if _, ok := findings.Find(code); !ok {
		return
	}
	if t.Key == computedomain.TaintFabric {
		behind = 0.5 // a GPU that is lost leaves the node without a fabric that can be read
		if f, ok := findings.Find(t.Value); ok && f.Stage != findings.Healthy {
			code = t.Value
		}
	}
	if t.Value != "" {
		says = "=" + t.Value
	}
	e.note(code, behind, "node "+node, "the taint of device "+device+" in a ResourceSlice of "+driver,
		"device %s of node %s has the taint %s%s:%s", device, node, t.Key, says, t.Effect)
}

// nodeEvents reads our roles' Events on the node as a whole. It skips Events that repeat a condition or a taint, since Events stay when the
// problem is gone.
func (e *examination) nodeEvents(n *corev1.Node) {
	e.eventsOf("Node", &n.ObjectMeta, func(v *corev1.Event) {
		if v.Type != corev1.EventTypeWarning || e.age(v) > nodeWords {
			return
		}
		switch v.Reason {
		case "ContainerRuntimeReadsNoCDI", "GPUHealthNotFollowed", "GPUFaultsUnreadable", "ClaimStateUnreadable", "ClaimDataUnreadable",
			"StateNotKept", "DrainNotServed", "MIGUnreadable", "HandoverUnreadable", "HandoverUnknownGPU",
			"HandoverStillInUse", "MPSNotEnded", "GPUNotReadWhole", "ShareNotCounted":
			e.find(v.Reason, "node "+n.Name, "Event "+v.Reason+" of the node", "%s", v.Message)
		}
	})
}

// eventsOf calls each with the Events on an object. The namespace is compared too: a tenant may write an Event on any object's name and
// UID in its own namespace, and Kubernetes only checks that the Event names that namespace as the object's. For an object without a
// namespace the Event is in "default".
func (e *examination) eventsOf(kind string, object *metav1.ObjectMeta, each func(*corev1.Event)) {
	if e.events == nil {
		e.events = map[about][]*corev1.Event{}
		index(e.Events, func(v *corev1.Event) {
			key := about{v.InvolvedObject.Kind, v.InvolvedObject.Namespace, v.InvolvedObject.Name}
			e.events[key] = append(e.events[key], v)
		})
	}
	for _, v := range e.events[about{kind, object.Namespace, object.Name}] {
		// The kubelet writes the node's name instead of the node's UID.
		if kind == "Node" || object.UID != "" && v.InvolvedObject.UID == object.UID {
			each(v)
		}
	}
}

// about is the object of an Event.
type about struct{ kind, namespace, name string }

// age is how long ago an Event was last repeated.
func (e *examination) age(v *corev1.Event) time.Duration {
	last := v.LastTimestamp.Time
	if v.Series != nil {
		last = v.Series.LastObservedTime.Time
	}
	if last.IsZero() {
		last = v.EventTime.Time
	}
	if last.IsZero() {
		last = v.CreationTimestamp.Time
	}
	return e.Server.Taken.Sub(last)
}

// acrossNodes looks for differences between nodes that should be the same.
func (e *examination) acrossNodes() {
	nodesOf := map[string][]string{}
	for _, pool := range e.devices().all(devices.Driver) {
		if version := attribute(pool.devices, devices.AttrDriverVersion); version != "" {
			nodesOf[version] = append(nodesOf[version], pool.node)
		}
	}
	if len(nodesOf) < 2 {
		return
	}
	usual := usualOf(nodesOf)
	for _, version := range slices.Sorted(maps.Keys(nodesOf)) {
		if version == usual {
			continue
		}
		for _, node := range nodesOf[version] {
			// Peers of one clique with two drivers fail. Two kinds of nodes may differ: that alone is no cause.
			if e.sharesClique(node, nodesOf[usual]) {
				e.find("DriverVersionsAcrossNodes", "node "+node, "attribute driverVersion of ResourceSlices",
					"node %s has driver %s, and %d nodes, some of them of its NVLink clique, have %s", node, version, len(nodesOf[usual]), usual)
			}
		}
	}
}

// usualOf is the most frequent key; of two, the greater.
func usualOf(groups map[string][]string) string {
	best := ""
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		if len(groups[key]) >= len(groups[best]) {
			best = key
		}
	}
	return best
}
