package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/plugin"
)

// Answer is the result of the command.
type Answer struct {
	Nodes []Node `json:"nodes"`
	// Precedence lists the sources that decide on the forms of a GPU, the strongest first.
	Precedence []string `json:"precedence"`
	// Waiting are the claims for GPUs that are not allocated.
	Waiting []Claim `json:"waiting"`
}

// Node is the state of a node's GPUs in the API.
type Node struct {
	Name string `json:"name"`
	GPUs int    `json:"gpus"`
	// Free are the GPUs that claims do not use.
	Free int `json:"free"`
	// Offers counts the GPUs by their published forms.
	Offers map[string]int `json:"offers"`
	// Says is the node's condition GPUForms.
	Says string `json:"says,omitempty"`

	devices []resourceapi.Device
	held    map[string]int64 // the counted shares of claims, by device; 0 for a device whose shares are not counted
	busy    map[string]bool  // by GPU
	// full are the GPUs of which claims have shares and that are not published, as gpus.withdrawFullAfter has it. The values are the classes
	// of these claims' requests.
	full map[string][]string
}

// Claim is a claim that waits.
type Claim struct {
	Name     string    `json:"name"` // namespace/name
	Requests []Request `json:"requests"`
}

// Request reports why a request, or one of its alternatives, waits.
type Request struct {
	Name  string `json:"name"`
	Class string `json:"class"`
	Wants string `json:"wants"`
	// Offered are the GPUs that offer the form. Free are the ones that claims do not use, or that have counted shares left.
	Offered int    `json:"offered"`
	Free    int    `json:"free"`
	Answer  string `json:"answer"`
}

// shown is how many nodes an answer lists.
const shown = 3

// Explain returns the offer of each node. For each waiting claim it reports where its form is offered, or could be.
func Explain(c *Cluster) Answer {
	nodes := nodesOf(c)
	answer := Answer{Precedence: devices.Precedence()}
	for i := range c.Claims {
		if waiting, ours := explainClaim(&c.Claims[i], c.Classes, nodes); ours {
			answer.Waiting = append(answer.Waiting, waiting)
		}
	}
	for _, n := range nodes {
		answer.Nodes = append(answer.Nodes, *n)
	}
	return answer
}

func nodesOf(c *Cluster) []*Node {
	byName := map[string]*Node{}
	pools := map[string]*Node{}
	newest := map[string]int64{}
	for _, s := range c.Slices {
		newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	for _, s := range c.Slices {
		if s.Spec.NodeName == nil || s.Spec.Pool.Generation < newest[s.Spec.Pool.Name] {
			continue
		}
		name := *s.Spec.NodeName
		if byName[name] == nil {
			byName[name] = &Node{Name: name, Offers: map[string]int{}, held: map[string]int64{}, busy: map[string]bool{},
				full: map[string][]string{}}
		}
		byName[name].devices = append(byName[name].devices, s.Spec.Devices...)
		pools[s.Spec.Pool.Name] = byName[name]
	}
	for i := range c.Claims {
		if c.Claims[i].Status.Allocation == nil {
			continue
		}
		for _, r := range c.Claims[i].Status.Allocation.Devices.Results {
			if n := pools[r.Pool]; r.Driver == devices.Driver && n != nil && (r.AdminAccess == nil || !*r.AdminAccess) {
				shares := r.ConsumedCapacity[devices.CapShares]
				n.held[r.Device] += shares.Value()
				n.busy[devices.GPUOf(r.Device)] = true
				if r.ShareID != nil && !n.publishes(r.Device) {
					n.full[r.Device] = append(n.full[r.Device], classOf(&c.Claims[i], r.Request))
				}
			}
		}
	}
	for i := range c.Nodes {
		if n := byName[c.Nodes[i].Name]; n != nil {
			n.Says = conditionOf(&c.Nodes[i])
		}
	}
	nodes := slices.SortedFunc(maps.Values(byName), func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		n.count()
	}
	return nodes
}

func (n *Node) publishes(device string) bool {
	return slices.ContainsFunc(n.devices, func(d resourceapi.Device) bool { return d.Name == device })
}

// classOf is the DeviceClass of a claim's request, or of its alternative (request/alternative); empty where the claim's spec is unknown.
func classOf(c *resourceapi.ResourceClaim, request string) string {
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil && r.Name == request {
			return r.Exactly.DeviceClassName
		}
		for _, a := range r.FirstAvailable {
			if r.Name+"/"+a.Name == request {
				return a.DeviceClassName
			}
		}
	}
	return ""
}

// count counts the node's GPUs.
func (n *Node) count() {
	offers := map[string]map[string]bool{}
	for _, d := range n.devices {
		gpu := devices.GPUOf(d.Name)
		if offers[gpu] == nil {
			offers[gpu] = map[string]bool{}
			n.GPUs++
			if !n.busy[gpu] {
				n.Free++
			}
		}
		offers[gpu][formOf(d)] = true
	}
	for device := range n.full {
		if gpu := devices.GPUOf(device); offers[gpu] == nil {
			offers[gpu] = map[string]bool{"shares, not published while full": true}
			n.GPUs++
		}
	}
	for _, forms := range offers {
		n.Offers[strings.Join(slices.Sorted(maps.Keys(forms)), "+")]++
	}
}

// formOf names a device's form in a word or two.
func formOf(d resourceapi.Device) string {
	text := func(name resourceapi.QualifiedName) string {
		if a := d.Attributes[name]; a.StringValue != nil {
			return *a.StringValue
		}
		return ""
	}
	switch form := devices.Form(text(devices.AttrType)); {
	case form == devices.MIG:
		return "MIG " + text(devices.AttrProfile)
	case form == devices.Whole:
		return devices.DescribeWhole(d)
	case text(devices.AttrVGPUProfile) != "":
		return "shares of " + text(devices.AttrVGPUProfile)
	case form == devices.Shared:
		return "shares"
	default:
		return text(devices.AttrType)
	}
}

func conditionOf(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == plugin.FormsCondition {
			return fmt.Sprintf("%s: %s", c.Reason, c.Message)
		}
	}
	return ""
}

// explainClaim explains a claim for GPUs that is not allocated; ours is false for any other claim.
func explainClaim(c *resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass, nodes []*Node) (out Claim, ours bool) {
	if c.Status.Allocation != nil || c.DeletionTimestamp != nil {
		return out, false
	}
	out.Name = c.Namespace + "/" + c.Name
	add := func(name, class string, own []resourceapi.DeviceSelector, capacity *resourceapi.CapacityRequirements) {
		found := classes[class]
		if found == nil {
			out.Requests = append(out.Requests, Request{Name: name, Class: class, Answer: "there is no DeviceClass of that name"})
			return
		}
		if want, mine := wantOf(found, own, capacity); mine {
			ours = true
			out.Requests = append(out.Requests, want.explain(name, class, nodes))
		}
	}
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil {
			add(r.Name, r.Exactly.DeviceClassName, r.Exactly.Selectors, r.Exactly.Capacity)
		}
		for _, s := range r.FirstAvailable {
			add(r.Name+"/"+s.Name, s.DeviceClassName, s.Selectors, s.Capacity)
		}
	}
	return out, ours
}

// explain reports where a form is offered, or could be.
func (w Want) explain(name, class string, nodes []*Node) Request {
	r := Request{Name: name, Class: class, Wants: w.String()}
	var offering, could []*Node
	for _, n := range nodes {
		offered, free := w.on(n, class)
		if r.Offered, r.Free = r.Offered+offered, r.Free+free; offered > 0 {
			offering = append(offering, n)
		} else if n.Free > 0 {
			could = append(could, n)
		}
	}
	switch {
	case r.Free > 0:
		r.Answer = fmt.Sprintf("%d GPUs offer it on %s, and claims hold nothing of %d of them, or not all shares: what keeps the pod from them "+
			"is not the form; see the pod's Events", r.Offered, named(offering), r.Free)
		return r
	case r.Offered > 0:
		r.Answer = fmt.Sprintf("%d GPUs offer it on %s, and claims hold something of each", r.Offered, named(offering))
	default:
		r.Answer = "no GPU offers it"
	}
	if len(could) == 0 {
		r.Answer += "; no other node has a GPU that no claim holds"
		return r
	}
	slices.SortStableFunc(could, func(a, b *Node) int { return b.Free - a.Free })
	r.Answer += fmt.Sprintf("; GPUs that no claim holds are offered in other forms on %s. To have it on the first: %s",
		named(could), w.remedy(could[0].Name))
	return r
}

// on counts a node's GPUs that offer the form, and those of them that are free or have counted shares left. A GPU that is not published
// while it is full offers it where claims of the same class have its shares.
func (w Want) on(n *Node, class string) (offered, free int) {
	seen := map[string]bool{}
	for _, d := range n.devices {
		if gpu := devices.GPUOf(d.Name); w.matches(d) && !seen[gpu] {
			seen[gpu] = true
			offered++
			if held := n.held[d.Name]; !n.busy[gpu] || 0 < held && held < devices.CountedShares(d) {
				free++
			}
		}
	}
	for device, classes := range n.full {
		if gpu := devices.GPUOf(device); slices.Contains(classes, class) && !seen[gpu] {
			seen[gpu] = true
			offered++
		}
	}
	return offered, free
}

// named lists the first nodes.
func named(nodes []*Node) string {
	var names []string
	for _, n := range nodes[:min(len(nodes), shown)] {
		names = append(names, fmt.Sprintf("%s (%d free)", n.Name, n.Free))
	}
	if more := len(nodes) - shown; more > 0 {
		names = append(names, fmt.Sprintf("%d more nodes", more))
	}
	return strings.Join(names, ", ")
}

// String is a table of the nodes, the precedence, and a paragraph for each claim that waits.
func (a Answer) String() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tGPUS\tFREE\tOFFERS\tCONDITION "+string(plugin.FormsCondition))
	for _, n := range a.Nodes {
		var offers []string
		for _, form := range slices.Sorted(maps.Keys(n.Offers)) {
			offers = append(offers, fmt.Sprintf("%d %s", n.Offers[form], form))
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\n", n.Name, n.GPUs, n.Free, strings.Join(offers, ", "),
			cmp.Or(n.Says, "none: gpu-plugin has not written it"))
	}
	_ = table.Flush() // into memory
	fmt.Fprintln(&out, "\nWhat decides on the forms of a GPU, the strongest first:")
	for i, line := range a.Precedence {
		fmt.Fprintf(&out, "%d. %s\n", i+1, line)
	}
	for _, c := range a.Waiting {
		fmt.Fprintf(&out, "\nClaim %s waits.\n", c.Name)
		for _, r := range c.Requests {
			fmt.Fprintf(&out, "  request %s, class %s", r.Name, r.Class)
			if r.Wants != "" {
				fmt.Fprintf(&out, ", asks for %s", r.Wants)
			}
			fmt.Fprintf(&out, ": %s.\n", r.Answer)
		}
	}
	return out.String()
}
