// Package preflight finds problems of a cluster before gpufabric is installed. It needs neither NVIDIA's libraries nor
// access to a node, so the Terraform provider can use it too.
package preflight

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/snapshot"
)

// Result is the result of a check.
type Result string

// The results.
const (
	OK      Result = "ok"
	Warning Result = "warning"
	Fails   Result = "fails"
	// NotSeen: the facts of the check cannot be read from outside, or not with these permissions.
	NotSeen Result = "not seen"
)

// Check is a row of the table.
type Check struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	Detail string `json:"detail"`
	// Code is a finding of the doctor, Entry where it is described, from the root of the repository; empty: there is nothing to do.
	Code  string `json:"code,omitempty"`
	Entry string `json:"entry,omitempty"`
	// Do is the remedy.
	Do string `json:"do,omitempty"`
}

// is returns the check with a result that has a finding's code.
func (c Check) is(result Result, code, detail string) Check {
	f, _ := findings.Find(code) // a test checks that every code used here exists
	c.Result, c.Detail, c.Code, c.Entry, c.Do = result, detail, code, f.Entry(), f.Do
	return c
}

// ok returns the check as passed.
func (c Check) ok(detail string) Check {
	c.Result, c.Detail = OK, detail
	return c
}

// notSeen returns the check as one that could not be made.
func (c Check) notSeen(detail string) Check {
	c.Result, c.Detail = NotSeen, detail
	return c
}

// Failing are the checks that fail.
func Failing(checks []Check) []Check { return with(checks, Fails) }

// Warnings are the checks that warn.
func Warnings(checks []Check) []Check { return with(checks, Warning) }

func with(checks []Check, result Result) []Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool { return c.Result != result })
}

// Run makes all checks for an installation in a namespace. The state of a node's machine comes from the pods of the Jobs (see
// Jobs).
func Run(s *snapshot.Snapshot, v Values, namespace string) []Check {
	nodes := selected(s, v)
	return append([]Check{server(s), resources(s), placement(s, v, nodes), kubelets(s, nodes),
		runtimes(s, nodes, readPodResults(s, namespace)), systems(s, nodes), others(s, v), definitions(s, v, namespace),
		security(s, v, namespace), quota(s, namespace), hardware(s, nodes)},
		machines(s, v, namespace, nodes)...)
}

func selected(s *snapshot.Snapshot, v Values) []*corev1.Node {
	var out []*corev1.Node
next:
	for i := range s.Nodes {
		for key, value := range v.NodePlugins.NodeSelector {
			if s.Nodes[i].Labels[key] != value {
				continue next
			}
		}
		out = append(out, &s.Nodes[i])
	}
	return out
}

// some names the first of many.
func some(all []string) string {
	const named = 5
	return listing.First(all, named, ", ")
}
