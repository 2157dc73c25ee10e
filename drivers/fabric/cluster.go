package fabric

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// addCounted adds the extended resources of nodes, and the pods that request them. An extended resource that DRA serves already
// shows its devices, by its claim; its pods are not counted here.
func (d *drawing) addCounted() {
	type key struct{ node, resource string }
	found := map[key]*Counted{}
	for name, node := range d.labels {
		if d.nodes[name] == nil {
			continue
		}
		for resource, n := range node.Extended {
			if ours(resource) {
				found[key{name, resource}] = &Counted{Resource: resource, Allocatable: n}
			}
		}
	}
	for _, p := range d.facts.Pods {
		if p.Ended || p.NodeName == "" {
			continue
		}
		for resource, n := range p.Extended {
			if c := found[key{p.NodeName, resource}]; c != nil {
				c.Requested += n
				c.Pods = append(c.Pods, p.Namespace+"/"+p.Name)
			}
		}
	}
	for k, c := range found {
		slices.Sort(c.Pods)
		n := d.nodes[k.node]
		n.Counted = append(n.Counted, *c)
	}
	for _, n := range d.nodes {
		slices.SortFunc(n.Counted, func(a, b Counted) int { return strings.Compare(a.Resource, b.Resource) })
	}
}

// ours reports whether an extended resource is for GPUs or RDMA ports: those of NVIDIA, Volcano and RDMA.
func ours(resource string) bool {
	domain, _, _ := strings.Cut(resource, "/")
	return domain == "nvidia.com" || domain == "rdma" || domain == "volcano.sh" || strings.HasSuffix(domain, ".nvidia.com")
}

func (d *drawing) addDomains() {
	joining := map[string][]string{}
	for name, node := range d.labels {
		if node.Domain != "" {
			joining[node.Domain] = append(joining[node.Domain], name)
		}
	}
	d.picture.Domains = []DomainState{}
	for _, o := range d.facts.Domains {
		state := DomainState{Name: o.Namespace + "/" + o.Name, Ready: o.Ready, Deleting: o.Deleting, Wanted: o.Wanted, Reason: o.Reason,
			Why: o.Why, Members: o.Members}
		if !o.Created.IsZero() {
			state.Created = o.Created.Unix()
		}
		members := map[string]bool{}
		for _, m := range o.Members {
			members[m.Node] = true
			if m.Ready {
				state.Up++
			}
			if n := d.nodes[m.Node]; n != nil && !slices.Contains(n.Domains, state.Name) {
				n.Domains = append(n.Domains, state.Name)
			}
		}
		for _, name := range joining[string(o.UID)] {
			if !members[name] {
				state.Joining = append(state.Joining, name)
			}
		}
		slices.SortFunc(state.Joining, natural)
		d.picture.Domains = append(d.picture.Domains, state)
	}
	slices.SortFunc(d.picture.Domains, func(a, b DomainState) int { return natural(a.Name, b.Name) })
	for _, n := range d.nodes {
		slices.Sort(n.Domains)
	}
}

func (d *drawing) addPools() {
	d.picture.Pools = []PoolState{}
	for _, p := range d.facts.Pools {
		d.picture.Pools = append(d.picture.Pools, PoolState{Name: p.Name, Resource: p.Resource, Nodes: p.Nodes, Devices: p.Devices,
			Healthy: p.Healthy, Ready: p.Ready, Why: p.Why})
	}
	slices.SortFunc(d.picture.Pools, func(a, b PoolState) int { return strings.Compare(a.Name, b.Name) })
}

func (d *drawing) addLayouts() {
	for _, l := range d.facts.Layouts {
		if l.Node == "" || l.Decision == "" && len(l.Cuts) == 0 {
			continue
		}
		state := LayoutState{Node: l.Node, Decision: l.Decision}
		for _, c := range l.Cuts {
			state.Cuts = append(state.Cuts, CutState{GPU: c.Device, To: v1alpha1.DescribeInstances(c.Instances), Since: c.Since.Unix(),
				Why: c.Reason})
		}
		d.picture.Layouts = append(d.picture.Layouts, state)
	}
	slices.SortFunc(d.picture.Layouts, func(a, b LayoutState) int { return natural(a.Node, b.Node) })
}

func (d *drawing) addQueue() {
	d.picture.Queue = []WaitingPod{}
	for _, p := range d.facts.Pods {
		if p.Waits == "" || p.Ended {
			continue
		}
		d.picture.Queue = append(d.picture.Queue, WaitingPod{Pod: p.Namespace + "/" + p.Name, Node: p.NodeName, Since: p.Since.Unix(),
			Cause: CauseOf(p.Waits), Says: p.Waits})
	}
	slices.SortFunc(d.picture.Queue, func(a, b WaitingPod) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.Pod, b.Pod))
	})
}

// The scheduler's message counts nodes: "0/18 nodes are available: 2 cannot allocate all claims, 16 node(s) ... . preemption: ...".
var (
	counts     = regexp.MustCompile(`^\d+/\d+ nodes are available: `)
	preemption = regexp.MustCompile(`\.? ?(no new claims to deallocate, )?preemption: .*$`)
	amount     = regexp.MustCompile(`^\d+ `)
)

// CauseOf is the part of a scheduler's message that is the same for all pods with the same problem: the text without numbers of
// nodes.
func CauseOf(message string) string {
	if !counts.MatchString(message) {
		return message
	}
	rest := preemption.ReplaceAllString(counts.ReplaceAllString(message, ""), "")
	var causes []string
	for _, cause := range strings.Split(strings.TrimSuffix(rest, "."), ", ") {
		if cause = amount.ReplaceAllString(strings.TrimSpace(cause), ""); cause != "" && !slices.Contains(causes, cause) {
			causes = append(causes, cause)
		}
	}
	slices.Sort(causes)
	return cmp.Or(strings.Join(causes, "; "), message)
}

// addRacks puts nodes into racks: the nodes of one NVLink fabric together, others by their label.
func (d *drawing) addRacks() {
	type rackKey struct {
		kind RackKind
		id   string
	}
	racks := map[rackKey]*Rack{}
	for name, n := range d.nodes {
		key := rackKey{kind: NoRack}
		if fabric, _, _ := strings.Cut(n.Clique, "."); fabric != "" {
			key = rackKey{ByNVLink, fabric}
		} else if known := d.labels[name]; known != nil && known.RackLabel != "" {
			key = rackKey{ByLabel, known.RackLabel}
		}
		if racks[key] == nil {
			racks[key] = &Rack{ID: key.id, Kind: key.kind}
		}
		racks[key].Nodes = append(racks[key].Nodes, *n)
		if n.Clique != "" && !slices.Contains(racks[key].Cliques, n.Clique) {
			racks[key].Cliques = append(racks[key].Cliques, n.Clique)
		}
	}
	d.picture.Racks = []Rack{}
	for _, r := range slices.Collect(maps.Values(racks)) {
		slices.SortFunc(r.Nodes, func(a, b NodeState) int { return natural(a.Name, b.Name) })
		slices.SortFunc(r.Cliques, natural)
		d.picture.Racks = append(d.picture.Racks, *r)
	}
	// Sorted by their first nodes: administrators number nodes in the order of the racks, and a ClusterUUID means nothing to people.
	slices.SortFunc(d.picture.Racks, func(a, b Rack) int {
		return cmp.Or(boolean(a.Kind == NoRack, b.Kind == NoRack), natural(a.Nodes[0].Name, b.Nodes[0].Name))
	})
}

func boolean(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (d *drawing) count() {
	t := &d.picture.Totals
	t.Racks, t.Nodes, t.Domains, t.Waiting = len(d.picture.Racks), len(d.nodes), len(d.picture.Domains), len(d.picture.Queue)
	for _, o := range d.picture.Domains {
		if !o.Ready {
			t.Forming++
		}
	}
	for _, n := range d.nodes {
		t.GPUs, t.Ports = t.GPUs+len(n.GPUs), t.Ports+len(n.Ports)
		for i := range n.GPUs {
			switch n.GPUs[i].State {
			case Free:
				t.Free++
			case Partly:
				t.Partly++
			case Held:
				t.Held++
			case Tainted:
				t.Tainted++
			case Broken:
				t.Broken++
			}
		}
		for i := range n.Ports {
			if n.Ports[i].State == Broken {
				t.Down++
			}
		}
	}
	slices.SortFunc(d.picture.Strays, func(a, b Allocation) int {
		return cmp.Or(strings.Compare(a.Pool, b.Pool), strings.Compare(a.Claim, b.Claim), strings.Compare(a.Request, b.Request),
			strings.Compare(a.Device, b.Device))
	})
}

// Cause is the common cause of some waiting pods.
type Cause struct {
	Cause  string        `json:"cause"`
	Pods   int           `json:"pods"`
	Oldest time.Duration `json:"oldest"`
}

// Causes groups the queue by the causes of its waits, the most pods first. Oldest is how long the first of them has waited.
func Causes(queue []WaitingPod, now time.Time) []Cause {
	byCause := map[string]*Cause{}
	for _, w := range queue {
		c := byCause[w.Cause]
		if c == nil {
			c = &Cause{Cause: w.Cause}
			byCause[w.Cause] = c
		}
		c.Pods++
		c.Oldest = max(c.Oldest, now.Sub(time.Unix(w.Since, 0)).Round(time.Second))
	}
	var out []Cause
	for _, c := range byCause {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Cause) int { return cmp.Or(cmp.Compare(b.Pods, a.Pods), strings.Compare(a.Cause, b.Cause)) })
	return out
}
