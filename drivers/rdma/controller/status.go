package controller

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/rdma/exclusive"
)

// Reasons of the conditions.
const (
	reasonInvalid    = "InvalidSpec"       // the spec has mistakes
	reasonNoNodes    = "NoNodes"           // nodeSelector selects no node
	reasonWaiting    = "WaitingForNodes"   // no node has reported on this generation, or not all that did on an earlier one
	reasonNoDevices  = "NoMatchingDevices" // nodes have reported, and none has a device
	reasonDown       = "DevicesDown"       // a node has devices, and none of them can carry traffic
	reasonNoUnits    = "NoUnits"           // a node has healthy devices, and no unit of the pool is on them
	reasonClosed     = "ExclusiveMode"     // on a node, pods with a network of their own cannot open the pool's devices
	reasonDegraded   = "SomeDevicesDown"   // every node has a healthy device, and some have others too
	reasonHealthy    = "AllDevicesHealthy"
	reasonConflict   = "ClaimedByOthers"
	reasonNoConflict = "NoConflicts"
	reasonExhausted  = "SecondaryNetworkExhausted" // a secondary network with the pool's devices has no address left

	reasonAddressesLeft = "AddressesLeft"
)

// named bounds the nodes that a message names.
const named = 3

// summarise computes the status, except the nodes' entries, from the nodes' reports. none: its nodeSelector selects no node.
func summarise(p *v1alpha1.RDMAPool, none bool, now time.Time) v1alpha1.RDMAPoolStatus {
	status := v1alpha1.RDMAPoolStatus{ObservedGeneration: p.Generation, Resource: p.Spec.Resource(),
		Conditions: slices.Clone(p.Status.Conditions)}
	var conflicts, down, bare, late, closed, empty []string
	for _, n := range p.Status.Nodes {
		if n.ObservedGeneration != p.Generation {
			late = append(late, n.Name) // It is about an earlier spec.
			continue
		}
		status.Devices += n.Devices
		status.HealthyDevices += n.HealthyDevices
		switch {
		case n.Devices == 0:
			bare = append(bare, n.Name+" ("+n.Message+")")
		case n.HealthyDevices == 0:
			down = append(down, n.Name+" ("+n.Message+")")
			status.NodeCount++
		case n.Units == 0:
			empty = append(empty, n.Name+" ("+n.Message+")")
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
		setCondition(&status, p.Generation, kind, is, reason, message, now)
	}
	counts := fmt.Sprintf("%d of %d devices can carry traffic, on %s", status.HealthyDevices, status.Devices, nodes(status.NodeCount))
	if unmatched := p.Unmatched(); len(unmatched) > 0 {
		counts += "; no device of any node has " + listing.First(unmatched, named, ", ")
	}
	mistakes := p.Spec.Validate(field.NewPath("spec")).ToAggregate()
	switch {
	case mistakes != nil:
		set(v1alpha1.RDMAPoolReady, false, reasonInvalid, mistakes.Error())
	case none:
		set(v1alpha1.RDMAPoolReady, false, reasonNoNodes, "nodeSelector selects no node")
	case len(late) == len(p.Status.Nodes):
		set(v1alpha1.RDMAPoolReady, false, reasonWaiting,
			"no node that nodeSelector selects has reported on this pool yet: is the rdma-plugin running there?")
	case len(late) > 0:
		set(v1alpha1.RDMAPoolReady, false, reasonWaiting, fmt.Sprintf("%d of %s reported on this generation: %s; waiting for %s",
			len(p.Status.Nodes)-len(late), nodes(int32(len(p.Status.Nodes))), counts, list(late)))
	case status.Devices == 0:
		set(v1alpha1.RDMAPoolReady, false, reasonNoDevices, fmt.Sprintf("no device matches on %s: %s", nodes(int32(len(bare))), list(bare)))
	case len(down) > 0:
		set(v1alpha1.RDMAPoolReady, false, reasonDown, counts+"; none on "+list(down))
	case len(empty) > 0:
		set(v1alpha1.RDMAPoolReady, false, reasonNoUnits, counts+"; nothing can be allocated on "+list(empty))
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

// setCondition sets a condition of the status.
func setCondition(status *v1alpha1.RDMAPoolStatus, generation int64, kind string, is bool, reason, message string, now time.Time) {
	value := metav1.ConditionFalse
	if is {
		value = metav1.ConditionTrue
	}
	c := metav1.Condition{Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: generation}
	if meta.SetStatusCondition(&status.Conditions, c) {
		if set := meta.FindStatusCondition(status.Conditions, kind); set.LastTransitionTime.IsZero() {
			set.LastTransitionTime = metav1.NewTime(now)
		}
	}
}

// setExhausted sets the condition about the addresses of the pool's secondary networks. A pool without networks has no such condition.
func setExhausted(status *v1alpha1.RDMAPoolStatus, generation int64, full []string, networks int, now time.Time) {
	switch {
	case networks == 0:
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.RDMAPoolExhausted)
	case len(full) > 0:
		setCondition(status, generation, v1alpha1.RDMAPoolExhausted, true, reasonExhausted, "every address of these secondary networks is given "+
			"out, so further pods are not started: "+list(full), now)
	default:
		setCondition(status, generation, v1alpha1.RDMAPoolExhausted, false, reasonAddressesLeft,
			fmt.Sprintf("%d secondary networks of the pool have addresses left", networks), now)
	}
}

// list joins the first few texts and counts the rest.
func list(texts []string) string { return listing.First(texts, named, "; ") }

func nodes(n int32) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
