package smi

import (
	"fmt"
	"slices"
	"strings"
)

// nvlink prints the state (-s), the error counters (-e) or the capabilities (-c) of each NVLink.
func (c *Command) nvlink(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("nvlink: one of -s, -e and -c is needed; -i INDEX|UUID|PCI chooses GPUs")
	}
	var ids []string
	show := ""
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-s", "--status", "-e", "--errorcounters", "-c", "--capabilities":
			show = strings.TrimLeft(args[i], "-")[:1]
		case "-i", "--id":
			if i++; i >= len(args) {
				return fmt.Errorf("nvlink: option -i needs a value")
			}
			ids = split(args[i])
		default:
			return fmt.Errorf("nvlink: option %q is unknown; allowed are -s, -e, -c and -i", args[i])
		}
	}
	gpus, err := c.selected(ids)
	if err != nil {
		return err
	}
	for _, g := range gpus {
		if err := c.print("GPU %d: %s (UUID: %s)\n%s", g.index, g.name(), g.uuid(), g.links(show)); err != nil {
			return err
		}
	}
	return nil
}

// links are the lines below a GPU's name; a GPU without NVLink has none.
func (g gpu) links(show string) string {
	var b strings.Builder
	for k, l := range g.Links[:min(int(g.model.LinkCount), len(g.Links))] {
		switch {
		case show == "s" && l.Active == 0:
			fmt.Fprintf(&b, "\t Link %d: <inactive>\n", k)
		case show == "s":
			fmt.Fprintf(&b, "\t Link %d: %.5g GB/s\n", k, float64(g.model.LinkSpeed)/1000)
		case show == "e":
			fmt.Fprintf(&b, "\t Link %d: Replay Errors: %d\n\t Link %d: Recovery Errors: %d\n\t Link %d: CRC Errors: %d\n", k, l.Replays, k,
				l.Recoveries, k, l.CRCErrors)
		default:
			for _, capability := range []string{"P2P is supported", "Access to system memory supported", "P2P atomics supported",
				"System memory atomics supported"} {
				fmt.Fprintf(&b, "\t Link %d, %s: %v\n", k, capability, l.Active != 0)
			}
			fmt.Fprintf(&b, "\t Link %d, SLI is supported: false\n\t Link %d, Link is supported: %v\n", k, k, l.Active != 0)
		}
	}
	return b.String()
}

// p2p prints which GPUs reach each other: OK by NVLink, PCIe reads and writes, or NS where they do not.
func (c *Command) p2p(args []string) error {
	kinds := []string{"r", "w", "n", "a", "p"}
	if len(args) != 1 || !slices.Contains(kinds, args[0]) {
		return fmt.Errorf("topo -p2p: one of %s is needed: read, write, NVLink, atomics, proprietary", strings.Join(kinds, ", "))
	}
	gpus, err := c.selected(nil)
	if err != nil {
		return err
	}
	var b strings.Builder
	heading := ""
	for _, g := range gpus {
		heading += fmt.Sprintf("GPU%d\t", g.index)
	}
	b.WriteString(" \t" + underlined(heading) + "\n")
	for _, g := range gpus {
		fmt.Fprintf(&b, " GPU%d", g.index)
		for _, other := range gpus {
			switch {
			case g.place == other.place:
				b.WriteString("\tX")
			case g.Core.P2P[other.place] != 0:
				b.WriteString("\tOK")
			default:
				b.WriteString("\tNS")
			}
		}
		b.WriteString("\t\n")
	}
	return c.print("%s\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  GNS  = GPU not supported\n"+
		"  TNS  = Topology not supported\n  NS   = Not supported\n  U    = Unknown\n", b.String())
}
