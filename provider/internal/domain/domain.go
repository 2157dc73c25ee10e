// Package domain reads what a ComputeDomain says of itself.
package domain

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/object"
)

// Kind is the ComputeDomain of existing manifests.
var Kind = object.Kind{Group: "resource.nvidia.com", Version: "v1beta1", Name: "ComputeDomain", Plural: "computedomains", Namespaced: true}

// ClaimTemplateKind is what the controller makes for a domain, for its pods to claim channels by.
var ClaimTemplateKind = object.Kind{Group: "resource.k8s.io", Version: "v1", Name: "ResourceClaimTemplate", Plural: "resourceclaimtemplates", Namespaced: true}

// State is what a ComputeDomain's status says.
type State struct {
	Accepted bool // a controller has looked at it
	Ready    bool
	Message  string // the controller's
	NumNodes int64  // wanted
	Nodes    []Node
}

// Node is a node in a domain.
type Node struct {
	Name, Address, Clique string
	Status                string // Ready or NotReady
	Index                 int64
}

// Read reads the status of a domain.
func Read(obj *unstructured.Unstructured) State {
	var s State
	s.NumNodes, _, _ = unstructured.NestedInt64(obj.Object, "spec", "numNodes")
	status, _, _ := unstructured.NestedString(obj.Object, "status", "status")
	s.Accepted, s.Ready = status != "", status == "Ready"
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == "Ready" {
			s.Accepted = true
			s.Message, _ = condition["message"].(string)
		}
	}
	nodes, _, _ := unstructured.NestedSlice(obj.Object, "status", "nodes")
	for _, n := range nodes {
		node, ok := n.(map[string]any)
		if !ok {
			continue
		}
		text := func(field string) string { v, _ := node[field].(string); return v }
		index, _ := node["index"].(int64)
		s.Nodes = append(s.Nodes, Node{Name: text("name"), Address: text("ipAddress"), Clique: text("cliqueID"), Status: text("status"), Index: index})
	}
	return s
}

// Missing says what the domain still lacks, with the nodes named; empty when it is Ready.
func (s State) Missing() string {
	if !s.Accepted {
		return "the gpufabric controller has not taken it up yet"
	}
	if s.Ready {
		return ""
	}
	ready, waiting := 0, []string{}
	for _, n := range s.Nodes {
		if n.Status == "Ready" {
			ready++
		} else {
			waiting = append(waiting, n.Name)
		}
	}
	text := fmt.Sprintf("%d of %d nodes ready", ready, s.NumNodes)
	if len(waiting) > 0 {
		text += "; waiting for " + strings.Join(waiting, ", ")
	}
	if lacking := s.NumNodes - int64(len(s.Nodes)); lacking > 0 {
		text += fmt.Sprintf("; %d more must join, which they do when pods that use the domain run there", lacking)
	}
	if s.Message != "" {
		text += "; the controller says: " + s.Message
	}
	return text
}
