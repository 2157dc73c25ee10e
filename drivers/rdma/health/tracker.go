// Package health watches RDMA ports and reports which can carry traffic.
//
// The kernel reports changed links of network devices through rtnetlink, and nothing else: a port's state is an attribute of sysfs,
// which does not send events. So a reader reads every port every 400 ms, in a goroutine of its own, since the read queries
// the firmware and hangs with it.
package health

import "time"

const (
	// Period is how often every port is read.
	Period = 400 * time.Millisecond
	// confirmPeriod is how often a port is read that may be changing.
	confirmPeriod = 100 * time.Millisecond
	// readTimeout is how long a read may take until the port counts as unreadable, in steps of readStep.
	readTimeout = 500 * time.Millisecond
	readStep    = 50 * time.Millisecond
	// DownAfter is how long a port must be bad until it counts as down. Period + confirmPeriod + DownAfter is the longest that a dead port
	// stays healthy: 0.65 s.
	DownAfter = 150 * time.Millisecond
	// UpAfter is how long a port must be good until it counts as up again, so that a flapping port stays down.
	UpAfter = 3 * time.Second
)

// Phase is where a port is between down and up.
type Phase string

// The phases.
const (
	Unknown    Phase = "Unknown"    // never read
	Up         Phase = "Up"         // carries traffic
	Failing    Phase = "Failing"    // bad for less than DownAfter; still counted as up
	Down       Phase = "Down"       // bad
	Recovering Phase = "Recovering" // good for less than UpAfter; still counted as down
)

// Healthy reports whether a port in this phase may be given to a pod. One that was never read may not.
func (p Phase) Healthy() bool { return p == Up || p == Failing }

// tracker debounces the readings of one port.
type tracker struct {
	phase  Phase
	since  time.Time // when the phase began
	reason string    // why it is not up; empty: it is
}

// observe processes the result of a read at now: why the port is bad, or nothing.
func (t *tracker) observe(now time.Time, bad string) {
	next := t.phase
	switch t.phase {
	case Up, Failing:
		switch {
		case bad == "":
			next = Up
		case t.phase == Up:
			next = Failing
		case now.Sub(t.since) >= DownAfter:
			next = Down
		}
	case Down, Recovering:
		switch {
		case bad != "":
			next = Down
		case t.phase == Down:
			next = Recovering
		case now.Sub(t.since) >= UpAfter:
			next = Up
		}
	default:
		// The first state of a port is no change.
		next = Up
		if bad != "" {
			next = Down
		}
	}
	if next != t.phase {
		t.phase, t.since = next, now
	}
	switch {
	case bad != "":
		t.reason = bad
	case next == Up:
		t.reason = ""
	}
}

// settled reports whether only a change of the port can change the phase.
func (t *tracker) settled() bool { return t.phase == Up || t.phase == Down }
