package imexd

import (
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/hardware/imex"
)

// starve makes the daemon silent for lack of a processor: its own, or its client's.
func (d *fakeDaemon) starve(own bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent, d.starving, d.unasked = true, own, !own
}

// wake gives back the processor; the daemon is silent as before.
func (d *fakeDaemon) wake() { d.mu.Lock(); defer d.mu.Unlock(); d.starving, d.unasked = false, false }

func (r *fakeRunner) reported(reason string) (messages []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, report := range r.reports {
		if strings.HasPrefix(report, reason+": ") {
			messages = append(messages, report)
		}
	}
	return messages
}

// starvation runs body for a READY daemon that has been starved for a moment, in both ways.
func starvation(t *testing.T, body func(t *testing.T, s *Supervisor, r *fakeRunner, starved *fakeDaemon)) {
	t.Helper()
	for name, own := range map[string]bool{"the daemon waits": true, "whoever asks waits": false} {
		t.Run(name, func(t *testing.T) {
			supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
				s.Join(two())
				pass(100 * time.Millisecond)
				daemon := r.newest(t, 1)
				daemon.become(imex.Ready)
				pass(time.Minute)
				daemon.starve(own)
				body(t, s, r, daemon)
			})
		})
	}
}

func TestSupervisorReportsAStarvedDaemon(t *testing.T) {
	starvation(t, func(t *testing.T, s *Supervisor, r *fakeRunner, daemon *fakeDaemon) {
		pass(10 * time.Second)
		if status, _ := s.Status(); status.Ready || !strings.Contains(status.Reason, "waits for a processor of its node") {
			t.Errorf("after 10 s: %+v", status)
		}
		if said := r.reported("IMEXDaemonStarved"); len(said) != 1 || !strings.Contains(said[0], "waits for a processor of its node") {
			t.Errorf("after 10 s: %q", said)
		}
		pass(90 * time.Second)
		r.newest(t, 1)
		if said := r.reported("IMEXDaemonStarved"); len(said) != 2 {
			t.Errorf("in 100 s it is reported %d times: %q", len(said), said)
		}
		daemon.wake()
		daemon.answer()
		pass(5 * time.Second)
		if status, _ := s.Status(); !status.Ready || status.Restarts != 0 {
			t.Errorf("it answers again: %+v", status)
		}
		r.newest(t, 1)
	})
}

func TestSupervisorReplacesAStarvedDaemonInTheEnd(t *testing.T) {
	starvation(t, func(t *testing.T, _ *Supervisor, r *fakeRunner, _ *fakeDaemon) {
		pass(starvedLimit - 5*time.Second)
		r.newest(t, 1)
		pass(20 * time.Second)
		r.newest(t, 2)
		said := r.reported("IMEXDaemonFailed")
		if len(said) != 1 || !strings.Contains(said[0], "too long even for one that waits for a processor") {
			t.Errorf("%q", said)
		}
	})
}

// The time in which it was starved is no reason to replace it, and none to leave it.
func TestSupervisorReplacesADaemonThatHangsAfterStarving(t *testing.T) {
	starvation(t, func(t *testing.T, _ *Supervisor, r *fakeRunner, daemon *fakeDaemon) {
		pass(30 * time.Second)
		r.newest(t, 1)
		daemon.wake()
		pass(15*time.Second - hungPatience)
		r.newest(t, 2).become(imex.Ready)
	})
}

// Readiness that has gone is no reason to think that a daemon which hangs is starved: its threads sleep.
func TestSupervisorDoesNotReportAHungDaemonAsStarved(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		daemon.become(imex.Ready)
		pass(time.Minute)
		daemon.hang()
		pass(15*time.Second - hungPatience)
		r.newest(t, 2).become(imex.Ready)
		if said := r.reported("IMEXDaemonStarved"); len(said) != 0 {
			t.Errorf("%q", said)
		}
	})
}
