package cores

import (
	"sync"
	"time"
)

const (
	// packetEvery is the shortest time between two packets of a container about one GPU, once a burst is over. A turn that is given back
	// as early as the library does, after half a millisecond, takes three.
	packetEvery = 100 * time.Microsecond
	// connectionEvery is the shortest time between two connections of a container, once a burst is over.
	connectionEvery = 200 * time.Microsecond
)

// pace bounds how often a container is served. What it sends meanwhile waits in its own sockets.
type pace struct {
	every time.Duration
	burst int

	mu sync.Mutex
	at time.Time // when the bucket of steps is full again
}

// step waits until the next step may be made.
func (p *pace) step() {
	now := time.Now()
	p.mu.Lock()
	if p.at.Before(now) {
		p.at = now
	}
	p.at = p.at.Add(p.every)
	wait := p.at.Sub(now) - time.Duration(p.burst)*p.every
	p.mu.Unlock()
	time.Sleep(wait) // none, where it is not positive
}
