package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// Reasons of the condition Degraded. A problem of the whole domain (a template name that is taken, a pass that failed) keeps its own.
const (
	reasonInterrupted  = "NodesInterrupted"
	reasonDisconnected = "DaemonsDisconnected"
	reasonGone         = "NodesGone"
	reasonSound        = "NothingDegraded"
)

// health is the state of a domain's nodes as one pass found it.
type health struct {
	// needs is how many nodes must be ready.
	needs   int
	members []member
	// gone are nodes of the domain whose Node objects no longer exist.
	gone []string
	// problem keeps the domain from being Ready whatever its nodes report.
	problem *metav1.Condition
	// cuts are the connections between IMEX daemons that are missing.
	cuts cuts
	now  time.Time
}

// setStates writes to each node's entry its state, since when and why. before are the entries of the previous status.
func (h *health) setStates(before, nodes []v1beta1.ComputeDomainNode) {
	earlier := make(map[string]*v1beta1.ComputeDomainNode, len(before))
	for i := range before {
		earlier[before[i].Name] = &before[i]
	}
	why := make(map[string]string, len(h.members))
	for _, m := range h.members {
		why[m.name] = m.why
	}
	// The API keeps times in whole seconds.
	now := metav1.NewTime(h.now).Rfc3339Copy()
	for i := range nodes {
		node := &nodes[i]
		was := earlier[node.Name]
		node.Disconnected = h.disconnected(was, node)
		if node.State, node.Why = stateOf(was, node.Status), why[node.Name]; node.State == v1beta1.NodeReady {
			node.Why = ""
		}
		if was != nil && was.State == node.State && was.Since != nil {
			node.Since = was.Since
			continue
		}
		node.Since = &now
	}
}

// disconnected are the nodes that a node's IMEX daemon is not connected with. As long as no daemon has answered, as after a start of the
// controller, it returns those of the previous status.
func (h *health) disconnected(was, node *v1beta1.ComputeDomainNode) []v1beta1.ComputeDomainPeer {
	if node.Status != v1beta1.Ready || node.CliqueID == "" {
		return nil // a node that is not READY is reported as such
	}
	ready := map[string]bool{}
	for _, m := range h.members {
		ready[m.name] = m.ready
	}
	var peers []v1beta1.ComputeDomainPeer
	add := func(peer v1beta1.ComputeDomainPeer) {
		if ready[peer.Name] && len(peers) < v1beta1.MaxDisconnected {
			peers = append(peers, peer)
		}
	}
	missing, known := h.cuts[node.CliqueID]
	if !known && was != nil {
		for _, peer := range was.Disconnected {
			add(peer)
		}
		return peers
	}
	since := map[string]metav1.Time{}
	if was != nil {
		for _, peer := range was.Disconnected {
			since[peer.Name] = peer.Since
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing[node.Name])) {
		cut := missing[node.Name][name]
		peer := v1beta1.ComputeDomainPeer{Name: name, State: string(cut.state), Since: metav1.NewTime(cut.since).Rfc3339Copy()}
		if first, had := since[name]; had {
			peer.Since = first
		}
		add(peer)
	}
	return peers
}

// stateOf is the state of a node, given its state in the previous status; nil: none.
func stateOf(was *v1beta1.ComputeDomainNode, status v1beta1.Readiness) v1beta1.NodeState {
	switch {
	case status == v1beta1.Ready:
		return v1beta1.NodeReady
	case was != nil && (was.Status == v1beta1.Ready || was.State == v1beta1.NodeInterrupted):
		return v1beta1.NodeInterrupted
	default:
		return v1beta1.NodeStarting
	}
}

// setConditions sets Progressing and Degraded. The condition Ready and the nodes' states are already those of this pass.
func (h *health) setConditions(domain *v1beta1.ComputeDomain) {
	conditions := &domain.Status.Conditions
	for _, condition := range []metav1.Condition{h.progressing(domain), h.degraded(domain)} {
		condition.ObservedGeneration = domain.Generation
		meta.SetStatusCondition(conditions, condition)
	}
}

// progressing is the condition Progressing: whether the domain will change by itself, and the cause of its wait.
func (h *health) progressing(domain *v1beta1.ComputeDomain) metav1.Condition {
	counts := countStates(domain.Status.Nodes)
	condition := metav1.Condition{Type: v1beta1.ConditionProgressing, Status: metav1.ConditionFalse}
	switch {
	case h.problem != nil:
		condition.Reason, condition.Message = h.problem.Reason, h.problem.Message
		if h.problem.Reason == reasonDeleting {
			condition.Status = metav1.ConditionTrue
		}
		return condition
	case len(h.members) < h.needs:
		condition.Status, condition.Reason = metav1.ConditionTrue, reasonJoining
	case counts.ready < len(h.members):
		condition.Status, condition.Reason = metav1.ConditionTrue, reasonStarting
	case h.needs == 0:
		condition.Reason = reasonNoNodesRequired
	default:
		condition.Reason = reasonAllReady
	}
	total := max(h.needs, len(h.members))
	condition.Message = fmt.Sprintf("of %d %s %d ready, %d starting, %d interrupted, %d yet to join", total, plural(total, "node", "nodes"),
		counts.ready, len(h.members)-counts.ready-counts.interrupted, counts.interrupted, total-len(h.members))
	return condition
}

// degraded is the condition Degraded: a part fails that worked before, or should work.
func (h *health) degraded(domain *v1beta1.ComputeDomain) metav1.Condition {
	condition := metav1.Condition{Type: v1beta1.ConditionDegraded, Status: metav1.ConditionTrue}
	total := max(h.needs, len(h.members))
	var affected []string
	var apart []*v1beta1.ComputeDomainNode
	for i := range domain.Status.Nodes {
		node := &domain.Status.Nodes[i]
		if node.State == v1beta1.NodeInterrupted {
			affected = append(affected, interrupted(node))
		}
		if len(node.Disconnected) > 0 {
			apart = append(apart, node)
		}
	}
	before := meta.FindStatusCondition(domain.Status.Conditions, v1beta1.ConditionDegraded)
	short := len(h.members) > 0 && len(h.members) < h.needs
	switch {
	case h.problem != nil && h.problem.Reason != reasonDeleting:
		condition.Reason, condition.Message = h.problem.Reason, h.problem.Message
	case len(affected) > 0:
		condition.Reason = reasonInterrupted
		condition.Message = fmt.Sprintf("%d of %d nodes %s ready and %s not: %s", len(affected), total, plural(len(affected), "was", "were"),
			plural(len(affected), "is", "are"), listed(affected))
	case len(apart) > 0:
		condition.Reason, condition.Message = reasonDisconnected, disconnectedWords(apart)
	case short && len(h.gone) > 0:
		condition.Reason = reasonGone
		condition.Message = fmt.Sprintf("%s %s no Node object any more; %d of %d nodes are left: the domain is whole once pods that use it run "+
			"on other nodes", listed(h.gone), plural(len(h.gone), "has", "have"), len(h.members), total)
	case short && before != nil && before.Status == metav1.ConditionTrue && before.Reason == reasonGone:
		return *before // until another node has joined, or no pod uses the domain
	default:
		condition.Status, condition.Reason = metav1.ConditionFalse, reasonSound
		condition.Message = "no node that was ready has been lost"
	}
	return condition
}

// interrupted describes a node that was ready.
func interrupted(node *v1beta1.ComputeDomainNode) string {
	return fmt.Sprintf("%s (since %s: %s)", node.Name, node.Since.UTC().Format(time.RFC3339), node.Why)
}

// firstCause is the first problem to solve; empty where there is none.
func (h *health) firstCause(domain *v1beta1.ComputeDomain) string {
	if h.problem != nil {
		return h.problem.Message
	}
	for i := range domain.Status.Nodes {
		if node := &domain.Status.Nodes[i]; node.State == v1beta1.NodeInterrupted {
			return "interrupted: " + interrupted(node)
		}
	}
	if degraded := meta.FindStatusCondition(domain.Status.Conditions, v1beta1.ConditionDegraded); degraded != nil &&
		degraded.Status == metav1.ConditionTrue {
		return degraded.Message
	}
	for _, m := range h.members {
		if !m.ready {
			return fmt.Sprintf("%s: %s", m.name, m.why)
		}
	}
	if missing := h.needs - len(h.members); missing > 0 {
		return fmt.Sprintf("%d %s to join", missing, plural(missing, "node has", "nodes have"))
	}
	return ""
}

// stateCounts are the numbers of a domain's nodes by state.
type stateCounts struct{ starting, ready, interrupted int }

func countStates(nodes []v1beta1.ComputeDomainNode) stateCounts {
	var counts stateCounts
	for i := range nodes {
		switch stateOf(&nodes[i], nodes[i].Status) {
		case v1beta1.NodeReady:
			counts.ready++
		case v1beta1.NodeInterrupted:
			counts.interrupted++
		case v1beta1.NodeStarting:
			counts.starting++
		}
	}
	return counts
}

// goneNodes are nodes in the status that are no longer members, and whose Node objects do not exist. A node that merely left has
// ended the pods that used the domain there.
func (r *Reconciler) goneNodes(ctx context.Context, before []v1beta1.ComputeDomainNode, members []member) ([]string, error) {
	var gone []string
	for _, node := range before {
		if slices.ContainsFunc(members, func(m member) bool { return m.name == node.Name }) {
			continue
		}
		object := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
		err := r.client.Get(ctx, client.ObjectKey{Name: node.Name}, object)
		switch {
		case apierrors.IsNotFound(err):
			gone = append(gone, node.Name)
		case err != nil:
			return nil, fmt.Errorf("look up node %s, which has left the domain: %w", node.Name, err)
		}
	}
	slices.Sort(gone)
	return gone, nil
}
