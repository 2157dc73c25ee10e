package httpserver

import (
	"errors"
	"io"
	"sync"
)

// bodiesTotal and bodiesPerAddress limit the bytes of bodies that are in memory at once. A review of an object has some KiB.
const bodiesTotal, bodiesPerAddress = 24 << 20, 8 << 20

var errBodies = errors.New("the bodies of current requests take too much memory: try again")

// body counts the bytes that are read, and calls read at the end: the deadline of the body must not end the answer.
type body struct {
	io.ReadCloser
	from   string
	memory *memory
	held   int64
	read   func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.held += int64(n)
	if !b.memory.take(b.from, int64(n)) {
		return n, errBodies
	}
	if errors.Is(err, io.EOF) {
		b.read()
	}
	return n, err
}

func (b *body) release() { b.memory.take(b.from, -b.held) }

// memory counts the bytes of bodies, in all and by address.
type memory struct {
	mu     sync.Mutex
	total  int64
	byHost map[string]int64
}

// take counts n bytes more, and reports whether they are within the limits.
func (m *memory) take(host string, n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += n
	if m.byHost[host] += n; m.byHost[host] <= 0 {
		delete(m.byHost, host)
	}
	return m.total <= bodiesTotal && m.byHost[host] <= bodiesPerAddress
}
