package httpserver

import (
	"net"
	"net/netip"
	"sync"
)

// limitedListener limits the connections that are open at a time. One too many closes the oldest of its address, or of the address that
// has most. So an address that opens connections without end closes its own, and a new connection of any other is served. Connections of
// the node have some more places.
type limitedListener struct {
	net.Listener
	connections, perAddress int
	node                    func(remote, local netip.Addr) bool

	mu sync.Mutex
	// open are the connections, the oldest first; those of the node are in reserved.
	open, reserved []*connection
}

// Limit bounds the connections of a listener that a server of another kind serves: in all, and of one address. Reserve more are the node's
// own.
func Limit(listener net.Listener, connections, perAddress int) net.Listener {
	return limit(listener, connections, perAddress, "")
}

// limit reads the node's gateways from the file routes; empty: /proc/net/route.
func limit(listener net.Listener, connections, perAddress int, routes string) *limitedListener {
	return &limitedListener{Listener: listener, connections: connections, perAddress: perAddress, node: nodeAddresses(routes)}
}

// connection is one of a limitedListener's.
type connection struct {
	net.Conn
	from   netip.Addr // invalid: of a Unix socket
	closed func()
}

func (l *limitedListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, from: addressOf(accepted.RemoteAddr())}
	c.closed = sync.OnceFunc(func() { l.remove(c) })
	if pushed := l.add(c, l.node(c.from, addressOf(accepted.LocalAddr()))); pushed != nil {
		_ = pushed.Close() // its caller reads the end
	}
	return c, nil
}

func addressOf(address net.Addr) netip.Addr {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// add adds a connection and returns the one to close for it, or nil.
func (l *limitedListener) add(c *connection, ofNode bool) *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ofNode && len(l.reserved) < Reserve {
		l.reserved = append(l.reserved, c)
		return nil
	}
	l.open = append(l.open, c)
	count, most := map[netip.Addr]int{}, l.open[0].from
	for _, open := range l.open {
		count[open.from]++
		if count[open.from] > count[most] {
			most = open.from
		}
	}
	switch {
	case count[c.from] > l.perAddress:
		most = c.from
	case len(l.open) <= l.connections:
		return nil
	}
	for _, open := range l.open {
		if open.from == most {
			return open
		}
	}
	return nil
}

func (l *limitedListener) remove(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, list := range []*[]*connection{&l.open, &l.reserved} {
		for i, open := range *list {
			if open == c {
				*list = append((*list)[:i], (*list)[i+1:]...)
				return
			}
		}
	}
}

// Close closes the connection and frees its place.
func (c *connection) Close() error {
	c.closed()
	return c.Conn.Close()
}
