package main

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// domain is what is shown of a ComputeDomain; it is read without our own types so that the simulator also shows domains of
// other versions.
type domain struct {
	namespace, name, status string
	ready, wanted           int
	nodes                   []domainNode
}

type domainNode struct {
	name, address, clique, status string
	index                         int64
}

func readDomain(object *unstructured.Unstructured) domain {
	d := domain{namespace: object.GetNamespace(), name: object.GetName()}
	d.status, _, _ = unstructured.NestedString(object.Object, "status", "status")
	wanted, _, _ := unstructured.NestedInt64(object.Object, "spec", "numNodes")
	d.wanted = int(wanted)
	nodes, _, _ := unstructured.NestedSlice(object.Object, "status", "nodes")
	for _, entry := range nodes {
		fields, ok := entry.(map[string]any)
		if !ok {
			continue
		}
		var n domainNode
		n.name, _, _ = unstructured.NestedString(fields, "name")
		n.address, _, _ = unstructured.NestedString(fields, "ipAddress")
		n.clique, _, _ = unstructured.NestedString(fields, "cliqueID")
		n.status, _, _ = unstructured.NestedString(fields, "status")
		n.index, _, _ = unstructured.NestedInt64(fields, "index")
		if n.status == "Ready" {
			d.ready++
		}
		d.nodes = append(d.nodes, n)
	}
	return d
}
