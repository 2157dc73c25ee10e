package torture

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// link is the network between a plugin and its API server: it passes bytes on, and can be cut. The plugin sees the server's own
// certificate, which is valid for the loopback address with any port.
type link struct {
	listener net.Listener
	server   string // host:port

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
	ended sync.WaitGroup
}

func openLink(server string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a link to the API server: %w", err)
	}
	l := &link{listener: listener, server: server, conns: map[net.Conn]struct{}{}}
	l.ended.Go(l.accept)
	return l, nil
}

// url is the server's address for the plugin.
func (l *link) url() string { return "https://" + l.listener.Addr().String() }

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		if !l.add(client) {
			continue
		}
		l.ended.Go(func() { l.pass(client) })
	}
}

// add keeps a connection, or closes it while the link is cut.
func (l *link) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = conn.Close() // unused
		return false
	}
	l.conns[conn] = struct{}{}
	return true
}

func (l *link) remove(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close() // the other side may have closed it
		delete(l.conns, conn)
	}
}

// pass copies bytes both ways until one side ends.
func (l *link) pass(client net.Conn) {
	defer l.remove(client)
	server, err := net.Dial("tcp", l.server)
	if err != nil || !l.add(server) {
		return
	}
	defer l.remove(server)
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(server, client); l.remove(client, server) })
	both.Go(func() { _, _ = io.Copy(client, server); l.remove(client, server) })
	both.Wait()
}

// setCut cuts the link, with every connection, or mends it.
func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for conn := range l.conns {
			_ = conn.Close() // its copies end
		}
	}
}

func (l *link) close() {
	_ = l.listener.Close() // accept ends
	l.setCut(true)
	l.ended.Wait()
}
