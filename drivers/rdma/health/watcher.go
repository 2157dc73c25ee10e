package health

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpufabric.io/drivers/hardware/infiniband"
)

// State is the known state of one port.
type State struct {
	Phase  Phase
	Since  time.Time // when the phase began
	Reason string    // why it is not up
}

// Watcher watches ports. Make it with New.
type Watcher struct {
	read    func(Port) string
	clock   clock.WithTicker
	changed chan struct{}
	nudged  chan struct{}

	mu        sync.Mutex
	ports     map[Key]*watched
	firstRead chan struct{} // closed when no port is Unknown any more; nil: none is
}

// watched is a port with its state.
type watched struct {
	Port
	tracker
	stuck atomic.Bool // a read of it has not returned
}

// New makes a watcher of ports in the sysfs tree at root.
func New(root string, clock clock.WithTicker) *Watcher {
	sysfs := infiniband.NewFS(root)
	return newWatcher(func(p Port) string { return read(sysfs, p) }, clock)
}

func newWatcher(read func(Port) string, clock clock.WithTicker) *Watcher {
	return &Watcher{read: read, clock: clock, changed: make(chan struct{}, 1), nudged: make(chan struct{}, 1), ports: make(map[Key]*watched)}
}

// Set replaces the ports to watch. It keeps the state of ports that stay; new ones are read soon.
func (w *Watcher) Set(ports []Port) {
	w.mu.Lock()
	next := make(map[Key]*watched, len(ports))
	unread := 0
	for _, p := range ports {
		state := w.ports[p.Key()]
		if state == nil || state.Path != p.Path {
			unread++
			state = &watched{tracker: tracker{phase: Unknown, since: w.clock.Now()}}
		}
		state.Port = p
		next[p.Key()] = state
	}
	w.ports = next
	if unread > 0 && w.firstRead == nil {
		w.firstRead = make(chan struct{})
	}
	w.settleFirst()
	w.mu.Unlock()
	w.Nudge()
}

// Nudge makes every port be read soon: something happened that may concern one.
func (w *Watcher) Nudge() { signal(w.nudged) }

// Changed receives a token after ports changed their health; one token may stand for several changes.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// State returns the state of a port; Unknown for one that is not watched.
func (w *Watcher) State(key Key) State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.ports[key]; p != nil {
		return State{p.phase, p.since, p.reason}
	}
	return State{Phase: Unknown, Reason: "the port is not watched"}
}

// Known waits until every port was read at least once, or ctx ends.
func (w *Watcher) Known(ctx context.Context) {
	for {
		w.mu.Lock()
		read := w.firstRead
		w.mu.Unlock()
		if read == nil {
			return
		}
		select {
		case <-read:
		case <-ctx.Done():
			return
		}
	}
}

// Run reads ports until ctx ends. It does not wait for a read that hangs.
func (w *Watcher) Run(ctx context.Context) {
	all := true
	var next time.Time // when all are to be read again
	for ctx.Err() == nil {
		if all {
			next = w.clock.Now().Add(Period)
		}
		w.readAll(ctx, all)
		pause := next.Sub(w.clock.Now())
		if w.unsettled() {
			pause = min(pause, confirmPeriod)
		}
		timer := w.clock.NewTimer(max(pause, 0))
		select {
		case <-ctx.Done():
		case <-w.nudged:
			next = time.Time{}
		case <-timer.C():
		}
		timer.Stop()
		all = !w.clock.Now().Before(next)
	}
}

// result is the reading of one port.
type result struct {
	port *watched
	bad  string
}

// readAll reads, one after the other, every port that is not stuck, or only those that may be changing.
func (w *Watcher) readAll(ctx context.Context, all bool) {
	ports := w.readable(all)
	for len(ports) > 0 {
		read := w.readFrom(ctx, ports)
		if read == len(ports) || ctx.Err() != nil {
			return
		}
		// The read of ports[read] hangs. Its goroutine is abandoned, and a new one reads the rest. The port is not read again until that
		// read returns, so this is its only reading: it is bad now, and has been since the read began.
		now, hangs := w.clock.Now(), result{ports[read], "the port's status could not be read within " + readTimeout.String() +
			": the firmware may hang"}
		w.observe(ctx, now.Add(-readTimeout), hangs)
		w.observe(ctx, now, hangs)
		ports = ports[read+1:]
	}
}

// readFrom reads ports until one hangs, and returns how many were read.
func (w *Watcher) readFrom(ctx context.Context, ports []*watched) int {
	results := make(chan result)
	abandoned := make(chan struct{})
	defer close(abandoned)
	go func() { // Ends with the list, or, when abandoned, with the hanging read.
		for _, p := range ports {
			w.mu.Lock()
			port := p.Port
			w.mu.Unlock()
			p.stuck.Store(true)
			bad := w.read(port)
			p.stuck.Store(false)
			select {
			case results <- result{p, bad}:
			case <-abandoned:
				return
			}
		}
	}()
	for read := range ports {
		r, ok := w.await(ctx, results)
		if !ok {
			return read
		}
		w.observe(ctx, w.clock.Now(), r)
	}
	return len(ports)
}

// await waits for a reading for readTimeout, or until ctx ends. It counts time in steps, so that only time counts in which this
// process ran: if it gets no processor for a second, that second is one step, and the process's own delay is not mistaken for the
// firmware's.
func (w *Watcher) await(ctx context.Context, results <-chan result) (result, bool) {
	for range readTimeout / readStep {
		timer := w.clock.NewTimer(readStep)
		select {
		case r := <-results:
			timer.Stop()
			return r, true
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return result{}, false
		}
	}
	select {
	case r := <-results:
		return r, true
	default:
		return result{}, false
	}
}

func (w *Watcher) readable(all bool) []*watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	ports := make([]*watched, 0, len(w.ports))
	for _, p := range w.ports {
		if !p.stuck.Load() && (all || !p.settled()) {
			ports = append(ports, p)
		}
	}
	return ports
}

// settleFirst ends the wait for the first reading if it is over. mu must be held.
func (w *Watcher) settleFirst() {
	if w.firstRead == nil {
		return
	}
	for _, p := range w.ports {
		if p.phase == Unknown {
			return
		}
	}
	close(w.firstRead)
	w.firstRead = nil
}

func (w *Watcher) observe(ctx context.Context, at time.Time, r result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, reason := r.port.phase, r.port.reason
	r.port.observe(at, r.bad)
	now := r.port.phase
	if was == Unknown {
		w.settleFirst()
	}
	if now != was && was != Unknown && (now == Up && was == Recovering || now == Down && was == Failing) {
		klog.FromContext(ctx).Info("A port changed", "port", r.port.Key().String(), "phase", now, "reason", r.port.reason)
	}
	if now.Healthy() != was.Healthy() || was == Unknown || reason != r.port.reason && !now.Healthy() {
		signal(w.changed)
	}
}

// unsettled reports whether a port may be changing.
func (w *Watcher) unsettled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.ports {
		if !p.settled() && !p.stuck.Load() {
			return true
		}
	}
	return false
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
