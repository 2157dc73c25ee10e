package imexd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"gpufabric.io/drivers/node/atomicfile"

	"gpufabric.io/drivers/hardware/imex"
)

// SlotsPerStep is the step by which the list of peers grows. A rack of NVL72 has 18 nodes, so most domains never grow it. Larger
// ones cost one restart of the daemons per step, since nvidia-imex reads the list only when it starts.
const SlotsPerStep = 18

// Peer is an IMEX daemon of the domain, this node's own among them.
type Peer struct {
	// Index is the node's number in its clique, given by the controller.
	Index int
	// Address is the IP address that the daemon listens on.
	Address string
}

// Group is the daemons that work together: those of one clique of the domain.
type Group struct {
	// Domain is the compute domain's UID.
	Domain string
	// Clique is "<ClusterUUID>.<CliqueID>"; empty where this node has no fabric, and so does not need a daemon.
	Clique string
	// Own is this node's index.
	Own int
	// Slots is the minimum number of names in the nodes file. All daemons of a clique must list the same names, so the controller sets
	// the number, and never lowers it.
	Slots int
	Peers []Peer
}

// slots is the number of names in the nodes file, so that every peer has one.
func (g Group) slots() int {
	highest := 0
	for _, peer := range g.Peers {
		highest = max(highest, peer.Index)
	}
	return max(SlotsFor(highest), g.Slots)
}

// SlotsFor is the number of slots for a clique with this highest index.
func SlotsFor(highest int) int { return (highest/SlotsPerStep + 1) * SlotsPerStep }

// startsAnother reports whether a daemon that was started for g cannot serve next, because something has changed that it reads only
// when it starts.
func (g Group) startsAnother(next Group) bool {
	return next.Domain != g.Domain || next.Clique != g.Clique || next.Own != g.Own || next.slots() != g.slots()
}

// peerName is the name of the peer with an index in the nodes file. The file has names instead of addresses because nvidia-imex
// reads it only when it starts, but looks names up again on SIGUSR1. So peers come and go without a restart, which would take the
// memory mappings of running jobs with it.
//
// The name contains the identity of the domain and clique. Daemons compare their lists and refuse a peer with another list
// (NODE_MAP_MISMATCH): a pod that got the address of an earlier one cannot become a peer in a foreign domain (#1447 of NVIDIA's DRA
// driver). The dot keeps resolvers from appending search domains first.
func (g Group) peerName(index int) string {
	sum := sha256.Sum256([]byte(g.Domain + "/" + g.Clique))
	return fmt.Sprintf("imex-%04d.%s", index, hex.EncodeToString(sum[:6]))
}

// nodesFile lists the names of all slots.
func nodesFile(group Group) []byte {
	var text bytes.Buffer
	for index := range group.slots() {
		fmt.Fprintln(&text, group.peerName(index))
	}
	return text.Bytes()
}

// nobody is the address of a slot without a node. A name without an address would be looked up in the cluster's DNS, by every daemon, for
// every free slot, each time (#1466 of NVIDIA's DRA driver). Loopback addresses never leave the pod: connections to them are refused at
// once, since daemons listen only on their pod's address. Each slot has its own address, because two names with one address look like one
// node.
func nobody(index int, likeThis netip.Addr) netip.Addr {
	if likeThis.Is6() {
		// IPv6 has but one loopback address. Routers drop packets to this prefix (RFC 6666, discard-only).
		return netip.AddrFrom16([16]byte{0: 0x01, 14: byte(index >> 8), 15: byte(index)}) //nolint:gosec // two bytes of it
	}
	return netip.AddrFrom4([4]byte{127, 255, byte(254 - index>>8), byte(index)}) //nolint:gosec // two bytes of it
}

// configFile is nvidia-imex's configuration for a spec.
func configFile(spec imex.Spec) []byte {
	var text bytes.Buffer
	for _, line := range slices.Concat([][2]string{
		{"LOG_FILE_NAME", ""}, // the container's log
		{"LOG_USE_SYSLOG", "0"},
		{"DAEMONIZE", "0"},
		{"BIND_INTERFACE_IP", spec.BindAddress},
		{"SERVER_PORT", fmt.Sprint(spec.ServerPort)},
		{"IMEX_NODE_CONFIG_FILE", spec.NodesFile},
		// After an unclean end the daemon waits for the peers that may still have memory of this node mapped. With NONE the driver would
		// allocate that memory again at once, possibly to another tenant. A normal start does not wait.
		{"IMEX_WAIT_FOR_QUORUM", "RECOVERY"},
		{"IMEX_CMD_ENABLED", "1"},
		{"IMEX_CMD_BIND_INTERFACE_IP", spec.CommandAddress},
		{"IMEX_CMD_PORT", fmt.Sprint(spec.CommandPort)},
	}, security(spec.Certificates)) {
		fmt.Fprintf(&text, "%s=%s\n", line[0], line[1])
	}
	return text.Bytes()
}

// security are the lines for daemons that authenticate each other. Each is server and client, with one certificate for both.
func security(certificates *imex.Certificates) [][2]string {
	if certificates == nil {
		return nil
	}
	key, cert, authority := certificates.Key(), certificates.Cert(), certificates.Authority()
	return [][2]string{
		{"IMEX_ENABLE_AUTH_ENCRYPTION", "1"}, {"IMEX_AUTH_ENCRYPTION_MODE", "SSL_TLS"}, {"IMEX_AUTH_SOURCE", "FILE"},
		{"IMEX_SERVER_KEY", key}, {"IMEX_SERVER_CERT", cert}, {"IMEX_SERVER_CERT_AUTH", authority},
		{"IMEX_CLIENT_KEY", key}, {"IMEX_CLIENT_CERT", cert}, {"IMEX_CLIENT_CERT_AUTH", authority},
		// The name in every daemon's certificate, whatever the list of nodes calls it.
		{"IMEX_SECURITY_TARGET_OVERRIDE", certificates.Name},
	}
}

const (
	hostsBegin = "# gpufabric: IMEX peers, kept by the imex-daemon\n"
	hostsEnd   = "# gpufabric: end\n"
)

// hostsWith returns the content of a hosts file with its group lines replaced by those of this group. Every slot has a line.
func hostsWith(old []byte, group Group, bindAddress string) []byte {
	kept := string(old)
	if before, rest, found := strings.Cut(kept, hostsBegin); found {
		// Without the end marker the rest is an interrupted write.
		_, after, _ := strings.Cut(rest, hostsEnd)
		kept = before + after
	}
	if kept != "" && !strings.HasSuffix(kept, "\n") {
		kept += "\n"
	}
	addresses := map[int]string{}
	for _, peer := range group.Peers {
		addresses[peer.Index] = peer.Address
	}
	own, _ := netip.ParseAddr(bindAddress) // imex.NewSpec has parsed it
	var text strings.Builder
	text.WriteString(kept + hostsBegin)
	for index := range group.slots() {
		address := addresses[index]
		if address == "" {
			address = nobody(index, own).String()
		}
		fmt.Fprintf(&text, "%s %s\n", address, group.peerName(index))
	}
	text.WriteString(hostsEnd)
	return []byte(text.String())
}

// writeHosts writes the group to the hosts file. A container's /etc/hosts is a mount, which a rename cannot replace, so the file is
// written in place. The daemon reads it only when it starts or is signalled.
func writeHosts(spec imex.Spec, group Group) error {
	old, err := os.ReadFile(spec.HostsFile)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read the hosts file: %w", err)
	}
	text := hostsWith(old, group, spec.BindAddress)
	if bytes.Equal(old, text) {
		return nil
	}
	if err := os.WriteFile(spec.HostsFile, text, 0o644); err != nil {
		return fmt.Errorf("write the hosts file: %w", err)
	}
	return nil
}

// writeConfig writes the files that the daemon reads at its start.
func writeConfig(spec imex.Spec, group Group) error {
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return fmt.Errorf("make the domain's directory: %w", err)
	}
	var writer atomicfile.Writer
	if err := writer.Write(spec.NodesFile, nodesFile(group), 0o644); err != nil {
		return err
	}
	return writer.Write(spec.ConfigFile, configFile(spec), 0o644)
}
