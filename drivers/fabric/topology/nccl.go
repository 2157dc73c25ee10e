package topology

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpufabric.io/drivers/fabric"
)

// The elements of NCCL's topology file, version 1 (src/graph/xml.cc of NCCL 2.30). Only published attributes are written. NCCL reads
// the rest (links, CPUs, compute capability, NVLink) from the container's sysfs and from NVML for each element of the file. A NIC has
// no <net>: NCCL adds it, and reads the NIC's links only then.
type (
	ncclSystem struct {
		XMLName xml.Name  `xml:"system"`
		Version int       `xml:"version,attr"`
		Name    string    `xml:"name,attr"`
		CPUs    []ncclCPU `xml:"cpu"`
	}
	ncclCPU struct {
		NUMA int       `xml:"numaid,attr"`
		PCI  []ncclPCI `xml:"pci"`
	}
	ncclPCI struct {
		BusID string    `xml:"busid,attr"`
		Class string    `xml:"class,attr"`
		GPU   *struct{} `xml:"gpu"`
		NIC   *struct{} `xml:"nic"`
		PCI   []ncclPCI `xml:"pci"`
	}
)

// Classes of PCI functions, as far as NCCL compares them.
const (
	classSwitch = "0x060400"
	classGPU    = "0x03"
	classNIC    = "0x02"
)

// pciAddress is domain:bus:device.function as the kernel writes it. Anything else in an attribute is no address.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// writeNCCL writes the named nodes' GPUs and NICs by NUMA node and PCIe switch, as a file for NCCL_TOPO_FILE. There is one node.
func writeNCCL(w io.Writer, p *fabric.Picture, nodes []string, _ time.Time) error {
	for n := range nodesOf(p) {
		if slices.Contains(nodes, n.Name) {
			return WriteNCCL(w, n)
		}
	}
	return nil
}

// WriteNCCL writes a node's GPUs and NICs by NUMA node and PCIe switch, as a file for NCCL_TOPO_FILE.
func WriteNCCL(w io.Writer, n *fabric.NodeState) error {
	cpus := map[int]map[string][]ncclPCI{} // by NUMA node and switch
	seen := map[string]bool{}              // a NIC with two ports is one function
	add := func(numa int, root, above string, f ncclPCI) {
		if !pciAddress.MatchString(f.BusID) || seen[f.BusID] {
			return
		}
		seen[f.BusID] = true
		if cpus[numa] == nil {
			cpus[numa] = map[string][]ncclPCI{}
		}
		if !belowSwitch(f.BusID, root, above) {
			above = ""
		}
		cpus[numa][above] = append(cpus[numa][above], f)
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		add(g.NUMA, g.Root, g.Switch, ncclPCI{BusID: g.PCI, Class: classGPU, GPU: &struct{}{}})
	}
	for i := range n.Ports {
		port := &n.Ports[i]
		add(port.NUMA, port.Root, port.Switch, ncclPCI{BusID: port.PCI, Class: classNIC, NIC: &struct{}{}})
	}
	if len(seen) == 0 {
		return fmt.Errorf("node %s: the drivers do not publish a GPU or a NIC with a PCI address there, so a file for NCCL would be "+
			"empty", n.Name)
	}
	out := ncclSystem{Version: 1, Name: line(n.Name)}
	for _, numa := range slices.Sorted(maps.Keys(cpus)) {
		cpu := ncclCPU{NUMA: numa, PCI: cpus[numa][""]}
		for above, functions := range cpus[numa] {
			if above != "" {
				slices.SortFunc(functions, byBusID)
				cpu.PCI = append(cpu.PCI, ncclPCI{BusID: above, Class: classSwitch, PCI: functions})
			}
		}
		slices.SortFunc(cpu.PCI, byBusID)
		out.CPUs = append(out.CPUs, cpu)
	}
	content, err := xml.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("write NCCL's XML: %w", err)
	}
	_, err = io.WriteString(w, string(content)+"\n")
	return err
}

func byBusID(a, b ncclPCI) int { return cmp.Compare(a.BusID, b.BusID) }

// belowSwitch reports whether the switch that a driver publishes for a function is a switch. Without a switch it is the root port,
// whose bus is the root's, or the function itself. NCCL has no element for these: the function is then below the CPU.
func belowSwitch(function, root, above string) bool {
	if !pciAddress.MatchString(above) || above == function {
		return false
	}
	return !strings.HasPrefix(above, strings.TrimPrefix(root, "pci")+":")
}

// ofPod returns a picture of the devices that a pod's claims have, all on one node, and that node's name.
func ofPod(p *fabric.Picture, pod string) (*fabric.Picture, string, error) {
	holders := map[string]bool{}
	held := func(holds []fabric.Allocation) bool {
		found := false
		for _, h := range holds {
			namespace, _, _ := strings.Cut(h.Claim, "/")
			for _, name := range h.Pods {
				holders[namespace+"/"+name] = true
				found = found || !h.Admin && namespace+"/"+name == pod
			}
		}
		return found
	}
	var few *fabric.NodeState
	for n := range nodesOf(p) {
		own := fabric.NodeState{Name: n.Name}
		for i := range n.GPUs {
			if held(n.GPUs[i].Holds) {
				own.GPUs = append(own.GPUs, n.GPUs[i])
			}
		}
		for i := range n.Ports {
			if held(n.Ports[i].Holds) {
				own.Ports = append(own.Ports, n.Ports[i])
			}
		}
		if len(own.GPUs)+len(own.Ports) > 0 {
			few = &own
		}
	}
	if few == nil {
		return nil, "", fmt.Errorf("--pod %q: claims of such a pod do not have a GPU or a "+
			"NIC%s", pod, similar(pod, slices.Sorted(maps.Keys(holders))))
	}
	return &fabric.Picture{Racks: []fabric.Rack{{Nodes: []fabric.NodeState{*few}}}, Missing: p.Missing}, few.Name, nil
}

// similar suggests names, for the end of an error.
func similar(name string, names []string) string {
	var near []string
	for _, n := range names {
		if strings.Contains(n, name) || strings.Contains(name, n) {
			near = append(near, n)
		}
	}
	if len(near) == 0 {
		return ""
	}
	return "; near ones are " + strings.Join(near[:min(len(near), 3)], ", ")
}
