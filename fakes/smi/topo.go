package smi

import (
	"errors"
	"fmt"
	"strings"

	"gpufabric.io/fakes/tree"
)

const topoLegend = `
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
`

// topo prints the matrix of distances between GPUs and NICs.
func (c *Command) topo(args []string) error {
	if len(args) > 0 && (args[0] == "-p2p" || args[0] == "--p2pstatus") {
		return c.p2p(args[1:])
	}
	if len(args) != 1 || args[0] != "-m" && args[0] != "--matrix" {
		return errors.New("topo: only -m and -p2p are supported")
	}
	r, err := tree.ReadRendered(c.Root)
	if err != nil {
		return fmt.Errorf("topo: %w", err)
	}
	devices, distances := r.Devices, r.Distances
	gpus, err := c.selected(nil)
	if err != nil {
		return err
	}
	var b strings.Builder
	names := label(devices)
	b.WriteString("\t" + underlined(strings.Join(names, "\t")+"\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID") + "\n")
	for i, n := range names {
		b.WriteString(n)
		for j := range names {
			b.WriteString("\t" + cell(gpus, distances, i, j))
		}
		if i < len(gpus) && strings.HasPrefix(n, "GPU") {
			core := &gpus[i].Core
			fmt.Fprintf(&b, "\t%s\t%s\t\t%s", list(core.CPUs[:]), list(core.MemoryNodes[:]), numaID(gpus[i]))
		}
		b.WriteString("\n")
	}
	b.WriteString(topoLegend)
	if len(devices) > len(gpus) {
		b.WriteString("\nNIC Legend:\n\n")
		for i, n := range names {
			if n != devices[i] {
				fmt.Fprintf(&b, "  %s: %s\n", n, devices[i])
			}
		}
	}
	return c.print("%s", b.String())
}

// underlined is a heading of a matrix, which the real command underlines on pipes and files too.
func underlined(heading string) string { return "\x1b[4m" + heading + "\x1b[0m" }

// label numbers the NICs; GPUs keep their names.
func label(devices []string) []string {
	var names []string
	nics := 0
	for _, d := range devices {
		if !strings.HasPrefix(d, "GPU") {
			d = fmt.Sprintf("NIC%d", nics)
			nics++
		}
		names = append(names, d)
	}
	return names
}

func cell(gpus []gpu, distances [][]string, i, j int) string {
	if i == j {
		return " X "
	}
	if i < len(gpus) && j < len(gpus) {
		if links := bonded(gpus[i], gpus[j]); links > 0 {
			return fmt.Sprintf("NV%d", links)
		}
	}
	return distances[i][j]
}

// bonded counts the active NVLinks between two GPUs; through switches all of them lead to every GPU.
func bonded(a, b gpu) int {
	n := 0
	if a.Core.P2P[b.index] == 0 {
		return 0
	}
	for _, l := range a.Links[:min(int(a.model.LinkCount), len(a.Links))] {
		direct := l.Domain == b.Core.Domain && l.Bus == b.Core.Bus && l.Device == b.Core.Device
		if l.Active != 0 && (l.RemoteType == remoteSwitch || direct) {
			n++
		}
	}
	return n
}

// remoteSwitch is NVML's NVML_NVLINK_DEVICE_TYPE_SWITCH.
const remoteSwitch = 2

func numaID(g gpu) string {
	if g.Core.MemoryNUMANode < 0 {
		return "N/A"
	}
	return fmt.Sprint(g.Core.MemoryNUMANode)
}

// list writes a set as 0-3,8.
func list(words []uint64) string {
	var parts []string
	first := -1
	flush := func(last int) {
		switch {
		case first < 0:
		case first == last:
			parts = append(parts, fmt.Sprint(first))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", first, last))
		}
		first = -1
	}
	total := len(words) * 64
	for i := range total {
		if words[i/64]>>(i%64)&1 == 0 {
			flush(i - 1)
		} else if first < 0 {
			first = i
		}
	}
	flush(total - 1)
	return strings.Join(parts, ",")
}
