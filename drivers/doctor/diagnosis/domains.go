package diagnosis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// domain checks a ComputeDomain: its condition, then its daemons and nodes.
func (e *examination) domain(d *v1beta1.ComputeDomain) {
	object := "computedomain " + d.Namespace + "/" + d.Name
	if len(d.Status.Conditions) == 0 {
		e.find("ControllerNotReady", object, "the domain's status", "the controller has not looked at ComputeDomain %s/%s yet", d.Namespace,
			d.Name)
		return
	}
	waits := false
	for _, c := range d.Status.Conditions {
		if c.Type == v1beta1.ConditionReady && c.Status == metav1.ConditionFalse {
			e.find(c.Reason, object, "the domain's condition Ready", "%s", c.Message)
			waits = true
		}
		if c.Type == v1beta1.ConditionDegraded && c.Status == metav1.ConditionTrue &&
			!meta.IsStatusConditionPresentAndEqual(d.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionFalse) {
			e.find(c.Reason, object, "the domain's condition Degraded", "%s", c.Message) // one that is not Ready reports why itself
			waits = true
		}
	}
	e.eventsOf("ComputeDomain", &d.ObjectMeta, func(v *corev1.Event) {
		if v.Reason == "IMEXSessionEnded" {
			e.find(v.Reason, object, "Event "+v.Reason+" of the domain", "%s", v.Message)
		}
	})
	on := map[string]bool{}
	for i := range e.Pods {
		p := &e.Pods[i]
		if p.Labels[v1beta1.LabelComputeDomain] != string(d.UID) || !isDaemon(p) {
			continue
		}
		if p.Spec.NodeName != "" {
			on[p.Spec.NodeName] = true
		}
		if !podReady(p) && p.DeletionTimestamp == nil {
			e.daemon(p, d)
		}
	}
	if !waits {
		return
	}
	for name, n := range e.nodes {
		if n.Labels[v1beta1.LabelComputeDomain] == string(d.UID) {
			on[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if n := e.nodes[name]; n != nil {
			e.machine(n)
			e.published(name)
			e.component("compute-domain-plugin", n)
		}
	}
	e.members(d, object)
}

func isDaemon(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == computedomain.DaemonContainer })
}

// component checks one plugin of a node.
func (e *examination) component(component string, n *corev1.Node) {
	if p := e.pluginPod(component, n.Name); p != nil && !podReady(p) {
		before := len(e.found)
		e.ownPod(p)
		if len(e.found) == before {
			e.find("PluginNotReady", "pod "+p.Namespace+"/"+p.Name, "the pod's condition Ready", "%s on node %s is not ready", component, n.Name)
		}
	}
}

// daemon looks for the reason why an IMEX daemon's pod is not ready.
func (e *examination) daemon(p *corev1.Pod, d *v1beta1.ComputeDomain) {
	object := "pod " + p.Namespace + "/" + p.Name
	before := len(e.found)
	e.eventsOf("Pod", &p.ObjectMeta, func(v *corev1.Event) {
		if slices.Contains([]string{"IMEXDaemonFailed", "IMEXDaemonStarved", "IMEXPeersNotUpdated"}, v.Reason) {
			e.find(v.Reason, object, "Event "+v.Reason+" of the pod", "%s", v.Message)
		}
	})
	e.ownPod(p)
	e.podClaims(p)
	if len(e.found) > before {
		return
	}
	running := slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	switch {
	case p.Spec.NodeName == "":
		e.find("DaemonNotRunning", object, "the pod's spec.nodeName", "the IMEX daemon of domain %s/%s is not scheduled", d.Namespace, d.Name)
	case !running:
		e.find("DaemonNotRunning", object, "the pod's status", "%s", computedomain.WhyNotReady(p))
	case len(d.Status.Nodes) > 1:
		e.find("DaemonNotReady", object, "the pod's condition Ready",
			"nvidia-imex runs on node %s and is not READY: it has %d peers in this domain, "+
				"and reaches them on TCP port %d", p.Spec.NodeName, len(d.Status.Nodes)-1, computedomain.ServerPort)
	default:
		e.find("DaemonNotReady", object, "the pod's condition Ready", "nvidia-imex runs on node %s and is not READY", p.Spec.NodeName)
	}
}

// members looks for the pods that should bring the nodes that a domain waits for.
func (e *examination) members(d *v1beta1.ComputeDomain, object string) {
	if len(d.Status.Nodes) >= d.Spec.NumNodes {
		return
	}
	waiting := 0
	for i := range e.Pods {
		p := &e.Pods[i]
		if p.Namespace != d.Namespace || p.Status.Phase != corev1.PodPending || !e.claims(p, d) {
			continue
		}
		waiting++
		e.waiting(p)
	}
	cliques := map[string]int{}
	for name := range e.nodes {
		if c := e.clique(name); c != "" {
			cliques[c]++
		}
	}
	if most := largest(cliques); waiting == 0 && most > 0 && d.Spec.NumNodes > most && len(d.Status.Nodes) < d.Spec.NumNodes {
		// Before WaitingForNodes: no pod that comes will help.
		e.note("FewerNodesInClique", -0.5, object, "the nodes' NVLink cliques",
			"the domain asks for %d nodes, and the largest NVLink clique has %d%s", d.Spec.NumNodes, most, several(cliques))
	}
}

func largest(counts map[string]int) int {
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	return most
}

func several(cliques map[string]int) string {
	if len(cliques) < 2 {
		return ""
	}
	return fmt.Sprintf(" (of %d cliques: %s)", len(cliques), strings.Join(slices.Sorted(maps.Keys(cliques))[:min(3, len(cliques))], ", "))
}

// claims reports whether a pod claims a channel of a domain.
func (e *examination) claims(p *corev1.Pod, d *v1beta1.ComputeDomain) bool {
	return slices.ContainsFunc(p.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
		return r.ResourceClaimTemplateName != nil && *r.ResourceClaimTemplateName == d.Spec.Channel.ResourceClaimTemplate.Name
	})
}
