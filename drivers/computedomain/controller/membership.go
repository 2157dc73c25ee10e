package controller

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/imexd"
)

// member is a node of a domain, in the present state of the cluster.
type member struct {
	name string
	// clique is the node's label; it is unknown for a node that has left while its daemon still ends.
	clique      string
	cliqueKnown bool
	// address is empty until the node's daemon has one.
	address string
	ready   bool
	// why returns the reason for which a member is not ready.
	why string
}

// membersOf joins the nodes that carry the domain's label with the domain's daemon pods, sorted by name.
func membersOf(nodes []metav1.PartialObjectMetadata, pods []corev1.Pod) []member {
	members := map[string]*member{}
	for _, node := range nodes {
		members[node.Name] = &member{
			name: node.Name, clique: node.Labels[v1beta1.LabelClique], cliqueKnown: true, why: "its IMEX daemon's pod does not exist yet",
		}
	}
	for i := range pods {
		pod := &pods[i]
		name := pod.Spec.NodeName
		if name == "" {
			continue
		}
		m := members[name]
		if m == nil {
			if over(pod) {
				continue // the node has left, and its daemon will end soon
			}
			m = &member{name: name}
			members[name] = m
		}
		// Of an old and a new pod of one node, the living one counts, and of two that are not being deleted one that has not ended:
		// one that failed, as by an eviction, stays beside its successor for a while.
		if over(pod) && m.address != "" {
			continue
		}
		m.address, m.ready, m.why = pod.Status.PodIP, computedomain.PodReady(pod), ""
		if !m.ready {
			m.why = computedomain.WhyNotReady(pod)
		}
		if over(pod) {
			m.address = ""
		}
	}
	result := make([]member, 0, len(members))
	for _, m := range members {
		result = append(result, *m)
	}
	slices.SortFunc(result, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	return result
}

// over reports whether a daemon's pod is ending, or has ended.
func over(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// nodesOf carries the status's nodes over to the present members. A node enters once its daemon has an address, and leaves when it
// is no longer a member. In between it keeps its index, whatever happens to its daemon. A new node gets the lowest free index in
// its clique, new nodes by name: the same members in the same state always get the same indices.
func nodesOf(previous []v1beta1.ComputeDomainNode, members []member) []v1beta1.ComputeDomainNode {
	before := make(map[string]v1beta1.ComputeDomainNode, len(previous))
	for _, node := range previous {
		before[node.Name] = node
	}
	taken := map[string]map[int]bool{}
	take := func(clique string, index int) bool {
		if taken[clique] == nil {
			taken[clique] = map[int]bool{}
		}
		free := !taken[clique][index]
		taken[clique][index] = true
		return free
	}
	nodes := make([]v1beta1.ComputeDomainNode, 0, len(members))
	var unnumbered []v1beta1.ComputeDomainNode
	for _, m := range members {
		old, was := before[m.name]
		if !was && m.address == "" && !m.ready {
			continue
		}
		node := v1beta1.ComputeDomainNode{Name: m.name, IPAddress: m.address, CliqueID: m.clique, Status: v1beta1.NotReady}
		if m.address == "" {
			node.IPAddress = old.IPAddress
		}
		if !m.cliqueKnown {
			node.CliqueID = old.CliqueID
		}
		if m.ready {
			node.Status = v1beta1.Ready
		}
		if was && old.CliqueID == node.CliqueID && take(node.CliqueID, old.Index) {
			node.Index = old.Index
			nodes = append(nodes, node)
			continue
		}
		unnumbered = append(unnumbered, node)
	}
	for _, node := range unnumbered {
		for node.Index = 0; !take(node.CliqueID, node.Index); node.Index++ {
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b v1beta1.ComputeDomainNode) int {
		return cmp.Or(cmp.Compare(a.CliqueID, b.CliqueID), cmp.Compare(a.Index, b.Index))
	})
	return nodes
}

// cliquesOf carries the status's cliques over to the present nodes. Slots never shrink while the domain lives: a daemon that starts
// after the node with the highest index has left must list the same peers as the running daemons.
func cliquesOf(previous []v1beta1.ComputeDomainClique, nodes []v1beta1.ComputeDomainNode) []v1beta1.ComputeDomainClique {
	byID := map[string]v1beta1.ComputeDomainClique{}
	for _, clique := range previous {
		byID[clique.ID] = clique
	}
	for _, node := range nodes {
		if node.CliqueID == "" {
			continue
		}
		clique := byID[node.CliqueID]
		clique.ID = node.CliqueID
		clique.Slots = max(clique.Slots, imexd.SlotsFor(node.Index))
		byID[node.CliqueID] = clique
	}
	var cliques []v1beta1.ComputeDomainClique
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		cliques = append(cliques, byID[id])
	}
	return cliques
}

// behind are the nodes whose daemon's pod was made from another template than this, sorted.
func behind(pods []corev1.Pod, template string) []string {
	var nodes []string
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" && pod.Labels[labelTemplate] != template {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return nodes
}
