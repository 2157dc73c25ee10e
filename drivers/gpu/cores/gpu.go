package cores

import (
	"sync"
	"time"
)

const (
	// turn is how long a process may launch before it has to ask again.
	turn = 20 * time.Millisecond
	// patience is how much longer it may keep the GPU: kernels cannot be stopped. Then the next one has a turn beside it.
	patience = time.Second
	// believed is the part of a turn that a container at most is not charged for, because it says that the GPU did nothing for it then:
	// one in so many. The hand-over of a turn takes about a millisecond. One that always lies has 3 % of its percentage more.
	believed = 32
	// reserve is how much of its time a container can save up where idle time is not lent.
	reserve = 100 * time.Millisecond
	// absence is how long a container must want nothing of a GPU until what it did not use is lost.
	absence = 100 * time.Millisecond
)

// gpu gives turns on one GPU. One process has it at a time: the container with the least use for its percentage comes first.
type gpu struct {
	lend bool

	mu      sync.Mutex
	members map[*member]bool
	holder  *client          // nil: nobody
	late    *time.Timer      // of the holder
	next    *time.Timer      // when a container may have a turn again, where idle time is not lent
	clock   float64          // the use, for its percentage, of the last one that had a turn
	asked   uint64           // how many times somebody asked
	given   uint64           // how many turns were given
	out     map[*client]bool // those that were given a turn and have not given it back; the holder is one, others are late
}

// member is a container on a GPU.
type member struct {
	cores   int
	clients map[*client]bool
	used    time.Duration // in all
	use     float64       // seconds for each percent
	left    time.Time     // when it last wanted something
	budget  time.Duration // where idle time is not lent
	counted time.Time     // until when budget was added to
	told    told
}

// client is a process on a GPU.
type client struct {
	member *member
	send   func(kind uint32, length time.Duration)
	wants  bool
	asked  uint64    // the order in which processes asked
	since  time.Time // from when it is not charged yet; zero: it has no turn
	turn   time.Time // when its turn began
}

func (g *gpu) join(m *member, c *client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		g.members = map[*member]bool{}
	}
	if !g.members[m] {
		g.members[m] = true
		m.use, m.budget, m.counted, m.told.at = max(m.use, g.clock), reserve, time.Now(), time.Now()
	}
	if m.clients == nil {
		m.clients = map[*client]bool{}
	}
	m.clients[c] = true
	c.member = m
}

// leave ends what a process has. Its connection is gone.
func (g *gpu) leave(c *client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(c)
	c.wants = false
	delete(c.member.clients, c)
	g.free(c)
	g.choose()
}

// remove ends a container.
func (g *gpu) remove(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.members, m)
}

func (g *gpu) want(c *client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.since.IsZero() {
		c.send(closed, 0) // it has a turn, and asks for another
		return
	}
	if c.wants {
		c.send(wait, 0)
		return
	}
	if m := c.member; !g.busy(m) && time.Since(m.left) > absence {
		m.use = max(m.use, g.clock)
	}
	g.asked++
	c.wants, c.asked = true, g.asked
	g.choose()
}

// more answers a process whose turn ends.
func (g *gpu) more(c *client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.chargeAll()
	if g.holder != c || !g.may(c.member) || g.before(c.member) {
		c.send(closed, 0)
		return
	}
	g.late.Reset(turn + patience)
	g.clock = max(g.clock, c.member.use)
	c.send(grant, turn)
}

// done ends a process's turn, in which the GPU worked for it so long by its own account; 0 or less: it does not say.
func (g *gpu) done(c *client, worked time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.since.IsZero() {
		return
	}
	g.end(c)
	if had := time.Since(c.turn); worked > 0 && worked < had {
		c.member.add(-min(had-worked, had/believed))
	}
	c.member.left = time.Now()
	g.free(c)
	g.choose()
}

// end ends what a process is charged for.
func (g *gpu) end(c *client) {
	g.charge(c)
	c.since = time.Time{}
	delete(g.out, c)
}

// chargeAll counts until now what every process has that has not given its turn back. Who comes next depends on it: a process that
// keeps silent would else be charged for nothing, and the next one of its container would come before all others.
func (g *gpu) chargeAll() {
	for c := range g.out {
		g.charge(c)
	}
}

// free takes the GPU from its holder.
func (g *gpu) free(c *client) {
	if g.holder == c {
		g.late.Stop()
		g.holder = nil
	}
}

// charge counts the time since the last charge as the container's. The arbiter's own clock says how long that was.
func (g *gpu) charge(c *client) {
	if c.since.IsZero() {
		return
	}
	now := time.Now()
	c.member.add(now.Sub(c.since))
	c.since = now
}

// add counts time as the container's.
func (m *member) add(used time.Duration) {
	m.used += used
	m.use += used.Seconds() / float64(m.cores)
	m.budget -= used
}

// busy says whether a container has or wants a turn.
func (g *gpu) busy(m *member) bool {
	for c := range m.clients {
		if c.wants || !c.since.IsZero() {
			return true
		}
	}
	return false
}

// may says whether a container may have the GPU now, whoever else wants it.
func (g *gpu) may(m *member) bool {
	if g.lend {
		return true
	}
	now, most := time.Now(), reserve
	if g.busy(m) {
		most += patience // what another kept it from is not lost
	}
	m.budget = min(most, m.budget+now.Sub(m.counted)*time.Duration(m.cores)/100)
	m.counted = now
	return m.budget > 0
}

// waiting is the process of a container that waits longest, nil where none does.
func (m *member) waiting() *client {
	var first *client
	for c := range m.clients {
		if c.wants && (first == nil || c.asked < first.asked) {
			first = c
		}
	}
	return first
}

// before says whether another process comes before those of a container.
func (g *gpu) before(m *member) bool {
	for other := range g.members {
		if other.waiting() != nil && (other == m || other.use < m.use && g.may(other)) {
			return true
		}
	}
	return false
}

// choose gives the GPU to the next one, where it is free.
func (g *gpu) choose() {
	if g.holder != nil {
		return
	}
	g.chargeAll()
	var next *client
	soonest := time.Duration(-1)
	for m := range g.members {
		c := m.waiting()
		if c == nil {
			continue
		}
		if !g.may(m) {
			if until := -m.budget*100/time.Duration(m.cores) + time.Millisecond; soonest < 0 || until < soonest {
				soonest = until
			}
			continue
		}
		if next == nil || m.use < next.member.use || m.use == next.member.use && c.asked < next.asked {
			next = c
		}
	}
	if next == nil {
		if soonest >= 0 {
			if g.next != nil {
				g.next.Stop()
			}
			g.next = time.AfterFunc(soonest, func() {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.choose()
			})
		}
		return
	}
	next.wants, next.since = false, time.Now()
	next.turn = next.since
	if g.out == nil {
		g.out = map[*client]bool{}
	}
	g.out[next] = true
	g.holder, g.clock = next, max(g.clock, next.member.use)
	g.given++
	given := g.given
	g.late = time.AfterFunc(turn+patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.holder == next && g.given == given {
			g.holder = nil // it is charged until it says that it is done
			g.choose()
		}
	})
	next.send(grant, turn)
}

// charged is how much of the GPU's time a container was charged until now.
func (g *gpu) charged(m *member) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range m.clients {
		g.charge(c)
	}
	return m.used
}

// share is how much of a GPU's time a container had since it was last asked, in percent; the same again where that was just now.
func (g *gpu) share(m *member) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range m.clients {
		g.charge(c)
	}
	now := time.Now()
	if since := now.Sub(m.told.at); since >= time.Second {
		m.told = told{at: now, used: m.used, percent: min(100, 100*(m.used-m.told.used).Seconds()/since.Seconds())}
	}
	return m.told.percent
}

// told is what was last told of a container's use.
type told struct {
	at      time.Time
	used    time.Duration
	percent float64
}
