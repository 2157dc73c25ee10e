package fabric

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/rdma/dra"
)

// drawing is a picture in progress.
type drawing struct {
	facts   *Facts
	nodes   map[string]*NodeState
	labels  map[string]*Node   // by node
	pools   map[poolKey]string // the node of a pool
	domains map[string]string  // namespace/name by UID
	gpus    map[string]map[string]*gpu
	ports   map[string]map[string]*PortState
	imex    map[string]map[string]bool
	picture *Picture
}

type poolKey struct{ driver, pool string }

// gpu is a GPU with the data that decides whether part of it is free.
type gpu struct {
	GPUState
	forms      map[string]*GPUFacts // by device
	placements map[string]*Placement
	// full: claims have shares of it, and it is not published.
	full bool
}

// Draw makes the picture. It shows contradictory facts as they are: a claim may be newer than a slice.
func Draw(facts *Facts) *Picture {
	d := &drawing{facts: facts, nodes: map[string]*NodeState{}, labels: map[string]*Node{}, pools: map[poolKey]string{},
		domains: map[string]string{}, gpus: map[string]map[string]*gpu{}, ports: map[string]map[string]*PortState{},
		imex: map[string]map[string]bool{}, picture: &Picture{Missing: facts.Missing}}
	for _, n := range facts.Nodes {
		d.labels[n.Name] = n
	}
	for _, o := range facts.Domains {
		d.domains[string(o.UID)] = o.Namespace + "/" + o.Name
	}
	d.addSlices()
	d.addClaims()
	d.addNodes()
	d.addCounted()
	d.addDomains()
	d.addPools()
	d.addLayouts()
	d.addQueue()
	d.addRacks()
	d.count()
	return d.picture
}

// addSlices adds the devices of the newest generation of each pool.
func (d *drawing) addSlices() {
	newest := map[poolKey]int64{}
	for _, s := range d.facts.Slices {
		key := poolKey{s.Driver, s.Pool}
		newest[key] = max(newest[key], s.Generation)
	}
	for _, s := range d.facts.Slices {
		key := poolKey{s.Driver, s.Pool}
		if s.NodeName == "" || s.Generation < newest[key] || !slices.Contains(Drivers(), s.Driver) {
			continue
		}
		d.pools[key] = s.NodeName
		d.node(s.NodeName)
		for i := range s.GPUs {
			d.gpu(s.NodeName, s.GPUs[i].GPU).add(&s.GPUs[i])
		}
		for i := range s.Placements {
			p := &s.Placements[i]
			d.gpu(s.NodeName, p.GPU).placements[p.Device] = p
		}
		for set, n := range s.MemorySlices {
			d.gpu(s.NodeName, set).MemorySlices = n
		}
		for i := range s.Ports {
			if d.ports[s.NodeName] == nil {
				d.ports[s.NodeName] = map[string]*PortState{}
			}
			d.ports[s.NodeName][s.Ports[i].Device] = portState(&s.Ports[i])
		}
		for i := range s.IMEX {
			if d.imex[s.NodeName] == nil {
				d.imex[s.NodeName] = map[string]bool{}
			}
			d.imex[s.NodeName][s.IMEX[i].Device] = true
			for _, t := range s.IMEX[i].Taints {
				d.note(s.NodeName, "its "+strings.TrimRight(s.IMEX[i].Device, "-0123456789")+" is tainted: "+t.String())
			}
			if n := d.node(s.NodeName); n.Clique == "" {
				n.Clique = s.IMEX[i].Clique
			}
		}
	}
}

// String writes a taint as kubectl does.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

func (d *drawing) node(name string) *NodeState {
	n := d.nodes[name]
	if n == nil {
		// A viewer without the right to read nodes cannot see whether one is ready.
		n = &NodeState{Name: name, Ready: len(d.labels) == 0}
		if known := d.labels[name]; known != nil {
			n.Clique, n.Ready, n.Cordoned = known.Clique, known.Ready, known.Cordoned
		}
		d.nodes[name] = n
	}
	return n
}

func (d *drawing) note(node, text string) {
	if n := d.node(node); !slices.Contains(n.Notes, text) {
		n.Notes = append(n.Notes, text)
	}
}

func (d *drawing) gpu(node, name string) *gpu {
	all := d.gpus[node]
	if all == nil {
		all = map[string]*gpu{}
		d.gpus[node] = all
	}
	if all[name] == nil {
		all[name] = &gpu{GPUState: GPUState{Name: name, Index: -1, NUMA: -1}, forms: map[string]*GPUFacts{}, placements: map[string]*Placement{}}
	}
	return all[name]
}

// add adds a form's data to its GPU. Forms of one GPU have the same data, but a placement has less.
func (g *gpu) add(f *GPUFacts) {
	if f.Device != "" {
		g.forms[f.Device] = f
		g.Offers = append(g.Offers, f.Form)
		g.Shares = max(g.Shares, f.Shares)
	}
	g.UUID, g.Product = cmp.Or(g.UUID, f.UUID), cmp.Or(g.Product, f.Product)
	g.Index, g.NUMA, g.Memory = max(g.Index, f.Index), max(g.NUMA, f.NUMA), max(g.Memory, f.Memory)
	g.Clique, g.NVLink = cmp.Or(g.Clique, f.Clique), cmp.Or(g.NVLink, f.NVLink)
	g.PCI, g.Switch, g.Root = cmp.Or(g.PCI, f.Address), cmp.Or(g.Switch, f.Switch), cmp.Or(g.Root, f.Root)
	g.taint(f.Taints)
}

func (g *gpu) taint(taints []Taint) {
	for _, t := range taints {
		if !slices.Contains(g.Taints, t) {
			g.Taints = append(g.Taints, t)
		}
	}
}

func portState(f *PortFacts) *PortState {
	return &PortState{Name: f.Device, Device: f.RDMADevice, Port: max(f.Number, 0), Interface: f.Interface, LinkLayer: f.LinkLayer,
		RateGbps: f.RateGbps, Rail: f.Rail, PCI: f.Address, Switch: f.Switch, Root: f.Root, NUMA: f.NUMA, Pool: f.Pool, Slots: f.Slots,
		Taints: f.Taints}
}

// addClaims puts each device of each claim in its place.
func (d *drawing) addClaims() {
	for _, c := range d.facts.Claims {
		for i := range c.Results {
			r := &c.Results[i]
			h := Allocation{Claim: c.Namespace + "/" + c.Name, Request: r.Request, Device: r.Device, Pods: c.Pods, ShareID: r.ShareID,
				Memory: r.Memory,
				Cores:  r.Cores, Shares: r.Shares, Slots: r.Slots, Bandwidth: r.Bandwidth, Admin: r.Admin}
			node, known := d.pools[poolKey{r.Driver, r.Pool}]
			if !known {
				h.Driver, h.Pool = r.Driver, r.Pool
				d.picture.Strays = append(d.picture.Strays, h)
				continue
			}
			if !d.place(node, r.Driver, &h, c) {
				h.Driver, h.Pool = r.Driver, r.Pool
				n := d.node(node)
				n.Gone = append(n.Gone, h)
			}
		}
	}
}

// place puts a hold on its device; false where the device is not published.
func (d *drawing) place(node, driver string, h *Allocation, c *Claim) bool {
	switch driver {
	case devices.Driver:
		g := d.gpus[node][devices.GPUOf(h.Device)]
		if g == nil && h.ShareID != "" {
			// gpu-plugin does not publish a shared GPU while it is full (gpus.withdrawFullAfter): the claims alone show it.
			g = d.gpu(node, devices.GPUOf(h.Device))
			g.full = true
		}
		if g == nil || !g.describe(h) {
			return false
		}
		g.Holds = append(g.Holds, *h)
	case dra.Driver:
		p := d.ports[node][h.Device]
		if p == nil {
			return false
		}
		h.Form = "port"
		p.Holds = append(p.Holds, *h)
	case computedomain.Driver:
		if !d.imex[node][h.Device] {
			return false
		}
		if h.Form = strings.TrimRight(h.Device, "-0123456789"); c.Domain != "" {
			h.Domain = c.Namespace + "/" + c.Domain
		}
		n := d.node(node)
		n.IMEX = append(n.IMEX, *h)
	default:
		return false
	}
	return true
}

// describe returns the form in which a claim has a device of the GPU; false if the GPU has no such device.
func (g *gpu) describe(h *Allocation) bool {
	if p := g.placements[h.Device]; p != nil {
		h.Form, h.Memory, h.Start, h.Size = "MIG "+p.Profile, p.Memory, p.Start, p.Size
		return true
	}
	f := g.forms[h.Device]
	if f == nil {
		h.Form = "share"
		return g.full && h.ShareID != ""
	}
	switch {
	case !f.Multiple, f.ExclusiveByMemory && f.Memory > 0 && h.Memory >= f.Memory:
		h.Form, h.Memory = "whole", f.Memory
	default:
		h.Form = "share"
	}
	return true
}

// addNodes sorts the collected objects by node, and adds every node of the cluster with a part in the fabric to the picture.
func (d *drawing) addNodes() {
	for name, known := range d.labels {
		if known.Clique != "" || known.Domain != "" {
			d.node(name)
		}
	}
	for name, n := range d.nodes {
		var full []string
		for _, g := range d.gpus[name] {
			if len(g.forms)+len(g.placements) == 0 && g.UUID == "" && !g.full { // a counter set without devices is no GPU
				continue
			}
			g.finish(n)
			n.GPUs = append(n.GPUs, g.GPUState)
			if g.full {
				full = append(full, g.Name)
			}
		}
		if len(full) > 0 {
			slices.SortFunc(full, natural)
			d.note(name, "claims have shares of "+strings.Join(full, ", ")+", which no ResourceSlice has: full (gpus.withdrawFullAfter), or lost")
		}
		slices.SortFunc(n.GPUs, func(a, b GPUState) int { return natural(a.Name, b.Name) })
		for _, p := range d.ports[name] {
			p.State = p.state()
			sortHolds(p.Holds)
			n.Ports = append(n.Ports, *p)
		}
		slices.SortFunc(n.Ports, func(a, b PortState) int {
			return cmp.Or(natural(a.Device, b.Device), cmp.Compare(a.Port, b.Port), strings.Compare(a.Name, b.Name))
		})
		sortHolds(n.IMEX)
		sortHolds(n.Gone)
		known := d.labels[name]
		switch {
		case known == nil:
			if len(d.labels) > 0 {
				d.note(name, "the cluster has no Node of this name, and its devices are still published")
			}
		case !known.Ready:
			d.note(name, "the node is not ready: "+known.Why)
		}
		if known != nil && known.Domain != "" {
			if domain := d.domains[known.Domain]; domain != "" {
				n.Domains = append(n.Domains, domain)
			}
		}
	}
}

// finish computes the available part of a GPU.
func (g *gpu) finish(n *NodeState) {
	for _, p := range g.placements {
		if offer := "MIG " + p.Profile; !slices.Contains(g.Offers, offer) {
			g.Offers = append(g.Offers, offer)
		}
	}
	slices.Sort(g.Offers)
	if g.Offers == nil {
		g.Offers = []string{}
	}
	if n.Clique == "" {
		n.Clique = g.Clique
	}
	if g.Clique == n.Clique {
		g.Clique = ""
	}
	sortHolds(g.Holds)
	// A fault of every placement of a GPU counts as a fault of the GPU.
	if len(g.forms) == 0 {
		g.taint(g.commonTaints())
	}
	g.State = g.state()
}

func (g *gpu) commonTaints() []Taint {
	var common []Taint
	first := true
	for _, p := range g.placements {
		if first {
			common, first = slices.Clone(p.Taints), false
			continue
		}
		common = slices.DeleteFunc(common, func(t Taint) bool { return !slices.Contains(p.Taints, t) })
	}
	return common
}

func (g *gpu) state() State {
	if s := byTaints(g.Taints, devices.Driver+"/"); s != "" {
		return s
	}
	held := slices.DeleteFunc(slices.Clone(g.Holds), func(h Allocation) bool { return h.Admin })
	switch {
	case len(held) == 0:
		return Free
	case g.room(held):
		return Partly
	}
	return Held
}

// byTaints is the state that a device's taints show, empty where they keep no claim away. The faults of a driver have their own
// domain.
func byTaints(taints []Taint, faults string) State {
	var worst State
	for _, t := range taints {
		switch {
		case t.Effect == "None":
		case strings.HasPrefix(t.Key, faults) && t.Key != dra.TaintDevicePlugin:
			return Broken
		default:
			worst = Tainted
		}
	}
	return worst
}

// room reports whether another claim can have a part of a GPU that claims use.
func (g *gpu) room(held []Allocation) bool {
	var shared, memory, cores, shares int64
	taken := map[int]bool{}
	for _, h := range held {
		switch {
		case h.Form == "whole":
			return false
		case h.Form == "share":
			shared++
			memory, cores, shares = memory+h.Memory, cores+h.Cores, shares+h.Shares
		}
		for i := range h.Size {
			taken[h.Start+i] = true
		}
	}
	if shared > 0 {
		return slices.ContainsFunc(slices.Collect(maps.Values(g.forms)), func(f *GPUFacts) bool {
			return f.Multiple && f.has(held) && (f.Shares == 0 || shares < f.Shares) && (f.Shares > 0 || memory < f.Memory || f.Memory == 0) &&
				(f.Cores == 0 || cores < f.Cores)
		})
	}
	for _, p := range g.placements {
		free := p.Size > 0 || !slices.ContainsFunc(held, func(h Allocation) bool { return h.Device == p.Device })
		for i := range p.Size {
			free = free && !taken[p.Start+i]
		}
		if free {
			return true
		}
	}
	return false
}

// has reports whether one of the holds has this form: shares of a GPU have one form at a time.
func (f *GPUFacts) has(held []Allocation) bool {
	return slices.ContainsFunc(held, func(h Allocation) bool { return h.Device == f.Device })
}

func (p *PortState) state() State {
	if s := byTaints(p.Taints, dra.Driver+"/"); s != "" {
		return s
	}
	var taken int64
	held := 0
	for _, h := range p.Holds {
		if !h.Admin {
			held, taken = held+1, taken+h.Slots
		}
	}
	switch {
	case held == 0:
		return Free
	case taken > 0 && taken < p.Slots:
		return Partly
	}
	return Held
}

func sortHolds(holds []Allocation) {
	slices.SortFunc(holds, func(a, b Allocation) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), strings.Compare(a.Claim, b.Claim), strings.Compare(a.Request, b.Request),
			strings.Compare(a.Device, b.Device), strings.Compare(a.ShareID, b.ShareID))
	})
}

// natural compares names so that node-2 comes before node-10.
func natural(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == 0 || y == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
		if c := cmp.Or(cmp.Compare(len(m), len(n)), strings.Compare(m, n)); c != 0 {
			return c
		}
		a, b = a[x:], b[y:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
