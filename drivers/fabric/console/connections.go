package console

import (
	"net"
	"sync"
)

// fairListener bounds the connections that are open at a time. One more closes the oldest of the address that has most, so that
// whoever opens connections without end pushes out its own, and the kubelet's probes and other viewers are served.
type fairListener struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*connection // the oldest first
}

// connection is one of a fairListener's.
type connection struct {
	net.Conn
	from string // its IP address
	left func()
}

func (l *fairListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, from: accepted.RemoteAddr().String()}
	if address, _, err := net.SplitHostPort(c.from); err == nil {
		c.from = address
	}
	c.left = sync.OnceFunc(func() { l.remove(c) })
	if pushed := l.add(c); pushed != nil {
		_ = pushed.Close() // whose it was learns it by its next read
	}
	return c, nil
}

// add adds a connection and returns the one that is to go for it.
func (l *fairListener) add(c *connection) *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
	if len(l.open) <= l.most {
		return nil
	}
	count, greatest := map[string]int{}, ""
	for _, open := range l.open {
		count[open.from]++
		if count[open.from] > count[greatest] {
			greatest = open.from
		}
	}
	for _, open := range l.open {
		if open.from == greatest {
			return open
		}
	}
	return nil
}

func (l *fairListener) remove(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, open := range l.open {
		if open == c {
			l.open = append(l.open[:i], l.open[i+1:]...)
			return
		}
	}
}

// Close closes the connection and gives its place back.
func (c *connection) Close() error {
	c.left()
	return c.Conn.Close()
}
