package topology

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"gpufabric.io/drivers/fabric"
)

// colours are of Graphviz' X11 scheme.
func colour(s fabric.State) string {
	return map[fabric.State]string{fabric.Free: "white", fabric.Partly: "lightyellow", fabric.Held: "lightblue", fabric.Tainted: "lightgrey",
		fabric.Broken: "lightpink"}[s]
}

// writeDOT writes a graph for Graphviz: racks and nodes are clusters, GPUs and ports are attached to their PCIe switches, claims
// point at their devices.
func writeDOT(w io.Writer, p *fabric.Picture, nodes []string, _ time.Time) error {
	var out strings.Builder
	out.WriteString("graph fabric {\n  rankdir=LR; compound=true;\n" +
		"  node [shape=box, style=filled, fillcolor=white, fontname=\"sans-serif\"];\n")
	claims := map[string]bool{}
	for i := range p.Racks {
		r := &p.Racks[i]
		fmt.Fprintf(&out, "  subgraph %s {\n    label=%s;\n", quoted(fmt.Sprintf("cluster_rack_%d", i)), quoted(strings.TrimSpace("rack "+r.ID)))
		for j := range r.Nodes {
			if n := &r.Nodes[j]; len(nodes) == 0 || slices.Contains(nodes, n.Name) {
				dotNode(&out, n, claims)
			}
		}
		out.WriteString("  }\n")
	}
	out.WriteString("}\n")
	_, err := io.WriteString(w, out.String())
	return err
}

func dotNode(out *strings.Builder, n *fabric.NodeState, claims map[string]bool) {
	label := n.Name
	if len(n.Domains) > 0 {
		label += "\n" + strings.Join(n.Domains, ", ")
	}
	fmt.Fprintf(out, "    subgraph %s {\n      label=%s;\n", quoted("cluster_node_"+n.Name), quoted(label))
	switches := map[string]bool{}
	hang := func(device, root, pciSwitch string) {
		above := pciSwitch
		if above == "" {
			above = root
		}
		if above == "" {
			return
		}
		id := n.Name + "/" + above
		if !switches[id] {
			switches[id] = true
			fmt.Fprintf(out, "      %s [label=%s, shape=ellipse];\n", quoted(id), quoted(above))
		}
		fmt.Fprintf(out, "      %s -- %s;\n", quoted(id), quoted(device))
	}
	hold := func(device string, holds []fabric.Allocation) {
		for _, h := range holds {
			id := "claim/" + h.Claim
			if !claims[id] {
				claims[id] = true
				fmt.Fprintf(out, "      %s [label=%s, shape=note];\n", quoted(id), quoted(holder(h)))
			}
			fmt.Fprintf(out, "      %s -- %s [label=%s];\n", quoted(id), quoted(device), quoted(h.Form))
		}
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		id := n.Name + "/" + g.Name
		fmt.Fprintf(out, "      %s [label=%s, fillcolor=%s];\n", quoted(id), quoted(g.Name+"\n"+g.Product), colour(g.State))
		hang(id, g.Root, g.Switch)
		hold(id, g.Holds)
	}
	for i := range n.Ports {
		p := &n.Ports[i]
		id := n.Name + "/" + p.Name
		fmt.Fprintf(out, "      %s [label=%s, fillcolor=%s];\n", quoted(id), quoted(fmt.Sprintf("%s\n%d Gb/s", p.Device, p.RateGbps)),
			colour(p.State))
		hang(id, p.Root, p.Switch)
		hold(id, p.Holds)
	}
	out.WriteString("    }\n")
}

// quoted makes an ID or a label of DOT, in which a line break is \n.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", "").Replace(text) + `"`
}
