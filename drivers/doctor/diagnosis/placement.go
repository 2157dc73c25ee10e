package diagnosis

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// keeps reports why a pod cannot go to a node: the code of the finding and a message. With an empty code the pod may go there. It
// checks the conditions that the scheduler checks before devices: the node's state, its taints, the pod's selector and required
// affinity. A nil pod means a claim without a pod, which may be allocated on any node.
func keeps(p *corev1.Pod, n *corev1.Node) (code, says string) {
	if p == nil {
		return "", ""
	}
	if why := excludes(p, n); why != "" {
		return "NodesExcluded", why
	}
	if !isReady(n) {
		return "NodeNotReady", "the node is not Ready"
	}
	if n.Spec.Unschedulable {
		return "NodeCordoned", "the node is cordoned"
	}
	if t, kept := untolerated(n.Spec.Taints, p.Spec.Tolerations, false); kept {
		return "NodeTaintNotTolerated", "the node has the taint " + t.ToString()
	}
	return "", ""
}

// excludes returns the part of a pod's own spec that excludes a node; empty: none.
func excludes(p *corev1.Pod, n *corev1.Node) string {
	if p == nil {
		return ""
	}
	for key, value := range p.Spec.NodeSelector {
		if n.Labels[key] != value {
			return "nodeSelector " + key + "=" + value
		}
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return selects(t, n) }) {
			return "required node affinity"
		}
	}
	return ""
}

// untolerated is the first taint that keeps a pod away. A DaemonSet's pods tolerate the node controller's taints.
func untolerated(taints []corev1.Taint, tolerations []corev1.Toleration, daemon bool) (corev1.Taint, bool) {
	for _, t := range taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule || daemon && len(t.Key) > 19 && t.Key[:19] == "node.kubernetes.io/" {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(o corev1.Toleration) bool { return tolerates(o, t) }) {
			return t, true
		}
	}
	return corev1.Taint{}, false
}

func tolerates(o corev1.Toleration, t corev1.Taint) bool {
	if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
		return false
	}
	return o.Operator == corev1.TolerationOpExists || o.Key != "" && o.Value == t.Value
}

// selects reports whether a term selects a node. An empty term selects none.
func selects(term corev1.NodeSelectorTerm, n *corev1.Node) bool {
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		return false
	}
	for _, r := range term.MatchExpressions {
		value, has := n.Labels[r.Key]
		if !meets(r, value, has) {
			return false
		}
	}
	for _, r := range term.MatchFields {
		if !meets(r, n.Name, true) {
			return false
		}
	}
	return true
}

func meets(r corev1.NodeSelectorRequirement, value string, has bool) bool {
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return has && slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !has || !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpExists:
		return has
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			return false
		}
		got, err := strconv.ParseInt(value, 10, 64)
		want, wrong := strconv.ParseInt(r.Values[0], 10, 64)
		return has && err == nil && wrong == nil && (r.Operator == corev1.NodeSelectorOpGt && got > want ||
			r.Operator == corev1.NodeSelectorOpLt && got < want)
	}
	return false
}
