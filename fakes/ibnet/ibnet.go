// Package ibnet describes the InfiniBand network of fake nodes in the form of ibnetdiscover: leaf and spine switches, and each HCA's cable.
// Topograph's provider infiniband reads it, and ibsim, on which ibnetdiscover itself and the rest of infiniband-diags run.
package ibnet

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"gpufabric.io/fakes/profile"
)

// Options select the nodes and the switches.
type Options struct {
	Profile *profile.Profile
	// Nodes is how many machines there are.
	Nodes int
	// Names are the machines' names; empty: those of the profile.
	Names []string
	// Ports is the number of ports of a switch, half of which a leaf has for nodes.
	Ports int
}

// lastLID is the last unicast LID (InfiniBand architecture specification, volume 1, 4.1.3).
const lastLID = 0xbfff

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
	hosts   []port
}

// network is a fat tree with two levels, or one leaf: each leaf has one cable to each spine.
type network struct {
	Options
	leaves []leaf
	spines int
	hosts  int
}

// Write writes the network. A network that needs a third level of switches is refused.
func Write(out io.Writer, o Options) error {
	n, err := plan(o)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "#\n# Topology file: %d nodes of fakefabric's profile %s, %d leaf and %d spine switches of %d ports\n#\n",
		o.Nodes, o.Profile.Name, len(n.leaves), n.spines, o.Ports)
	for i := range n.spines {
		n.writeSpine(w, i)
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
	if o.Ports < 2 || o.Ports%2 != 0 || o.Ports > 254 {
		return nil, fmt.Errorf("a switch of %d ports: an even number from 2 to 254 is wanted", o.Ports)
	}
	if o.Nodes < 1 {
		return nil, fmt.Errorf("%d nodes: 1 or more are wanted", o.Nodes)
	}
	if len(o.Names) > 0 && len(o.Names) != o.Nodes {
		return nil, fmt.Errorf("%d names for %d nodes", len(o.Names), o.Nodes)
	}
	n := &network{Options: o}
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
	if n.hosts == 0 {
		return nil, fmt.Errorf("profile %s has no InfiniBand port with a link", o.Profile.Name)
	}
	if len(n.leaves) > 1 {
		n.spines = down
	}
	if len(n.leaves) > o.Ports {
		return nil, fmt.Errorf("%d nodes have %d leaf switches, and a spine of %d ports connects %d: use switches of more ports (144), or "+
			"fewer nodes", o.Nodes, len(n.leaves), o.Ports, o.Ports)
	}
	if n.lid(len(n.leaves)+n.spines-1) > lastLID {
		return nil, errors.New("the network has more ports than LIDs")
	}
	return n, nil
}

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
	return 1 + n.Nodes*len(n.Profile.Node(0).NICs) + number
}

// guid is that of a switch: leaves first, then spines.
func (n *network) guid(number int) uint64 {
	h := sha256.Sum256(fmt.Appendf(nil, "fakefabric/%s/switch", n.Profile.Name))
	return 0xfc6a1c0300000000 | uint64((binary.BigEndian.Uint32(h[:])+uint32(number)*0x9e3779b1)&0xffffff)
}

func (n *network) name(number int) string {
	if number < len(n.leaves) {
		return fmt.Sprintf("leaf-%d", number)
	}
	return fmt.Sprintf("spine-%d", number-len(n.leaves))
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

func (n *network) writeSpine(w io.Writer, i int) {
	n.writeSwitch(w, len(n.leaves)+i)
	for _, l := range n.leaves {
		n.writeCable(w, l.index+1, l.index, n.Ports/2+i+1, l.speed())
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
		n.writeCable(w, n.Ports/2+i+1, len(n.leaves)+i, l.index+1, l.speed())
	}
}

func (l leaf) writeHost(w io.Writer, i int, p port) {
	n := l.network
	fmt.Fprintf(w, "\nvendid=0x2c9\ndevid=0x%x\nsysimgguid=0x%x\ncaguid=0x%x\n", p.nic.Details().ID.Device, p.nic.NodeGUID, p.nic.NodeGUID)
	fmt.Fprintf(w, "Ca\t1 \"%s\"\t\t# \"%s\"\n", p.guid(), p.name)
	fmt.Fprintf(w, "[1](%x) \t\"S-%016x\"[%d]\t\t# lid %d lmc 0 \"%s\" lid %d %s\n", p.nic.PortGUID, n.guid(l.index), i+1, p.nic.LID,
		n.name(l.index), n.lid(l.index), speed(p.nic.RateGbps))
}
