package httpserver

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
)

// nodeAddresses reports whether a connection is of the node itself: from the loopback, from the address that it was made to (the kubelet
// and a pod in the node's network), or from the default gateway, which is the node's side of a pod's link with most network plugins. Where
// a plugin uses another address the kubelet's probes are one address among the others.
func nodeAddresses(routes string) func(remote, local netip.Addr) bool {
	if routes == "" {
		routes = "/proc/net/route"
	}
	gateways := map[netip.Addr]bool{}
	content, err := os.ReadFile(routes)
	if err != nil {
		content = nil // without the file no gateway is known
	}
	for line := range strings.Lines(string(content)) {
		// Iface Destination Gateway Flags ..., addresses in hexadecimal, the lowest byte first (net/ipv4/fib_trie.c, fib_route_seq_show).
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != "00000000" {
			continue
		}
		raw, err := hex.DecodeString(fields[2])
		if err != nil || len(raw) != 4 {
			continue
		}
		var address [4]byte
		binary.BigEndian.PutUint32(address[:], binary.LittleEndian.Uint32(raw))
		gateways[netip.AddrFrom4(address)] = true
	}
	return func(remote, local netip.Addr) bool {
		return remote.IsValid() && (remote.IsLoopback() || remote == local || gateways[remote])
	}
}
