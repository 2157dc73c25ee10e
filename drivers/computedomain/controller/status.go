package controller

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/api/resource/v1beta1"
)

// Reasons of the condition Ready.
const (
	reasonAllReady        = "AllNodesReady"
	reasonNoNodesRequired = "NoNodesRequired"
	reasonJoining         = "WaitingForNodes"
	reasonStarting        = "WaitingForDaemons"
	reasonTaken           = "TemplateNameTaken"
	reasonDeleting        = "Deleting"
	reasonFailed          = "ReconcileFailed"
)

// Reasons of the condition DaemonsCurrent.
const (
	reasonCurrent = "AllDaemonsCurrent"
	reasonBehind  = "DaemonsBehind"
)

// namedAtMost is how many nodes a message names; the rest it counts.
const namedAtMost = 5

// setStatus updates status from members. problem, where there is one, keeps the domain from being Ready whatever its nodes report.
func setStatus(domain *v1beta1.ComputeDomain, members []member, problem *metav1.Condition) {
	setStatusFor(domain, domain.Spec.NumNodes, members, problem)
}

// setStatusFor is setStatus for a domain that needs another number of nodes than in its spec.
func setStatusFor(domain *v1beta1.ComputeDomain, needs int, members []member, problem *metav1.Condition) {
	status := &domain.Status
	before := status.Nodes
	status.Nodes = nodesOf(before, members)
	status.Cliques = cliquesOf(status.Cliques, status.Nodes)
	status.ObservedGeneration = domain.Generation
	spec := domain.Spec
	spec.NumNodes = needs
	condition := readiness(spec, status.Nodes, members)
	if problem != nil {
		condition = *problem
	}
	condition.ObservedGeneration = domain.Generation
	status.Status = v1beta1.NotReady
	if condition.Status == metav1.ConditionTrue {
		status.Status = v1beta1.Ready
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}

// setDaemonsCurrent writes to status which nodes' daemons were made from an earlier template.
func setDaemonsCurrent(domain *v1beta1.ComputeDomain, behind []string) {
	condition := metav1.Condition{
		Type: v1beta1.ConditionDaemonsCurrent, Status: metav1.ConditionTrue, Reason: reasonCurrent, ObservedGeneration: domain.Generation,
		Message: "no IMEX daemon is of an earlier template",
	}
	if len(behind) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, reasonBehind
		condition.Message = fmt.Sprintf("%d IMEX %s of an earlier template, on %s: %s the new one when the %s next %s; "+
			"nothing restarts a daemon, since its end takes the memory that jobs share",
			len(behind), plural(len(behind), "daemon is", "daemons are"), listed(behind), plural(len(behind), "it gets", "they get"),
			plural(len(behind), "pod", "pods"), plural(len(behind), "starts", "start"))
	}
	meta.SetStatusCondition(&domain.Status.Conditions, condition)
}

// readiness reports how close the domain is to being Ready.
func readiness(spec v1beta1.ComputeDomainSpec, nodes []v1beta1.ComputeDomainNode, members []member) metav1.Condition {
	ready := 0
	for _, node := range nodes {
		if node.Status == v1beta1.Ready {
			ready++
		}
	}
	var waiting []string
	for _, m := range members {
		if !m.ready {
			waiting = append(waiting, fmt.Sprintf("%s (%s)", m.name, m.why))
		}
	}
	condition := metav1.Condition{Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse}
	total := max(spec.NumNodes, len(members))
	message := fmt.Sprintf("IMEX ready on %d of %d nodes", ready, total)
	if spec.NumNodes == 0 && total == 0 {
		message = "no node has joined yet"
	}
	if len(waiting) > 0 {
		message += "; waiting for " + listed(waiting)
	}
	missing := spec.NumNodes - len(members)
	if missing > 0 {
		message += fmt.Sprintf("; %d more %s: a node joins when a pod with a claim from template %s starts on it",
			missing, plural(missing, "node must join", "nodes must join"), spec.Channel.ResourceClaimTemplate.Name)
	}
	switch {
	case spec.NumNodes == 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, reasonNoNodesRequired
		message = "the domain asks for no number of nodes; " + message
	case ready >= spec.NumNodes:
		condition.Status, condition.Reason = metav1.ConditionTrue, reasonAllReady
	case missing > 0:
		condition.Reason = reasonJoining
	default:
		condition.Reason = reasonStarting
	}
	condition.Message = message
	return condition
}

func listed(names []string) string { return listing.First(names, namedAtMost, ", ") }

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// The minimum pause between two writes of a domain's status, by the kind of the change. A domain forms in a burst of changes. The pauses
// limit that to a few writes without a noticeable delay: daemons wait for each other's addresses, and users for the progress of a domain
// that is not ready anyway.
const (
	// atOnce: the domain became Ready, or is no longer Ready; or the last of the required nodes has an address, so that there is
	// nothing more to collect before the daemons can start.
	atOnce time.Duration = 0
	// addressPause: nodes joined, left or changed their address or clique, or were lost; daemons are not connected any more, or are again;
	// or the last of the known nodes is ready.
	addressPause = 200 * time.Millisecond
	// joinPause: further nodes joined a domain that is a channel, and it still lacks some. No daemon waits for its list of nodes.
	joinPause = 2 * time.Second
	// progressPause: further nodes are ready.
	progressPause = 20 * time.Second
	// wordsPause: only messages changed.
	wordsPause = 10 * time.Second
)

// samePlace reports whether two entries are the same for the daemons.
func samePlace(a, b *v1beta1.ComputeDomainNode) bool {
	return a.Name == b.Name && a.IPAddress == b.IPAddress && a.CliqueID == b.CliqueID && a.Index == b.Index
}

// pauseBefore reports how long the write that turns old into new may be delayed, or false where there is nothing to write. wanted is
// the number of nodes that the domain requires.
func pauseBefore(wanted int, old, new v1beta1.ComputeDomainStatus) (time.Duration, bool) {
	// A list without nodes comes back from the API as none.
	if equality.Semantic.DeepEqual(old, new) {
		return 0, false
	}
	if old.Status != new.Status || old.ObservedGeneration != new.ObservedGeneration || len(old.Conditions) == 0 {
		return atOnce, true
	}
	if old.IMEX != new.IMEX && old.IMEX != "" {
		return atOnce, true // the new mode is recorded before its objects are made
	}
	if !equality.Semantic.DeepEqual(old.Channels, new.Channels) {
		return atOnce, true // a pod waits for its channel
	}
	if len(old.Nodes) < wanted && len(new.Nodes) >= wanted {
		return atOnce, true
	}
	if new.IMEX.Shared() && len(new.Nodes) < wanted && onlyGained(old.Nodes, new.Nodes) {
		return joinPause, true
	}
	if len(old.Nodes) != len(new.Nodes) {
		return addressPause, true
	}
	progress, pending := false, false
	for i := range new.Nodes {
		was, is := &old.Nodes[i], &new.Nodes[i]
		if !equality.Semantic.DeepEqual(was.Disconnected, is.Disconnected) {
			return addressPause, true
		}
		gained := was.Status == v1beta1.NotReady && is.Status == v1beta1.Ready
		if !samePlace(was, is) || !gained && was.Status != is.Status {
			return addressPause, true
		}
		progress = progress || gained
		pending = pending || is.Status == v1beta1.NotReady
	}
	switch {
	case progress && !pending:
		return addressPause, true
	case progress:
		return progressPause, true
	default:
		return wordsPause, true
	}
}

// onlyGained reports whether nodes joined, and those of before are as they were, or ready since.
func onlyGained(old, new []v1beta1.ComputeDomainNode) bool {
	if len(new) <= len(old) {
		return false
	}
	now := make(map[string]*v1beta1.ComputeDomainNode, len(new))
	for i := range new {
		now[new[i].Name] = &new[i]
	}
	for i := range old {
		was := &old[i]
		is := now[was.Name]
		if is == nil || !samePlace(was, is) || was.Status == v1beta1.Ready && is.Status != v1beta1.Ready ||
			!equality.Semantic.DeepEqual(was.Disconnected, is.Disconnected) {
			return false
		}
	}
	return true
}

// summarise writes the words that kubectl get prints.
func summarise(domain *v1beta1.ComputeDomain) {
	status := &domain.Status
	ready := 0
	for _, node := range status.Nodes {
		if node.Status == v1beta1.Ready {
			ready++
		}
	}
	summary := v1beta1.ComputeDomainSummary{Ready: fmt.Sprintf("%d/%d", ready, max(domain.Spec.NumNodes, len(status.Nodes)))}
	switch len(status.Cliques) {
	case 0:
	case 1:
		summary.Clique = status.Cliques[0].ID
	default:
		summary.Clique = fmt.Sprintf("%d cliques", len(status.Cliques))
	}
	var channels []string
	for _, clique := range status.Cliques {
		if clique.Channel != nil {
			channels = append(channels, strconv.Itoa(*clique.Channel))
		}
	}
	slices.Sort(channels)
	if channels = slices.Compact(channels); len(channels) > 0 {
		summary.Channel = listed(channels)
	}
	if domain.Spec.Channel.AllocationMode == v1beta1.AllocationModeAll {
		summary.Channel = string(v1beta1.AllocationModeAll)
	}
	status.Summary = summary
}
