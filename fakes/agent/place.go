package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"gpufabric.io/fakes/tree"
)

// controlPlane is the taint of control plane nodes that take no pods of users. kind and kubeadm remove it where there is no other node.
const controlPlane = "node-role.kubernetes.io/control-plane"

// described completes the node's labels by Options.Profile: a node without the profile's label has that profile, unless it takes no pods of
// users. A label without a value stays: that node has no hardware.
func (a *agent) described(ctx context.Context, labels map[string]string) (map[string]string, error) {
	if _, labelled := labels[LabelProfile]; labelled || a.Profile == "" {
		return labels, nil
	}
	complete := maps.Clone(labels)
	if complete == nil {
		complete = map[string]string{}
	}
	complete[LabelProfile] = a.Profile
	// A node stays the machine that it is, whichever nodes come and go.
	if r, err := tree.ReadRendered(a.Root); err == nil && r.Profile == a.Profile && complete[LabelIndex] == "" {
		complete[LabelIndex] = strconv.Itoa(r.Node)
		return complete, nil
	}
	nodes, err := a.API.nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("count the nodes without the label %s: %w", LabelProfile, err)
	}
	index, ok := place(nodes, a.NodeName, a.Profile)
	if !ok {
		return labels, nil
	}
	if complete[LabelIndex] == "" {
		complete[LabelIndex] = strconv.Itoa(index)
	}
	return complete, nil
}

// place is the index of the named node among those that have the profile without a label, by age and then by name. Indexes of labels are
// not given twice. ok is false for a node that takes no pods of users.
func place(nodes []node, name, profile string) (index int, ok bool) {
	taken := map[string]bool{}
	var unnumbered []node
	for _, n := range nodes {
		own, labelled := n.Metadata.Labels[LabelProfile]
		if labelled && own != profile || !labelled && n.reserved() {
			continue
		}
		if number := n.Metadata.Labels[LabelIndex]; labelled || number != "" {
			taken[cmp.Or(number, "0")] = true
			ok = ok || n.Metadata.Name == name
			continue
		}
		unnumbered = append(unnumbered, n)
	}
	slices.SortFunc(unnumbered, func(a, b node) int {
		return cmp.Or(cmp.Compare(a.Metadata.Created, b.Metadata.Created), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, n := range unnumbered {
		for taken[strconv.Itoa(index)] {
			index++
		}
		if n.Metadata.Name == name {
			return index, true
		}
		index++
	}
	return 0, ok
}

func (n node) reserved() bool {
	for _, taint := range n.Spec.Taints {
		if taint.Key == controlPlane {
			return true
		}
	}
	return false
}
