// Package ibnet describes the InfiniBand network of fake nodes in the form of ibnetdiscover: leaf, spine and core switches, and each HCA's
// cable. Topograph's provider infiniband reads it, and ibsim, on which ibnetdiscover itself and the rest of infiniband-diags run.
package ibnet

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"

	"gpufabric.io/fakes/profile"
)

// Options select the nodes and the switches.
type Options struct {
	Profile *profile.Profile
	// Nodes is how many machines there are.
	Nodes int
	// Names are the machines' names; empty: those of the profile.
	Names []string
	// Ports is the number of ports of a switch, half of which a leaf has for nodes; 0: that of NVIDIA's switches for the nodes' rate.
	Ports int
}

// lastLID is the last unicast LID (InfiniBand architecture specification, volume 1, 4.1.3).
const lastLID = 0xbfff

// hostname is the form of a node's name, which is quoted in the output.
var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// port is a port of an HCA with its cable.
type port struct {
	nic  profile.NodeNIC
	name string // "HOST DEVICE", as the kernel's node description
}

// guid is the name by which ibnetdiscover calls the HCA.
func (p port) guid() string { return fmt.Sprintf("H-%016x", p.nic.NodeGUID) }

// leaf connects one rail of a group of nodes: their HCAs with one number.
type leaf struct {
	network *network
	index   int
	pod     int
	// inPod is its number in the pod.
	inPod int
	hosts []port
}

// network is a fat tree. In each pod, a leaf has one cable to each spine. Several pods have cores: the spines with one number in their pods
// share a group of cores, and each of them has as many cables to each core of the group as the core has ports for a pod.
type network struct {
	Options
	leaves []leaf
	// pods has the leaves of each, which follow each other.
	pods  [][]leaf
	hosts int
	// perNode is how many NICs a node has.
	perNode int
	// spines is how many a pod has; 0 for a single leaf.
	spines int
	// cores is how many a group has; 0 for a single pod.
	cores int
	// parallel is how many cables a spine has to each core of its group, but the last one, which has the rest.
	parallel int
}

// Write writes the network: one leaf, two levels of switches, or three.
func Write(out io.Writer, o Options) error {
	n, err := plan(o)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "#\n# Topology file: %d nodes of fakefabric's profile %s, %d leaf, %d spine and %d core switches of %d ports\n#\n",
		o.Nodes, o.Profile.Name, len(n.leaves), n.allSpines(), n.cores*n.spines, n.Ports)
	for group := range n.spines {
		for i := range n.cores {
			n.writeCore(w, group, i)
		}
	}
	for pod := range n.pods {
		for i := range n.spines {
			n.writeSpine(w, pod, i)
		}
	}
	for _, l := range n.leaves {
		l.write(w)
	}
	for _, l := range n.leaves {
		for i, host := range l.hosts {
			l.writeHost(w, i, host)
		}
	}
	return w.Flush()
}

func plan(o Options) (*network, error) {
	if o.Nodes < 1 {
		return nil, fmt.Errorf("%d nodes: want 1 or more", o.Nodes)
	}
	if o.Ports == 0 {
		o.Ports = portsOf(o.Profile)
	}
	if o.Ports < 2 || o.Ports%2 != 0 || o.Ports > 254 {
		return nil, fmt.Errorf("a switch of %d ports: want an even number from 2 to 254", o.Ports)
	}
	if len(o.Names) > 0 && len(o.Names) != o.Nodes {
		return nil, fmt.Errorf("%d names for %d nodes", len(o.Names), o.Nodes)
	}
	seen := map[string]bool{}
	for _, name := range o.Names {
		if !hostname.MatchString(name) || seen[name] {
			return nil, fmt.Errorf("name %q of a node: want letters, digits, dots and hyphens, and each name once", name)
		}
		seen[name] = true
	}
	n := &network{Options: o, perNode: len(o.Profile.Node(0).NICs)}
	if len(n.ports(0)) == 0 {
		return nil, fmt.Errorf("profile %s has no InfiniBand port with a link", o.Profile.Name)
	}
	if most := lastLID / n.perNode; o.Nodes > most { // before all of them are made
		return nil, fmt.Errorf("%d nodes of %d NICs: a network has LIDs for %d such nodes at most", o.Nodes, n.perNode, most)
	}
	down := o.Ports / 2
	for first := 0; first < o.Nodes; first += down {
		rails := map[int]int{} // the leaf of each rail
		for node := first; node < min(first+down, o.Nodes); node++ {
			for rail, p := range n.ports(node) {
				at, has := rails[rail]
				if !has {
					at = len(n.leaves)
					rails[rail] = at
					n.leaves = append(n.leaves, leaf{network: n, index: at})
				}
				n.leaves[at].hosts = append(n.leaves[at].hosts, p)
				n.hosts++
			}
		}
	}
	if err := n.connect(); err != nil {
		return nil, err
	}
	if n.lid(len(n.leaves)+n.allSpines()+n.spines*n.cores-1) > lastLID {
		return nil, errors.New("the network has more ports than LIDs")
	}
	return n, nil
}

// portsOf is the number of ports of NVIDIA's switches for the fastest HCA of a profile: Quantum-X800 (XDR), Quantum-2 (NDR), Quantum (HDR),
// and Switch-IB 2 (EDR).
func portsOf(p *profile.Profile) int {
	gbps := 0
	for _, nic := range p.NICs {
		if nic.Link == "InfiniBand" {
			gbps = max(gbps, nic.RateGbps)
		}
	}
	switch {
	case gbps >= 800:
		return 144
	case gbps >= 400:
		return 64
	case gbps >= 200:
		return 40
	default:
		return 36
	}
}

// connect puts the leaves into pods, and decides on the spines and cores.
func (n *network) connect() error {
	down, size := n.Ports/2, len(n.leaves)
	if len(n.leaves) > 1 {
		n.spines = down
	}
	if len(n.leaves) > n.Ports { // a spine has half of its ports for cores
		size = down
		if rails := len(n.ports(0)); rails < down {
			size -= down % rails // the rails of a group of nodes are in one pod
		}
	}
	for i := range n.leaves {
		l := &n.leaves[i]
		l.pod, l.inPod = i/size, i%size
	}
	for first := 0; first < len(n.leaves); first += size {
		n.pods = append(n.pods, n.leaves[first:min(first+size, len(n.leaves))])
	}
	if len(n.pods) > n.Ports {
		return fmt.Errorf("%d nodes need %d pods of %d leaf switches, and three levels of switches of %d ports connect %d: use switches of more "+
			"ports (144), or fewer nodes", n.Nodes, len(n.pods), size, n.Ports, n.Ports)
	}
	if len(n.pods) > 1 {
		n.parallel = min(n.Ports/len(n.pods), down)
		n.cores = (down + n.parallel - 1) / n.parallel
	}
	return nil
}

func (n *network) allSpines() int { return n.spines * len(n.pods) }

// spine is the number of a switch: leaves are first, then the spines of each pod.
func (n *network) spine(pod, i int) int { return len(n.leaves) + pod*n.spines + i }

// core is the number of a switch behind those of the spines.
func (n *network) core(group, i int) int { return len(n.leaves) + n.allSpines() + group*n.cores + i }

// ports are the node's InfiniBand ports with a link, in the order of its HCAs.
func (n *network) ports(node int) (all []port) {
	machine := n.Profile.Node(node)
	name := machine.Hostname
	if len(n.Names) > 0 {
		name = n.Names[node]
	}
	for _, nic := range machine.NICs {
		if nic.Link == "InfiniBand" && !nic.Down && nic.Physical < 0 {
			all = append(all, port{nic, name + " " + nic.Device})
		}
	}
	return all
}

// lid is the LID of a switch, behind those of the nodes.
func (n *network) lid(number int) int {
	return 1 + n.Nodes*n.perNode + number
}

// guid is the guid of a switch: leaves first, then spines, then cores.
func (n *network) guid(number int) uint64 {
	h := sha256.Sum256(fmt.Appendf(nil, "fakefabric/%s/switch", n.Profile.Name))
	return 0xfc6a1c0300000000 | uint64((binary.BigEndian.Uint32(h[:])+uint32(number)*0x9e3779b1)&0xffffff)
}

func (n *network) name(number int) string {
	spine, core := number-len(n.leaves), number-len(n.leaves)-n.allSpines()
	switch {
	case spine < 0:
		return fmt.Sprintf("leaf-%d", number)
	case core < 0:
		return fmt.Sprintf("spine-%d", spine)
	default:
		return fmt.Sprintf("core-%d", core)
	}
}

// speed is the name of four lanes of a rate.
func speed(gbps int) string {
	switch {
	case gbps >= 800:
		return "4xXDR"
	case gbps >= 400:
		return "4xNDR"
	case gbps >= 200:
		return "4xHDR"
	case gbps >= 100:
		return "4xEDR"
	default:
		return "4xFDR"
	}
}

// writeSwitch begins the record of a switch.
func (n *network) writeSwitch(w io.Writer, number int) {
	guid := n.guid(number)
	fmt.Fprintf(w, "\nvendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x%x\nswitchguid=0x%x(%x)\n", guid, guid, guid)
	fmt.Fprintf(w, "Switch\t%d \"S-%016x\"\t\t# \"%s\" enhanced port 0 lid %d lmc 0\n", n.Ports, guid, n.name(number), n.lid(number))
}

// writeCable writes a port of a switch with a cable to another switch.
func (n *network) writeCable(w io.Writer, port, other, otherPort int, speed string) {
	fmt.Fprintf(w, "[%d]\t\"S-%016x\"[%d]\t\t# \"%s\" lid %d %s\n", port, n.guid(other), otherPort, n.name(other), n.lid(other), speed)
}

func (n *network) writeSpine(w io.Writer, pod, i int) {
	n.writeSwitch(w, n.spine(pod, i))
	for _, l := range n.pods[pod] {
		n.writeCable(w, l.inPod+1, l.index, n.Ports/2+i+1, l.speed())
	}
	if n.cores == 0 {
		return
	}
	for up := range n.Ports / 2 {
		n.writeCable(w, n.Ports/2+up+1, n.core(i, up/n.parallel), pod*n.parallel+up%n.parallel+1, n.leaves[0].speed())
	}
}

// writeCore writes a core of the group that the spines with this number share.
func (n *network) writeCore(w io.Writer, group, i int) {
	n.writeSwitch(w, n.core(group, i))
	for pod := range n.pods {
		for up := i * n.parallel; up < min((i+1)*n.parallel, n.Ports/2); up++ {
			n.writeCable(w, pod*n.parallel+up%n.parallel+1, n.spine(pod, group), n.Ports/2+up+1, n.leaves[0].speed())
		}
	}
}

func (l leaf) speed() string { return speed(l.hosts[0].nic.RateGbps) }

func (l leaf) write(w io.Writer) {
	n := l.network
	n.writeSwitch(w, l.index)
	for i, p := range l.hosts {
		fmt.Fprintf(w, "[%d]\t\"%s\"[1](%x) \t\t# \"%s\" lid %d %s\n", i+1, p.guid(), p.nic.PortGUID, p.name, p.nic.LID, speed(p.nic.RateGbps))
	}
	for i := range n.spines {
		n.writeCable(w, n.Ports/2+i+1, n.spine(l.pod, i), l.inPod+1, l.speed())
	}
}

func (l leaf) writeHost(w io.Writer, i int, p port) {
	n := l.network
	fmt.Fprintf(w, "\nvendid=0x2c9\ndevid=0x%x\nsysimgguid=0x%x\ncaguid=0x%x\n", p.nic.Details().ID.Device, p.nic.NodeGUID, p.nic.NodeGUID)
	fmt.Fprintf(w, "Ca\t1 \"%s\"\t\t# \"%s\"\n", p.guid(), p.name)
	fmt.Fprintf(w, "[1](%x) \t\"S-%016x\"[%d]\t\t# lid %d lmc 0 \"%s\" lid %d %s\n", p.nic.PortGUID, n.guid(l.index), i+1, p.nic.LID,
		n.name(l.index), n.lid(l.index), speed(p.nic.RateGbps))
}
