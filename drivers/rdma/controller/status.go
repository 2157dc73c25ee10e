package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/exclusive"
)

// Reasons of the conditions.
const (
	reasonInvalid    = "InvalidSpec"       // the spec has mistakes
	reasonWaiting    = "WaitingForNodes"   // no node has reported on this generation, or not all that did on an earlier one
	reasonNoDevices  = "NoMatchingDevices" // nodes have reported, and none has a device
	reasonDown       = "DevicesDown"       // a node has devices, and none of them can carry traffic
	reasonClosed     = "ExclusiveMode"     // on a node, pods with a network of their own cannot open the pool's devices
	reasonDegraded   = "SomeDevicesDown"   // every node has a healthy device, and some have others too
	reasonHealthy    = "AllDevicesHealthy"
	reasonConflict   = "ClaimedByOthers"
	reasonNoConflict = "NoConflicts"
)

// named bounds the nodes that a message names.
const named = 3

// summarise computes the status, except the nodes' entries, from the nodes' reports.
func summarise(p *v1alpha1.RDMAPool, now time.Time) v1alpha1.RDMAPoolStatus {
	status := v1alpha1.RDMAPoolStatus{ObservedGeneration: p.Generation, Resource: p.Spec.Resource(),
		Conditions: slices.Clone(p.Status.Conditions)}
	var conflicts, down, none, late, closed []string
	for _, n := range p.Status.Nodes {
		if n.ObservedGeneration != p.Generation {
			late = append(late, n.Name) // It is about an earlier spec.
			continue
		}
		status.Devices += n.Devices
		status.HealthyDevices += n.HealthyDevices
		switch {
		case n.Devices == 0:
			none = append(none, n.Name+" ("+n.Message+")")
		case n.HealthyDevices == 0:
			down = append(down, n.Name+" ("+n.Message+")")
			fallthrough
		default:
			status.NodeCount++
		}
		if n.Closed {
			closed = append(closed, n.Name)
		}
		for _, c := range n.Conflicts {
			conflicts = append(conflicts, n.Name+": "+c)
		}
	}
	set := func(kind string, is bool, reason, message string) {
		value := metav1.ConditionFalse
		if is {
			value = metav1.ConditionTrue
		}
		c := metav1.Condition{Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: p.Generation}
		if meta.SetStatusCondition(&status.Conditions, c) {
			if set := meta.FindStatusCondition(status.Conditions, kind); set.LastTransitionTime.IsZero() {
				set.LastTransitionTime = metav1.NewTime(now)
			}
		}
	}
	counts := fmt.Sprintf("%d of %d devices can carry traffic, on %s", status.HealthyDevices, status.Devices, nodes(status.NodeCount))
	mistakes := p.Spec.Validate(field.NewPath("spec")).ToAggregate()
	switch {
	case mistakes != nil:
		set(v1alpha1.RDMAPoolReady, false, reasonInvalid, mistakes.Error())
	case len(late) == len(p.Status.Nodes):
		set(v1alpha1.RDMAPoolReady, false, reasonWaiting,
			"no node that nodeSelector selects has reported on this pool yet: is the rdma-plugin running there?")
	case len(late) > 0:
		set(v1alpha1.RDMAPoolReady, false, reasonWaiting, fmt.Sprintf("%d of %s reported on this generation: %s; waiting for %s",
			len(p.Status.Nodes)-len(late), nodes(int32(len(p.Status.Nodes))), counts, list(late)))
	case status.Devices == 0:
		set(v1alpha1.RDMAPoolReady, false, reasonNoDevices, fmt.Sprintf("no device matches on %s: %s", nodes(int32(len(none))), list(none)))
	case len(down) > 0:
		set(v1alpha1.RDMAPoolReady, false, reasonDown, counts+"; none on "+list(down))
	case len(closed) > 0:
		set(v1alpha1.RDMAPoolReady, false, reasonClosed, fmt.Sprintf("%s; on %s (%s) %s", counts, nodes(int32(len(closed))), list(closed),
			exclusive.NotOpened))
	case status.HealthyDevices < status.Devices:
		set(v1alpha1.RDMAPoolReady, true, reasonDegraded, counts)
	default:
		set(v1alpha1.RDMAPoolReady, true, reasonHealthy, counts)
	}
	if len(conflicts) > 0 {
		set(v1alpha1.RDMAPoolConflicting, true, reasonConflict, list(conflicts))
	} else {
		set(v1alpha1.RDMAPoolConflicting, false, reasonNoConflict, "no other pool claims this one's devices or its resource name")
	}
	return status
}

// list joins the first few texts and counts the rest.
func list(texts []string) string {
	text := strings.Join(texts[:min(len(texts), named)], "; ")
	if more := len(texts) - named; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func nodes(n int32) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
