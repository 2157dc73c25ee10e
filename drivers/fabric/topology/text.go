package topology

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/fabric"
)

// A GPU or a port is one character in a node's row.
func sign(s fabric.State) string {
	return map[fabric.State]string{fabric.Free: ".", fabric.Partly: "+", fabric.Held: "#", fabric.Tainted: "~", fabric.Broken: "x"}[s]
}

const legend = ". free   + partly held   # held   ~ tainted   x broken"

// writeText writes racks with a row for each node, or the named nodes in detail.
func writeText(w io.Writer, p *fabric.Picture, nodes []string, now time.Time) error {
	var out strings.Builder
	if len(nodes) == 0 {
		overview(&out, p, now)
	} else {
		for n := range nodesOf(p) {
			if slices.Contains(nodes, n.Name) {
				detail(&out, n)
			}
		}
	}
	for _, m := range p.Missing {
		fmt.Fprintf(&out, "\nNot shown: %s (%s).\n", m.Resource, line(m.Why))
	}
	var lines []string
	for l := range strings.Lines(out.String()) {
		lines = append(lines, strings.TrimRight(l, " \n"))
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// line describes an object in one line.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }

func overview(out *strings.Builder, p *fabric.Picture, now time.Time) {
	t := p.Totals
	fmt.Fprintf(out, "%s in %s. %s: %s. %s", count(t.Nodes, "node"), count(t.Racks, "rack"), count(t.GPUs, "GPU"),
		states(t.Free, t.Partly, t.Held, t.Tainted, t.Broken), count(t.Ports, "port"))
	if t.Down > 0 {
		fmt.Fprintf(out, ": %d down", t.Down)
	}
	fmt.Fprintf(out, ". %s", count(t.Domains, "domain"))
	if t.Forming > 0 {
		fmt.Fprintf(out, ": %d not ready", t.Forming)
	}
	fmt.Fprintf(out, ". %s.\n", count(t.Waiting, "waiting pod"))
	for i := range p.Racks {
		rack(out, i, &p.Racks[i])
	}
	if len(p.Racks) > 0 {
		fmt.Fprintf(out, "\n%s\n", legend)
	}
	across(out, p, now)
}

func rack(out *strings.Builder, number int, r *fabric.Rack) {
	switch r.Kind {
	case fabric.ByNVLink:
		fmt.Fprintf(out, "\nRack %d, NVLink fabric %s, %s\n", number+1, r.ID, count(len(r.Cliques), "clique"))
	case fabric.ByLabel:
		fmt.Fprintf(out, "\nRack %s, by its nodes' label\n", line(r.ID))
	default:
		fmt.Fprintf(out, "\nNodes of no known rack\n")
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  NODE\tGPUS\tPORTS\tCLIQUE\tDOMAINS\tHELD BY\tNOTES")
	for i := range r.Nodes {
		n := &r.Nodes[i]
		var gpus, ports strings.Builder
		for j := range n.GPUs {
			gpus.WriteString(sign(n.GPUs[j].State))
		}
		for j := range n.Ports {
			ports.WriteString(sign(n.Ports[j].State))
		}
		_, clique, _ := strings.Cut(n.Clique, ".")
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, cmp.Or(gpus.String(), "-"), cmp.Or(ports.String(), "-"), cmp.Or(clique, "-"),
			cmp.Or(strings.Join(n.Domains, ","), "-"), cmp.Or(few(holders(n)), "-"), notes(n))
	}
	_ = table.Flush() // into memory
}

// holders are the users of a node's GPUs and ports: pods, or claims that no pod uses yet.
func holders(n *fabric.NodeState) []string {
	var out []string
	add := func(holds []fabric.Allocation) {
		for _, h := range holds {
			if who := holder(h); !slices.Contains(out, who) {
				out = append(out, who)
			}
		}
	}
	for i := range n.GPUs {
		add(n.GPUs[i].Holds)
	}
	for i := range n.Ports {
		add(n.Ports[i].Holds)
	}
	add(n.Gone)
	for _, c := range n.Counted {
		for _, pod := range c.Pods {
			if !slices.Contains(out, pod) {
				out = append(out, pod)
			}
		}
	}
	return out
}

// holder names a hold's pod with its namespace, or its claim.
func holder(h fabric.Allocation) string {
	if len(h.Pods) == 0 {
		return "claim " + h.Claim
	}
	namespace, _, _ := strings.Cut(h.Claim, "/")
	who := namespace + "/" + h.Pods[0]
	if more := len(h.Pods) - 1; more > 0 {
		who += fmt.Sprintf(" and %d more", more)
	}
	return who
}

// few names the first of many.
func few(names []string) string {
	const most = 3
	return listing.First(names, most, ", ")
}

func notes(n *fabric.NodeState) string {
	var all []string
	if n.Cordoned {
		all = append(all, "cordoned")
	}
	all = append(all, n.Notes...)
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.State == fabric.Broken || g.State == fabric.Tainted {
			all = append(all, g.Name+": "+taints(g.Taints))
		}
	}
	for i := range n.Ports {
		if p := &n.Ports[i]; p.State == fabric.Broken {
			all = append(all, cmp.Or(p.Device, p.Name)+": "+taints(p.Taints))
		}
	}
	for _, h := range n.Gone {
		all = append(all, fmt.Sprintf("claim %s has %s, which is not published any more", h.Claim, h.Device))
	}
	return line(strings.Join(all, "; "))
}

func taints(all []fabric.Taint) string {
	var texts []string
	for _, t := range all {
		texts = append(texts, t.String())
	}
	return strings.Join(texts, ", ")
}

// across prints the objects across racks: domains, pools, the queue, and claims of devices that no node publishes.
func across(out *strings.Builder, p *fabric.Picture, now time.Time) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(p.Domains) > 0 {
		fmt.Fprintln(table, "\nDOMAIN\tREADY\tNODES\tJOINING\tWHY")
		for _, d := range p.Domains {
			fmt.Fprintf(table, "%s\t%s\t%d/%d\t%d\t%s\n", d.Name, yes(d.Ready), d.Up, max(d.Wanted, len(d.Members)), len(d.Joining), line(d.Why))
		}
	}
	if len(p.Pools) > 0 {
		fmt.Fprintln(table, "\nPOOL\tRESOURCE\tNODES\tHEALTHY\tREADY\tWHY")
		for _, o := range p.Pools {
			fmt.Fprintf(table, "%s\t%s\t%d\t%d/%d\t%s\t%s\n", o.Name, o.Resource, o.Nodes, o.Healthy, o.Devices, yes(o.Ready), line(o.Why))
		}
	}
	_ = table.Flush() // into memory
	byDemand(out, p.Layouts, now)
	if causes := fabric.Causes(p.Queue, now); len(causes) > 0 {
		fmt.Fprintln(table, "\nWAITING\tOLDEST\tFOR")
		for _, c := range causes {
			fmt.Fprintf(table, "%s\t%s\t%s\n", count(c.Pods, "pod"), c.Oldest, line(c.Cause))
		}
	}
	_ = table.Flush() // into memory
	for _, h := range p.Strays {
		fmt.Fprintf(out, "\nClaim %s has device %s of pool %s, which no node publishes.\n", h.Claim, h.Device, h.Pool)
	}
}

// byDemand writes the cuts of GPUs in progress, and of the other nodes with layouts by demand the latest decision.
func byDemand(out *strings.Builder, layouts []fabric.LayoutState, now time.Time) {
	if len(layouts) == 0 {
		return
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nNODE\tMIG BY DEMAND")
	for _, l := range layouts {
		for _, c := range l.Cuts {
			fmt.Fprintf(table, "%s\t%s is being cut, %s: it becomes %s (%s)\n", l.Node, line(c.GPU),
				now.Sub(time.Unix(c.Since, 0)).Round(time.Second), line(c.To), line(c.Why))
		}
		if len(l.Cuts) == 0 {
			fmt.Fprintf(table, "%s\t%s\n", l.Node, line(l.Decision))
		}
	}
	_ = table.Flush() // into memory
}

// detail is a node with its devices, in the order of their PCIe switches.
func detail(out *strings.Builder, n *fabric.NodeState) {
	fmt.Fprintf(out, "Node %s", n.Name)
	if n.Clique != "" {
		fmt.Fprintf(out, ", clique %s", n.Clique)
	}
	if len(n.Domains) > 0 {
		fmt.Fprintf(out, ", in %s", strings.Join(n.Domains, ", "))
	}
	if text := notes(n); text != "" {
		fmt.Fprintf(out, " (%s)", text)
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, place := range places(n) {
		fmt.Fprintf(out, "  %s\n", place)
		for i := range n.GPUs {
			if g := &n.GPUs[i]; placeOf(g.NUMA, g.Root, g.Switch) == place {
				fmt.Fprintf(table, "    %s %s\t%s\t%s\t%s\n", sign(g.State), g.Name, line(g.Product), size(g.Memory), strings.Join(g.Offers, ", "))
				holds(table, g.Holds)
			}
		}
		for i := range n.Ports {
			if p := &n.Ports[i]; placeOf(p.NUMA, p.Root, p.Switch) == place {
				fmt.Fprintf(table, "    %s %s port %d\t%s\t%d Gb/s\t%s\n", sign(p.State), cmp.Or(line(p.Device), p.Name), p.Port,
					line(cmp.Or(p.Interface, p.LinkLayer)), p.RateGbps, line(p.Pool))
				holds(table, p.Holds)
			}
		}
		_ = table.Flush() // into memory
	}
	if len(n.IMEX) > 0 {
		fmt.Fprintln(out, "  IMEX")
		holds(table, n.IMEX)
	}
	for _, c := range n.Counted {
		fmt.Fprintf(table, "    %s\t%d of %d requested\t%s\n", c.Resource, c.Requested, c.Allocatable, few(c.Pods))
	}
	_ = table.Flush() // into memory
	fmt.Fprintf(out, "  %s\n\n", legend)
}

func holds(table io.Writer, all []fabric.Allocation) {
	for _, h := range all {
		var parts []string
		if h.Memory > 0 {
			parts = append(parts, size(h.Memory))
		}
		for _, part := range []struct {
			n    int64
			unit string
		}{{h.Cores, "% of the cores"}, {h.Shares, " shares"}, {h.Slots, " slots"}, {h.Bandwidth, " Gb/s"}} {
			if part.n > 0 {
				parts = append(parts, strconv.FormatInt(part.n, 10)+part.unit)
			}
		}
		fmt.Fprintf(table, "        %s\t%s\t%s\tclaim %s\n", cmp.Or(h.Form, h.Device), strings.Join(parts, ", "), holder(h), h.Claim)
	}
}

// placeOf names the place of a device on the PCI bus.
func placeOf(numa int, root, pciSwitch string) string {
	var parts []string
	if numa >= 0 {
		parts = append(parts, fmt.Sprintf("NUMA node %d", numa))
	}
	if root != "" {
		parts = append(parts, "PCIe root "+line(root))
	}
	if pciSwitch != "" {
		parts = append(parts, "switch "+line(pciSwitch))
	}
	return cmp.Or(strings.Join(parts, ", "), "no place published")
}

func places(n *fabric.NodeState) []string {
	var out []string
	for i := range n.GPUs {
		out = append(out, placeOf(n.GPUs[i].NUMA, n.GPUs[i].Root, n.GPUs[i].Switch))
	}
	for i := range n.Ports {
		out = append(out, placeOf(n.Ports[i].NUMA, n.Ports[i].Root, n.Ports[i].Switch))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func size(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(bytes)/(1<<30), 'f', 1, 64) + " GiB"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func states(free, partly, held, tainted, broken int) string {
	out := []string{fmt.Sprintf("%d free", free)}
	for _, s := range []struct {
		n    int
		name string
	}{{partly, "partly held"}, {held, "held"}, {tainted, "tainted"}, {broken, "broken"}} {
		if s.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", s.n, s.name))
		}
	}
	return strings.Join(out, ", ")
}
