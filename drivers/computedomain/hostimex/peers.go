package hostimex

import (
	"context"
	"fmt"
	"slices"

	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/hardware/imex"
)

// named is how many nodes a message names.
const named = 5

// Peer is a node of a domain.
type Peer struct {
	Name string
	// Addresses are the Node object's: addresses and host names.
	Addresses []string
}

// is reports whether a line of a service's list, or the host name that its node reports, is this node.
func (p Peer) is(node imex.Node) bool {
	names := append([]string{p.Name}, p.Addresses...)
	return slices.Contains(names, node.Host) || node.HostName != "" && slices.Contains(names, node.HostName)
}

// Peers reports whether the service can be connected with those of other nodes of a domain, and if not why. It reports causes for
// which two services never connect. A peer that is not connected yet is no finding, since a service is READY without it. An error:
// the list could not be read.
//
// Lists may have addresses of a network that is not in Kubernetes. Where the list lacks even the own node, by the names and
// addresses of its Node object, no other node counts as missing.
func (s *Service) Peers(ctx context.Context, own Peer, others []Peer) (Finding, error) {
	control, err := s.control()
	if err != nil {
		return Finding{}, err
	}
	nodes, err := control.Nodes(ctx)
	if err != nil {
		return Finding{}, err
	}
	at := slices.IndexFunc(nodes, own.is)
	if at < 0 {
		return Finding{}, fmt.Errorf("the list of the node's nvidia-imex (%d lines) does not have a name or address of node %s, so its nodes "+
			"cannot be identified", len(nodes), own.Name)
	}
	return judge(nodes, nodes[at], others), nil
}

// judge looks for others in the list of a service, and at its connections with them.
func judge(nodes []imex.Node, own imex.Node, others []Peer) Finding {
	var missing, foreign, versions []string
	for _, other := range others {
		at := slices.IndexFunc(nodes, other.is)
		if at < 0 {
			missing = append(missing, other.Name)
			continue
		}
		for _, connection := range own.Connections {
			if connection.Host != nodes[at].Host {
				continue
			}
			switch connection.Status {
			case imex.OtherVersion:
				versions = append(versions, fmt.Sprintf("%s (%s)", other.Name, nodes[at].Version))
			case imex.OtherNodes:
				foreign = append(foreign, other.Name)
			}
		}
	}
	const remedy = "write all nodes of the NVLink clique into the file that IMEX_NODE_CONFIG_FILE names " +
		"(/etc/nvidia-imex/nodes_config.cfg), the same on each of them, and start nvidia-imex again on each when no job runs there"
	switch {
	case len(missing) > 0:
		return found(NodesMissing, "the node's nvidia-imex lists %d nodes, but not these of the domain: %s: %s", len(nodes),
			list(missing), remedy)
	case len(foreign) > 0:
		return found(NodesMissing, "the node's nvidia-imex and those of these nodes of the domain have different lists of nodes, and refuse "+
			"each other: %s: %s", list(foreign), remedy)
	case len(versions) > 0:
		return found(VersionMismatch, "the node's nvidia-imex is of version %s, and refuses those of these nodes of the domain: %s: bring all "+
			"nodes of the NVLink clique to one version of the driver and of nvidia-imex", own.Version, list(versions))
	}
	return Finding{}
}

func list(names []string) string {
	slices.Sort(names)
	return listing.First(names, named, ", ")
}
