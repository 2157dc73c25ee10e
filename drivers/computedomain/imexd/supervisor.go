// Package imexd keeps one IMEX daemon running on a node, with the peers that the controller gives it.
package imexd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/computedomain/session"
	"gpufabric.io/drivers/hardware/imex"
)

const (
	// There is no event for nvidia-imex's state, so the supervisor queries it, and each query is a process. While the daemon starts,
	// the pauses between queries grow by half, so that readiness is noticed within a third of the time it took. After that there is
	// one query a second.
	firstPause     = 25 * time.Millisecond
	steadyInterval = time.Second

	// unwellLimit is how long a daemon may be UNAVAILABLE, or not answer, before it is replaced: it does not recover by itself.
	// With the query that detects it (2 s, package imex), hungPatience and restartPause the next daemon runs within 15 s.
	unwellLimit = 8 * time.Second
	unwellStep  = 250 * time.Millisecond
	// starvedLimit is the same limit where the time counts too in which the node gave the daemon no processor or no disk (package
	// threads). That is no fault of the daemon, its end would take the memory of the node's jobs, and another would get no more. It
	// is the time after which Linux itself reports a process that cannot be interrupted (kernel.hung_task_timeout_secs).
	starvedLimit = 2 * time.Minute
	// overdue is how long a daemon has not answered when the supervisor begins to look at its threads: longer than the pause between two
	// queries.
	overdue = steadyInterval + 2*unwellStep
	// starvedPause is the time between two reports that a daemon is starved.
	starvedPause = time.Minute
	// silentLimit is how long a READY daemon may leave the queries unanswered until it counts as not ready: longer than one query
	// takes to give up, shorter than two. A node without a processor to spare delays one now and then. Readiness that comes and
	// goes costs writes of the pod's status, the domain's and, in clique mode, the node's ResourceSlice.
	silentLimit = 3500 * time.Millisecond
	// hungPatience is how long such a daemon gets to end cleanly; stopPatience is for a healthy one, which first releases its
	// importers.
	hungPatience = 2 * time.Second
	stopPatience = 25 * time.Second

	// nvidia-imex ignores a SIGUSR1 that comes within 5 s of another. The margin is for the time that a signal takes.
	reloadPause = 5*time.Second + 250*time.Millisecond

	// A daemon that ends is started again after a pause that doubles up to restartLimit and starts over once the daemon has run
	// for calm.
	restartPause = 250 * time.Millisecond
	restartLimit = 10 * time.Second
	calm         = time.Minute

	// StuckAfter is how long the supervisor's loop may take for one turn before it counts as hung. Its longest turn is the end of a
	// daemon.
	StuckAfter = stopPatience + 20*time.Second
)

// Status is the supervisor's state of its daemon.
type Status struct {
	// Ready reports whether this node is ready for the domain: its daemon is READY, or it needs none.
	Ready bool
	// Reason is the missing condition, or the error; empty when Ready.
	Reason string
	// State is the state that the daemon reports.
	State imex.State
	// Peers is how many daemons the domain has in this clique, this one included.
	Peers int
	// Restarts is how often the daemon ended by itself.
	Restarts int
}

// Supervisor keeps one daemon running and its list of peers current.
type Supervisor struct {
	runner imex.Runner
	spec   imex.Spec
	report func(reason, message string)

	mu      sync.Mutex
	turn    time.Time // when the supervisor's loop last ran
	status  Status
	changed chan struct{} // closed and replaced when status changes

	serving serving // the present process

	asking  sync.Mutex // one question for connections at a time
	answers connectionsAnswer

	groups  chan Group // holds at most the newest
	failure error      // of Run's goroutine
}

// NewSupervisor makes a supervisor. It calls report for an administrator (a daemon that ended, one that cannot start);
// reason is a CamelCase word.
func NewSupervisor(runner imex.Runner, spec imex.Spec, report func(reason, message string)) *Supervisor {
	return &Supervisor{
		runner: runner, spec: spec, report: report,
		status:  Status{State: imex.Unavailable, Reason: "waiting for the controller to number this node"},
		changed: make(chan struct{}), groups: make(chan Group, 1),
	}
}

// Join sets which daemons work together from now on. It does not block.
func (s *Supervisor) Join(group Group) {
	for {
		select {
		case s.groups <- group:
			return
		default:
		}
		select {
		case <-s.groups: // a group that was never read
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

// Alive reports whether the supervisor itself still works. A daemon that is not ready is no reason to end the container: that would
// take the memory that jobs share, and the supervisor repairs the daemon.
func (s *Supervisor) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle := time.Since(s.turn); !s.turn.IsZero() && idle > StuckAfter {
		return fmt.Errorf("the supervisor of the IMEX daemon last ran %s ago", idle.Round(time.Second))
	}
	return nil
}

// takeTurn records that the supervisor works; idle records that it waits for something that may never come.
func (s *Supervisor) takeTurn() { s.mu.Lock(); defer s.mu.Unlock(); s.turn = time.Now() }
func (s *Supervisor) idle()     { s.mu.Lock(); defer s.mu.Unlock(); s.turn = time.Time{} }

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

// fail stores an error that only a new container can repair; Run returns it.
func (s *Supervisor) fail(err error) { s.failure = err }

// Run supervises until ctx ends, then stops the daemon and removes its start files. It ends by itself with imex.ErrNoPrograms where
// this container cannot run a daemon: the container that the kubelet makes next gets the node's files of that time.
func (s *Supervisor) Run(ctx context.Context) error {
	group, ok := s.next(ctx)
	for ok {
		if group.Clique == "" {
			s.set(func(status *Status) {
				*status = Status{Ready: true, State: imex.Unavailable, Restarts: status.Restarts}
			})
			group, ok = s.next(ctx)
			continue
		}
		group, ok = s.serve(ctx, group)
	}
	s.set(func(status *Status) {
		status.Ready, status.Reason, status.State = false, "shutting down", imex.ShuttingDown
	})
	return errors.Join(s.failure, s.cleanUp())
}

// next waits for a group.
func (s *Supervisor) next(ctx context.Context) (Group, bool) {
	s.idle()
	defer s.takeTurn()
	select {
	case group := <-s.groups:
		return group, true
	case <-ctx.Done():
		return Group{}, false
	}
}

// serve keeps a daemon running while its start configuration fits the group. It returns the group that needs another daemon, or
// false when ctx ended.
func (s *Supervisor) serve(ctx context.Context, group Group) (Group, bool) {
	logger := klog.FromContext(ctx)
	pause := restartPause
	for {
		began := time.Now()
		s.takeTurn()
		next, err := s.runDaemon(ctx, group)
		if err == nil {
			return next, true
		}
		if ctx.Err() != nil {
			return Group{}, false
		}
		if errors.Is(err, imex.ErrNoPrograms) {
			s.fail(err)
			return Group{}, false
		}
		if time.Since(began) > calm {
			pause = restartPause
		}
		logger.Error(err, "The IMEX daemon is not running", "nextStartIn", pause)
		s.report("IMEXDaemonFailed", fmt.Sprintf("%v; starting it again in %s", err, pause))
		s.set(func(status *Status) {
			status.Ready, status.State, status.Reason = false, imex.Unavailable, err.Error()
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

// runDaemon runs one daemon. It returns the newest group that it knew, with an error that reports how the daemon ended, or none where
// the group needs another daemon.
func (s *Supervisor) runDaemon(ctx context.Context, group Group) (Group, error) {
	s.set(func(status *Status) {
		status.Ready, status.State, status.Peers, status.Reason = false, imex.Initializing, len(group.Peers), "the IMEX daemon is starting"
	})
	if certificates := s.spec.Certificates; certificates != nil {
		if err := certificates.Check(time.Now()); err != nil {
			return group, err
		}
	}
	if err := writeConfig(s.spec, group); err != nil {
		return group, err
	}
	if err := writeHosts(s.spec, group); err != nil {
		return group, err
	}
	// Before the start, which opens the session: if this process does not survive to record its end, the next supervisor does.
	if err := session.Begin(s.spec.Dir, time.Now()); err != nil {
		klog.FromContext(ctx).Error(err, "Pods may not be notified of the end of this IMEX session")
	}
	daemon, err := s.runner.Start(ctx, s.spec)
	if err != nil {
		return group, errors.Join(err, session.Cancel(s.spec.Dir))
	}
	w := &watch{supervisor: s, daemon: daemon, group: group, patience: stopPatience, answers: make(chan answer, 1)}
	s.serves(serving{daemon, group})
	group, err = w.run(ctx)
	s.serves(serving{})
	daemon.Stop(w.patience)
	if noted := session.Finish(s.spec.Dir, time.Now(), whyEnded(ctx, err)); noted != nil {
		klog.FromContext(ctx).Error(noted, "Pods are not notified of the end of this IMEX session")
	}
	return group, err
}

// whyEnded reports why a daemon was stopped, or ended with err.
func whyEnded(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return "the IMEX daemon's pod ended"
	case err != nil:
		return err.Error()
	default:
		return "the IMEX daemon had to start again with another list of peers, which it reads only when it starts"
	}
}

// cleanUp removes the daemon's start files.
func (s *Supervisor) cleanUp() error {
	var errs []error
	for _, path := range []string{s.spec.ConfigFile, s.spec.NodesFile} {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			errs = append(errs, fmt.Errorf("clean up: %w", err))
		}
	}
	return errors.Join(errs...)
}
