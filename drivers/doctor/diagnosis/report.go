// Package diagnosis follows the chain from the machine to a running workload through a Snapshot, and finds the first broken link.
package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/snapshot"
)

// SubjectKind is a kind of subject.
type SubjectKind string

// The kinds.
const (
	Install SubjectKind = "install"
	Pod     SubjectKind = "pod"
	Claim   SubjectKind = "claim"
	Node    SubjectKind = "node"
	Domain  SubjectKind = "domain"
	Pool    SubjectKind = "pool"
)

// SubjectKinds are all kinds, as a person types them.
func SubjectKinds() []SubjectKind { return []SubjectKind{Pod, Claim, Node, Domain, Pool, Install} }

// Subject is the object of the user's question.
type Subject struct {
	Kind      SubjectKind `json:"kind"`
	Namespace string      `json:"namespace,omitempty"`
	Name      string      `json:"name,omitempty"`
}

// String is kind, namespace and name.
func (s Subject) String() string {
	name := s.Name
	if s.Namespace != "" {
		name = s.Namespace + "/" + s.Name
	}
	return strings.TrimSpace(string(s.Kind) + " " + name)
}

// Found is a finding in this cluster.
type Found struct {
	// Code and Stage are from the table of findings.
	Code  string `json:"code"`
	Stage string `json:"stage"`
	// Objects are where it was found, as "node n1" or "pod ns/p": at most shown of them; Count is their number.
	Objects []string `json:"objects,omitempty"`
	Count   int      `json:"count"`
	// Says describes the problem of the first object.
	Says string `json:"says"`
	// From is its source.
	From string `json:"from"`
	// Do is the remedy, Entry the place of its description.
	Do    string `json:"do"`
	Entry string `json:"entry"`

	rank float64
}

// shown is how many objects a finding names.
const shown = 5

// Report is an answer.
type Report struct {
	Subject Subject `json:"subject"`
	// First is the first cause; nil: nothing was found.
	First *Found `json:"first"`
	// Behind are further findings: they wait for the first, or are broken too.
	Behind []Found `json:"behind"`
	// Lacking lists objects that could not be read. Causes that only show there are not found.
	Lacking []snapshot.Unread `json:"lacking"`
	// Release lists the namespaces in which gpufabric's own pods and DaemonSets were looked for.
	Release snapshot.Release `json:"release,omitzero"`
	Server  snapshot.Server  `json:"server"`
}

// ExitStatus is the program's exit status: 0 where nothing was found, else by the stage of the first cause.
func (r *Report) ExitStatus() int {
	if r.First == nil {
		return 0
	}
	f, _ := findings.Find(r.First.Code)
	return f.Stage.ExitStatus()
}

// NotFoundError is a subject that is not there.
type NotFoundError struct {
	Subject Subject
	// Near are similar existing names, the nearest first.
	Near []string
	// Unsure: the kind could not be read completely, so the subject may exist.
	Unsure string
}

// Error implements error.
func (e *NotFoundError) Error() string {
	text := fmt.Sprintf("there is no %s", e.Subject)
	if e.Unsure != "" {
		text = fmt.Sprintf("%s was not seen (%s)", e.Subject, e.Unsure)
	}
	if len(e.Near) > 0 {
		text += "; there is " + strings.Join(e.Near, ", ")
	}
	return text
}

// byEffect sorts findings that keep a pod from running before those that do not.
func byEffect(all []Found) {
	const behindAll = 100 // more than there are stages
	for i := range all {
		if findings.Bearable(all[i].Code) {
			all[i].rank += behindAll
		}
	}
}

// order sorts by the chain, puts findings of one code together and returns them.
func order(all []Found) []Found {
	slices.SortStableFunc(all, func(a, b Found) int { return cmp.Compare(a.rank, b.rank) })
	var out []Found
	at := map[string]int{}
	for _, f := range all {
		i, again := at[f.Code]
		if !again {
			at[f.Code] = len(out)
			out = append(out, f)
			continue
		}
		if len(f.Objects) == 1 && slices.Contains(out[i].Objects, f.Objects[0]) {
			continue
		}
		out[i].Count += f.Count
		if len(out[i].Objects) < shown {
			out[i].Objects = append(out[i].Objects, f.Objects...)
		}
	}
	return out
}
