// Package domain reads the status of a ComputeDomain.
package domain

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/provider/internal/object"
)

// Kind is the ComputeDomain of existing manifests.
var Kind = object.Kind{Group: "resource.nvidia.com", Version: "v1beta1", Name: "ComputeDomain", Plural: "computedomains", Namespaced: true}

// ClaimTemplateKind is the kind of the template that the controller creates for a domain, from which its pods claim channels.
var ClaimTemplateKind = object.Kind{
	Group:      "resource.k8s.io",
	Version:    "v1",
	Name:       "ResourceClaimTemplate",
	Plural:     "resourceclaimtemplates",
	Namespaced: true,
}

// State is the content of a ComputeDomain's status.
type State struct {
	Accepted bool // a controller has processed it
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

// Read reads the status of a domain. The message reports a form that this provider does not support.
func Read(obj *unstructured.Unstructured) State {
	d, err := object.Read[v1beta1.ComputeDomain](obj)
	if err != nil {
		return State{Message: err.Error()}
	}
	return Of(d)
}

// Of reads the status of a domain.
func Of(d *v1beta1.ComputeDomain) State {
	s := State{NumNodes: int64(d.Spec.NumNodes), Accepted: d.Status.Status != "", Ready: d.Status.Status == v1beta1.Ready}
	if ready := meta.FindStatusCondition(d.Status.Conditions, v1beta1.ConditionReady); ready != nil {
		s.Accepted, s.Message = true, ready.Message
	}
	for _, n := range d.Status.Nodes {
		s.Nodes = append(s.Nodes, Node{Name: n.Name, Address: n.IPAddress, Clique: n.CliqueID, Status: string(n.Status), Index: int64(n.Index)})
	}
	return s
}

// Missing describes the missing parts of the domain, with the nodes; empty when it is Ready.
func (s State) Missing() string {
	if !s.Accepted {
		return "the gpufabric controller has not processed it yet"
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
		text += "; the controller reports: " + s.Message
	}
	return text
}
