package imexd

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"gpufabric.io/drivers/node/atomicfile"
)

// slotsPerStep is in which steps the list of peers grows. A rack of NVL72 has 18 nodes, so most domains never grow it; larger ones
// cost one restart of the daemons per step, since nvidia-imex reads the list only when it starts.
const slotsPerStep = 18

// Peer is an IMEX daemon of the domain, this node's own among them.
type Peer struct {
	// Index is the node's number in its clique, given by the controller.
	Index int
	// Address is the IP address that the daemon listens on.
	Address string
}

// Group is the daemons that work together: those of one clique of the domain.
type Group struct {
	// Clique is "<ClusterUUID>.<CliqueID>"; empty where this node has no fabric, and so needs no daemon.
	Clique string
	Peers  []Peer
}

// peerName is what the nodes file calls the peer with an index. Names rather than addresses stand there because the file is read
// only when nvidia-imex starts, while names are looked up again on SIGUSR1: peers come and go without a restart, which would take
// the memory mappings of running jobs with it.
func peerName(index int) string { return fmt.Sprintf("compute-domain-daemon-%04d", index) }

// slotsFor is how many names the nodes file has to list so that every peer has one. All daemons of a clique reach the same number
// from the same peers, as nvidia-imex wants (it marks nodes whose files differ).
func slotsFor(peers []Peer) int {
	highest := 0
	for _, peer := range peers {
		highest = max(highest, peer.Index)
	}
	return (highest/slotsPerStep + 1) * slotsPerStep
}

// nodesFile lists the names of all slots.
func nodesFile(slots int) []byte {
	var text bytes.Buffer
	for index := range slots {
		fmt.Fprintln(&text, peerName(index))
	}
	return text.Bytes()
}

// configFile is nvidia-imex's configuration for a spec.
func configFile(spec Spec) []byte {
	var text bytes.Buffer
	for _, line := range [][2]string{
		{"LOG_FILE_NAME", ""}, // the container's log
		{"LOG_USE_SYSLOG", "0"},
		{"DAEMONIZE", "0"},
		{"BIND_INTERFACE_IP", spec.BindAddress},
		{"SERVER_PORT", fmt.Sprint(spec.ServerPort)},
		{"IMEX_NODE_CONFIG_FILE", spec.NodesFile},
		// A domain's nodes come one by one; none waits for the others.
		{"IMEX_WAIT_FOR_QUORUM", "NONE"},
		{"IMEX_CMD_ENABLED", "1"},
		{"IMEX_CMD_BIND_INTERFACE_IP", spec.CommandAddress},
		{"IMEX_CMD_PORT", fmt.Sprint(spec.CommandPort)},
	} {
		fmt.Fprintf(&text, "%s=%s\n", line[0], line[1])
	}
	return text.Bytes()
}

const (
	hostsBegin = "# gpufabric: IMEX peers, kept by the imex-daemon\n"
	hostsEnd   = "# gpufabric: end\n"
)

// hostsWith returns the content of a hosts file with the peers' lines in place of those that were there.
func hostsWith(old []byte, peers []Peer) []byte {
	kept := string(old)
	if before, rest, found := strings.Cut(kept, hostsBegin); found {
		// Without its end the rest is a write that was cut short.
		_, after, _ := strings.Cut(rest, hostsEnd)
		kept = before + after
	}
	if kept != "" && !strings.HasSuffix(kept, "\n") {
		kept += "\n"
	}
	sorted := slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return a.Index - b.Index })
	var text strings.Builder
	text.WriteString(kept + hostsBegin)
	for _, peer := range sorted {
		fmt.Fprintf(&text, "%s %s\n", peer.Address, peerName(peer.Index))
	}
	text.WriteString(hostsEnd)
	return []byte(text.String())
}

// writeHosts puts the peers into the hosts file. A container's /etc/hosts is a mount, which cannot be renamed over, so the file is
// written in place; the daemon looks at it only after it is told to.
func writeHosts(path string, peers []Peer) error {
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read the hosts file: %w", err)
	}
	text := hostsWith(old, peers)
	if bytes.Equal(old, text) {
		return nil
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write the hosts file: %w", err)
	}
	return nil
}

// writeConfig writes the files that a start reads.
func writeConfig(spec Spec, slots int) error {
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return fmt.Errorf("make the domain's directory: %w", err)
	}
	var writer atomicfile.Writer
	if err := writer.Write(spec.NodesFile, nodesFile(slots), 0o644); err != nil {
		return err
	}
	return writer.Write(spec.ConfigFile, configFile(spec), 0o644)
}
