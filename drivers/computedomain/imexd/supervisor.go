package imexd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const (
	// nvidia-imex tells nobody when its state changes, so it is asked: often while it is on its way, where every millisecond is
	// part of the time a domain takes to form, and once a second after that.
	startingInterval = 25 * time.Millisecond
	steadyInterval   = time.Second

	// A daemon that ends is started again after a pause that doubles up to restartLimit and starts over once the daemon has run
	// for calm.
	restartPause = 250 * time.Millisecond
	restartLimit = 10 * time.Second
	calm         = time.Minute
)

// Status is what the supervisor knows of its daemon.
type Status struct {
	// Ready says whether this node does its part in the domain: its daemon is READY, or it needs none.
	Ready bool
	// Reason says in words what is waited for, or went wrong; empty when Ready.
	Reason string
	// State is the daemon's own word.
	State State
	// Peers is how many daemons the domain has in this clique, this one included.
	Peers int
	// Restarts is how often the daemon ended by itself.
	Restarts int
}

// Supervisor keeps one daemon running and its list of peers current.
type Supervisor struct {
	runner Runner
	spec   Spec
	report func(reason, message string)

	mu      sync.Mutex
	status  Status
	changed chan struct{} // closed and replaced when status changes

	groups chan Group // holds at most the newest
}

// NewSupervisor makes a supervisor. report is told what a person should know (a daemon that ended, one that cannot start); reason
// is a CamelCase word.
func NewSupervisor(runner Runner, spec Spec, report func(reason, message string)) *Supervisor {
	return &Supervisor{
		runner: runner, spec: spec, report: report,
		status:  Status{State: Unavailable, Reason: "waiting for the controller to number this node"},
		changed: make(chan struct{}), groups: make(chan Group, 1),
	}
}

// Join tells which daemons are to work together from now on. It does not block.
func (s *Supervisor) Join(group Group) {
	for {
		select {
		case s.groups <- group:
			return
		default:
		}
		select {
		case <-s.groups: // one that was never looked at
		default:
		}
	}
}

// Status returns the status now, and a channel that is closed when it changes.
func (s *Supervisor) Status() (Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.changed
}

// AwaitReady returns as soon as the status is Ready, at the latest when ctx ends.
func (s *Supervisor) AwaitReady(ctx context.Context) Status {
	for {
		status, changed := s.Status()
		if status.Ready {
			return status
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status
		}
	}
}

func (s *Supervisor) set(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.status
	change(&s.status)
	if s.status != before {
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// Run supervises until ctx ends, then stops the daemon and removes what it was started with.
func (s *Supervisor) Run(ctx context.Context) error {
	group, ok := s.next(ctx)
	for ok {
		if group.Clique == "" {
			s.set(func(status *Status) { *status = Status{Ready: true, State: Unavailable, Restarts: status.Restarts} })
			group, ok = s.next(ctx)
			continue
		}
		group, ok = s.serve(ctx, group)
	}
	s.set(func(status *Status) { status.Ready, status.Reason, status.State = false, "shutting down", ShuttingDown })
	return s.cleanUp()
}

// next waits for a group.
func (s *Supervisor) next(ctx context.Context) (Group, bool) {
	select {
	case group := <-s.groups:
		return group, true
	case <-ctx.Done():
		return Group{}, false
	}
}

// serve keeps a daemon running for as long as what it was started with fits the group. It returns the group that needs another
// one, or false when ctx ended.
func (s *Supervisor) serve(ctx context.Context, group Group) (Group, bool) {
	logger := klog.FromContext(ctx)
	pause := restartPause
	for {
		began := time.Now()
		next, err := s.runDaemon(ctx, group)
		if err == nil {
			return next, true
		}
		if ctx.Err() != nil {
			return Group{}, false
		}
		if time.Since(began) > calm {
			pause = restartPause
		}
		logger.Error(err, "The IMEX daemon is not running", "nextStartIn", pause)
		s.report("IMEXDaemonFailed", fmt.Sprintf("%v; starting it again in %s", err, pause))
		s.set(func(status *Status) {
			status.Ready, status.State, status.Reason = false, Unavailable, err.Error()
			status.Restarts++
		})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return Group{}, false
		}
		pause = min(2*pause, restartLimit)
		group = next
		select {
		case group = <-s.groups:
			if group.Clique == "" {
				return group, true
			}
		default:
		}
	}
}

// runDaemon runs one daemon. It returns the newest group it knew, with an error that says how the daemon ended, or none where the
// group needs another daemon.
func (s *Supervisor) runDaemon(ctx context.Context, group Group) (Group, error) {
	s.set(func(status *Status) {
		status.Ready, status.State, status.Peers, status.Reason = false, Initializing, len(group.Peers), "the IMEX daemon is starting"
	})
	if err := writeConfig(s.spec, slotsFor(group.Peers)); err != nil {
		return group, err
	}
	if err := writeHosts(s.spec.HostsFile, group.Peers); err != nil {
		return group, err
	}
	daemon, err := s.runner.Start(ctx, s.spec)
	if err != nil {
		return group, err
	}
	defer daemon.Stop()
	return s.watch(ctx, daemon, group)
}

// watch follows a running daemon until it ends, or until a group comes that it was not started for.
func (s *Supervisor) watch(ctx context.Context, daemon Daemon, group Group) (Group, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return group, ctx.Err()
		case <-daemon.Exited():
			return group, daemon.Err()
		case next := <-s.groups:
			if next.Clique != group.Clique || slotsFor(next.Peers) != slotsFor(group.Peers) {
				return next, nil
			}
			group = next
			if err := s.regard(daemon, group.Peers); err != nil {
				// The daemon runs on with the peers it knows: stopping it would help nobody.
				klog.FromContext(ctx).Error(err, "The IMEX daemon does not know its new peers")
				s.report("IMEXPeersNotUpdated", err.Error())
			}
		case <-timer.C:
			timer.Reset(s.ask(ctx, daemon))
		}
	}
}

// regard tells a running daemon of its new peers.
func (s *Supervisor) regard(daemon Daemon, peers []Peer) error {
	s.set(func(status *Status) { status.Peers = len(peers) })
	if err := writeHosts(s.spec.HostsFile, peers); err != nil {
		return err
	}
	return daemon.Reload()
}

// ask asks the daemon for its state and returns when to ask again.
func (s *Supervisor) ask(ctx context.Context, daemon Daemon) time.Duration {
	state, err := daemon.State(ctx)
	s.set(func(status *Status) {
		status.State, status.Ready, status.Reason = state, state == Ready, ""
		switch {
		case err != nil:
			status.Reason = err.Error()
		case state != Ready:
			status.Reason = "the IMEX daemon is " + string(state)
		}
	})
	if state == Ready {
		return steadyInterval
	}
	return startingInterval
}

// cleanUp removes what the daemon was started with.
func (s *Supervisor) cleanUp() error {
	var errs []error
	for _, path := range []string{s.spec.ConfigFile, s.spec.NodesFile} {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			errs = append(errs, fmt.Errorf("clean up: %w", err))
		}
	}
	return errors.Join(errs...)
}
