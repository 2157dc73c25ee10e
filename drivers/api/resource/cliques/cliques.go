// Package cliques counts the nodes of each NVLink clique that can take part in a compute domain now, and reports whether a domain of a
// given size fits a clique. The webhook warns by it when a ComputeDomain is written, the Terraform provider when one is planned.
//
// It reads only what is published already: the clique's label, a node's own conditions, and the taints of its devices. Nodes that other
// domains hold count as healthy: they are released again.
package cliques

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/api/resource/validation"
)

// RackLabels are the node labels that name a rack; the first one that a node has counts. topology.kubernetes.io has no label for racks; the
// others are those that Topograph writes, before 1.0 and since.
func RackLabels() []string {
	return []string{"topology.kubernetes.io/rack", "network.topology.nvidia.com/accelerator", "network.topology.nvidia.com/leaf",
		"accelerator.topograph.run/domain", "fabric.topograph.run/tier-0"}
}

// RackOf is the rack in a node's labels, or empty.
func RackOf(labels map[string]string) string {
	for _, label := range RackLabels() {
		if value := labels[label]; value != "" {
			return value
		}
	}
	return ""
}

// Node is a node of a clique.
type Node struct {
	Name, Clique, Rack string
	// Why is what keeps new compute domains away; empty for a healthy node.
	Why string
}

// Survey is the state of the nodes of cliques. Its zero value has none.
type Survey struct {
	nodes map[string]*Node
	// channels are the nodes that publish an IMEX channel.
	channels map[string]bool
}

// AddNode adds a node; it ignores one without the clique's label.
func (s *Survey) AddNode(n *corev1.Node) {
	clique := n.Labels[v1beta1.LabelClique]
	if clique == "" {
		return
	}
	if s.nodes == nil {
		s.nodes = map[string]*Node{}
	}
	s.nodes[n.Name] = &Node{Name: n.Name, Clique: clique, Rack: RackOf(n.Labels), Why: trouble(n)}
}

// trouble is what keeps pods off a whole node. It ignores taints that administrators set: pods of GPU nodes tolerate them.
func trouble(n *corev1.Node) string {
	if n.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case !ready:
		return "not Ready"
	case n.Spec.Unschedulable:
		return "cordoned"
	default:
		return ""
	}
}

// AddDevice adds a device that a node publishes, of the newest generation of its pool: an IMEX channel, or a GPU. It ignores other
// devices, and those of nodes that were not added.
func (s *Survey) AddDevice(node, driver string, d *resourceapi.Device) {
	known := s.nodes[node]
	if known == nil {
		return
	}
	switch driver {
	case validation.ComputeDomainDriver:
		if kind := d.Attributes["type"].StringValue; kind == nil || *kind != "channel" {
			return
		}
		if s.channels == nil {
			s.channels = map[string]bool{}
		}
		s.channels[node] = true
	case validation.GPUDriver:
	default:
		return
	}
	for _, t := range d.Taints {
		if why := refusal(driver, d.Name, t); why != "" {
			known.Why = cmp.Or(known.Why, why)
		}
	}
}

// refusal is the reason why a taint keeps new domains off a node; empty where it does not. A drained GPU is no fault, nor is one
// that a device plugin has: those have taints of other names.
func refusal(driver, device string, t resourceapi.DeviceTaint) string {
	if t.Effect != resourceapi.DeviceTaintEffectNoSchedule && t.Effect != resourceapi.DeviceTaintEffectNoExecute {
		return ""
	}
	if driver == validation.ComputeDomainDriver {
		return cmp.Or(t.Value, t.Key)
	}
	fault, found := strings.CutPrefix(t.Key, validation.GPUDriver+"/")
	if !found {
		return ""
	}
	if t.Value != "" {
		fault += " " + t.Value
	}
	return device + ": " + fault
}

// Nodes are the nodes of cliques, by name. Where any node publishes an IMEX channel, one that does not is not healthy.
func (s *Survey) Nodes() []Node {
	nodes := make([]Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		node := *n
		if node.Why == "" && len(s.channels) > 0 && !s.channels[node.Name] {
			node.Why = "publishes no IMEX channel"
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}
