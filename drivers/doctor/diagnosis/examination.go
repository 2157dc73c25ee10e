package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/snapshot"
)

// examination is one call of Diagnose.
type examination struct {
	*snapshot.Snapshot
	found []Found
	nodes map[string]*corev1.Node
	pods  map[types.NamespacedName]*corev1.Pod
	claim map[types.NamespacedName]*resourceapi.ResourceClaim
	class map[string]*resourceapi.DeviceClass
	lease map[string]*coordinationv1.Lease
	// These are computed at their first use.
	stock     *stock
	plugin    map[[2]string]*corev1.Pod // by component and node
	events    map[about][]*corev1.Event // by their object
	templates map[types.NamespacedName]*resourceapi.ResourceClaimTemplate
	tallies   map[string]tally
	// looked: every node has been checked.
	looked bool
}

// Diagnose returns the causes for which a subject does not work. The error is a *NotFoundError where the subject does not exist.
func Diagnose(s *snapshot.Snapshot, subject Subject) (*Report, error) {
	e := &examination{Snapshot: s, nodes: map[string]*corev1.Node{}, pods: map[types.NamespacedName]*corev1.Pod{},
		claim: map[types.NamespacedName]*resourceapi.ResourceClaim{}, class: map[string]*resourceapi.DeviceClass{},
		lease: map[string]*coordinationv1.Lease{}, templates: map[types.NamespacedName]*resourceapi.ResourceClaimTemplate{},
		tallies: map[string]tally{}}
	index(s.Leases, func(l *coordinationv1.Lease) {
		if l.Namespace == corev1.NamespaceNodeLease {
			e.lease[l.Name] = l
		}
	})
	index(s.Templates, func(t *resourceapi.ResourceClaimTemplate) { e.templates[client.ObjectKeyFromObject(t)] = t })
	index(s.Nodes, func(n *corev1.Node) { e.nodes[n.Name] = n })
	index(s.Pods, func(p *corev1.Pod) { e.pods[client.ObjectKeyFromObject(p)] = p })
	index(s.Claims, func(c *resourceapi.ResourceClaim) { e.claim[client.ObjectKeyFromObject(c)] = c })
	index(s.Classes, func(c *resourceapi.DeviceClass) { e.class[c.Name] = c })
	e.server()
	if err := e.examine(subject); err != nil {
		return nil, err
	}
	report := &Report{Subject: subject, Behind: []Found{}, Lacking: s.Unread, Release: s.Release, Server: s.Server}
	if subject.Kind == Pod || subject.Kind == Claim {
		byEffect(e.found)
	}
	if all := order(e.found); len(all) > 0 {
		report.First, report.Behind = &all[0], all[1:]
	}
	return report, nil
}

func index[T any](all []T, each func(*T)) {
	for i := range all {
		each(&all[i])
	}
}

// examine checks the subject.
func (e *examination) examine(subject Subject) error {
	key := types.NamespacedName{Namespace: subject.Namespace, Name: subject.Name}
	switch subject.Kind {
	case Install:
		e.everything()
		return nil
	case Pod:
		if p := e.pods[key]; p != nil {
			e.pod(p)
			return nil
		}
		return e.missing(subject, "pods", names(e.Pods, func(p *corev1.Pod) client.Object { return p }))
	case Claim:
		if c := e.claim[key]; c != nil {
			e.claimAndPods(c)
			return nil
		}
		return e.missing(subject, "resourceclaims.resource.k8s.io", names(e.Claims,
			func(c *resourceapi.ResourceClaim) client.Object { return c }))
	case Node:
		if n := e.nodes[subject.Name]; n != nil {
			e.node(n)
			return nil
		}
		return e.missing(subject, "nodes", names(e.Nodes, func(n *corev1.Node) client.Object { return n }))
	case Domain:
		for i := range e.Domains {
			if client.ObjectKeyFromObject(&e.Domains[i]) == key {
				e.domain(&e.Domains[i])
				return nil
			}
		}
		return e.missing(subject, "computedomains.resource.nvidia.com", names(e.Domains,
			func(d *v1beta1.ComputeDomain) client.Object { return d }))
	case Pool:
		for i := range e.RDMAPools {
			if e.RDMAPools[i].Name == subject.Name {
				e.pool(&e.RDMAPools[i])
				e.rails(nil)
				return nil
			}
		}
		return e.missing(subject, "rdmapools.gpufabric.io", poolNames(e.Snapshot))
	}
	return fmt.Errorf("%q cannot be examined: allowed are %v", subject.Kind, SubjectKinds())
}

// find records a finding. object is in the form "node n1"; from is its source.
func (e *examination) find(code, object, from, format string, args ...any) {
	e.note(code, 0, object, from, format, args...)
}

// note is find with a rank behind others of its stage.
func (e *examination) note(code string, behind float64, object, from, format string, args ...any) {
	row, ok := findings.Find(code)
	if !ok || row.Stage == findings.Healthy {
		return
	}
	e.found = append(e.found, Found{Code: code, Stage: row.Stage.String(), Objects: []string{object}, Count: 1, From: from,
		Says: fmt.Sprintf(format, args...), Do: row.Do, Entry: row.Entry(), rank: float64(row.Stage) + behind})
}

// missing makes the error for a subject that does not exist.
func (e *examination) missing(subject Subject, kind string, there []types.NamespacedName) error {
	out := &NotFoundError{Subject: subject}
	for _, u := range e.Unread {
		if u.Kind == kind {
			out.Unsure = u.String()
			break
		}
	}
	type near struct {
		name     string
		distance int
	}
	var all []near
	for _, n := range there {
		d := distance(subject.Name, n.Name)
		if strings.Contains(n.Name, subject.Name) || strings.Contains(subject.Name, n.Name) {
			d = min(d, 1)
		}
		if n.Namespace != subject.Namespace {
			d++
		}
		if d <= max(2, len(subject.Name)/3) {
			all = append(all, near{Subject{subject.Kind, n.Namespace, n.Name}.String(), d})
		}
	}
	slices.SortFunc(all, func(a, b near) int { return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name)) })
	for _, n := range all[:min(len(all), 3)] {
		out.Near = append(out.Near, n.name)
	}
	return out
}

func names[T any](all []T, object func(*T) client.Object) []types.NamespacedName {
	var out []types.NamespacedName
	index(all, func(o *T) { out = append(out, client.ObjectKeyFromObject(object(o))) })
	return out
}

func poolNames(s *snapshot.Snapshot) []types.NamespacedName {
	var out []types.NamespacedName
	for i := range s.RDMAPools {
		out = append(out, types.NamespacedName{Name: s.RDMAPools[i].Name})
	}
	return out
}

// distance is the Levenshtein distance of two names; the API server allows names of 253 bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := last
			if a[i] != b[j] {
				changed++
			}
			last = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
