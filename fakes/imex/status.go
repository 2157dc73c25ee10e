package imex

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// State is a daemon's own state.
type State string

// The states, in the order a daemon goes through them.
const (
	StateInitializing State = "INITIALIZING"
	StateStartingAuth State = "STARTING_AUTH_SERVER"
	StateWaitPeers    State = "WAITING_FOR_PEERS"
	StateWaitRecovery State = "WAITING_FOR_RECOVERY"
	StateInitGPU      State = "INIT_GPU"
	StateReady        State = "READY"
	StateShuttingDown State = "SHUTTING_DOWN"
	StateUnavailable  State = "UNAVAILABLE"
)

// Connection is the state of the connection from one node to another.
type Connection string

// The states of a connection; the letter of each is in the matrix of `nvidia-imex-ctl -N`.
const (
	Invalid         Connection = "INVALID"           // I: unknown, the node cannot be queried
	NeverConnected  Connection = "NEVER_CONNECTED"   // N
	Recovering      Connection = "RECOVERING"        // R: lost, less than the grace time ago
	Disconnected    Connection = "DISCONNECTED"      // D: lost for longer
	VersionMismatch Connection = "VERSION_MISMATCH"  // !V!
	NodeMapMismatch Connection = "NODE_MAP_MISMATCH" // !M!: the two nodes' lists differ
	Connected       Connection = "CONNECTED"         // C
)

func (c Connection) letter() string {
	switch c {
	case VersionMismatch:
		return "!V!"
	case NodeMapMismatch:
		return "!M!"
	case "":
		return "I"
	}
	return string(c[:1])
}

// Domain is the state of all nodes together.
type Domain string

// The states of a domain.
const (
	DomainUp       Domain = "UP"       // every node is READY and connected with every other
	DomainDegraded Domain = "DEGRADED" // several nodes are READY and connected, but not all
	DomainDown     Domain = "DOWN"
)

// Status is the answer to `nvidia-imex-ctl -N -j`. Keys of the maps are the nodes' places in the list, in decimal.
type Status struct {
	Nodes     map[string]NodeStatus `json:"nodes"`
	Timestamp string                `json:"timestamp"`
	Status    Domain                `json:"status"`
	// Self is the queried node's own key, empty when its address is not in the list; it is not part of the real command's answer.
	Self string `json:"-"`
	// Local is the queried daemon's own state.
	Local State `json:"-"`
}

// NodeStatus is one node as the queried daemon sees it.
type NodeStatus struct {
	Status      State                       `json:"status"`
	Host        string                      `json:"host"`
	HostName    string                      `json:"hostName"`
	Version     string                      `json:"version"`
	Connections map[string]ConnectionStatus `json:"connections"`
}

// ConnectionStatus is one node's connection to another.
type ConnectionStatus struct {
	Host    string     `json:"host"`
	Status  Connection `json:"status"`
	Changed bool       `json:"changed"`
}

// WriteJSON writes the output of `-N -j`.
func (s Status) WriteJSON(w io.Writer) error {
	return json.NewEncoder(w).Encode(s)
}

const legend = `Connectivity Table Legend:
I - Invalid: the node was not reachable, nothing is known of its connections
N - Never connected
R - Recovering: lost, within the grace time
D - Disconnected: lost for longer than the grace time
!V! - Version mismatch
!M! - Node map mismatch: the nodes' configuration files differ
C - Connected
`

// WriteText writes the output of `-N`: the nodes, the matrix of connections and the domain's state.
func (s Status) WriteText(w io.Writer, hostNames bool) error {
	var b strings.Builder
	b.WriteString(legend + "\n" + s.Timestamp + "\n")
	s.writeNodes(&b, hostNames)
	b.WriteString("\nNodes From\\To")
	for i := range len(s.Nodes) {
		fmt.Fprintf(&b, "  %-3d", i)
	}
	for i := range len(s.Nodes) {
		fmt.Fprintf(&b, "\n%13d", i)
		for j := range len(s.Nodes) {
			fmt.Fprintf(&b, "  %-3s", s.Nodes[fmt.Sprint(i)].Connections[fmt.Sprint(j)].Status.letter())
		}
	}
	fmt.Fprintf(&b, "\nDomain State: %s\n", s.Status)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteNodes writes the output of `-n`: the nodes without the matrix.
func (s Status) WriteNodes(w io.Writer, hostNames bool) error {
	var b strings.Builder
	s.writeNodes(&b, hostNames)
	_, err := io.WriteString(w, b.String())
	return err
}

func (s Status) writeNodes(b *strings.Builder, hostNames bool) {
	b.WriteString("Nodes:\n")
	for i := range len(s.Nodes) {
		key := fmt.Sprint(i)
		n, mark := s.Nodes[key], " "
		if key == s.Self {
			mark = "*"
		}
		fmt.Fprintf(b, "Node #%-2d%s - %-15s - %-20s - Version: %s", i, mark, n.Host, n.Status, n.Version)
		if hostNames {
			fmt.Fprintf(b, " - Hostname: %s", n.HostName)
		}
		b.WriteString("\n")
	}
}

// timestamp has the form the real command uses.
func timestamp(t time.Time) string { return t.Format("1/2/2006 15:04:05.000") }

// domain computes the state of all nodes from that of each.
func domain(nodes map[string]NodeStatus) Domain {
	ready, connected, pairs := 0, 0, 0
	for i, n := range nodes {
		if n.Status == StateReady {
			ready++
		}
		for j := range nodes {
			if i == j {
				continue
			}
			pairs++
			if n.Connections[j].Status == Connected {
				connected++
			}
		}
	}
	switch {
	case len(nodes) > 0 && ready == len(nodes) && connected == pairs:
		return DomainUp
	case ready >= 2 && connected > 0:
		return DomainDegraded
	}
	return DomainDown
}
