package imexd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/threads"
)

// watch follows one running daemon: it queries its state, and notifies it of its peers.
type watch struct {
	supervisor *Supervisor
	daemon     imex.Daemon
	group      Group
	// patience is how long the daemon gets to end cleanly.
	patience time.Duration

	answers chan answer // of the single query in progress
	pause   time.Duration
	// unwellFor is how long ago the daemon last reported that it is well, in steps of unwellStep, without the steps in which it was
	// starved. Those are starvedFor.
	unwellFor, starvedFor time.Duration
	// silentFor is how long ago it last reported anything, in the same steps, and unansweredFor how much of unwellFor the present query
	// has taken, with the pause before it.
	silentFor, unansweredFor time.Duration
	// threads is the last sample of a daemon whose answer is overdue, and lacks is the resource that was missing when it was last
	// starved.
	threads threads.Sample
	lacks   threads.Shortage
	// starvedReported is when the daemon was last reported as starved.
	starvedReported time.Time
	// answered means that the daemon has answered. Before that, SIGUSR1 would end it: the signal kills a process without a handler
	// for it.
	answered bool
	// stale means that the daemon does not have its newest peers yet. signalled is when it was last notified.
	stale     bool
	signalled time.Time
}

type answer struct {
	state imex.State
	err   error
}

// run follows the daemon until it ends, until it must be replaced, or until a group comes that it was not started for. It returns
// the newest group, and an error unless that group needs another daemon.
func (w *watch) run(ctx context.Context) (Group, error) {
	var requests sync.WaitGroup
	defer requests.Wait()
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	w.pause = firstPause
	// A ticker drops ticks without a receiver. If this process gets no processor for a while, that while is one step: then the daemon and
	// the query got none either, and the node's delay is not mistaken for the daemon's.
	steps := time.NewTicker(unwellStep)
	defer steps.Stop()
	ask := time.NewTimer(w.pause)
	defer ask.Stop()
	signal := time.NewTimer(time.Hour)
	defer signal.Stop()
	for {
		w.supervisor.takeTurn()
		signal.Reset(w.untilSignal())
		select {
		case <-ctx.Done():
			return w.group, ctx.Err()
		case <-w.daemon.Exited():
			return w.group, w.daemon.Err()
		case next := <-w.supervisor.groups:
			if w.group.startsAnother(next) {
				return next, nil
			}
			w.regard(ctx, next)
		case <-steps.C:
			w.step()
		case <-ask.C:
			requests.Go(func() { w.ask(asking) })
		case answer := <-w.answers:
			if err := w.consider(answer); err != nil {
				w.patience = hungPatience
				return w.group, err
			}
			ask.Reset(w.pause)
		case <-signal.C:
			w.reload(ctx)
		}
	}
}

// ask queries the daemon for its state.
func (w *watch) ask(ctx context.Context) {
	var a answer
	a.state, a.err = w.daemon.State(ctx)
	w.answers <- a
}

// step counts a step of unwellStep.
func (w *watch) step() {
	if w.silentFor += unwellStep; w.starves() {
		w.starvedFor += unwellStep
		return
	}
	w.unwellFor += unwellStep
	w.unansweredFor += unwellStep
}

// starves reports whether the daemon could not have answered since the last step, because its node gave it no processor or no disk.
func (w *watch) starves() bool {
	before := w.threads
	if w.threads = (threads.Sample{}); w.silentFor < overdue {
		return false
	}
	now, err := w.daemon.Threads()
	if err != nil {
		return false // it has ended, or this kernel does not report it
	}
	w.threads = now
	lacks := threads.Lacked(before, now)
	if lacks != threads.Nothing {
		w.lacks = lacks
	}
	return lacks != threads.Nothing
}

// consider processes an answer. Its error means that the daemon must end.
func (w *watch) consider(a answer) error {
	well := a.err == nil && a.state != imex.Unavailable
	switch {
	case well:
		w.answered, w.unwellFor, w.starvedFor, w.silentFor = true, 0, 0, 0
	case a.err == nil:
		w.silentFor = 0
	case errors.Is(a.err, imex.ErrStarved):
		// The daemon was not queried.
		w.unwellFor, w.starvedFor = w.unwellFor-w.unansweredFor, w.starvedFor+w.unansweredFor
		w.lacks = threads.Processor
	}
	w.unansweredFor = 0
	late := a.err != nil && w.answered && w.silentFor < silentLimit
	why := w.why(a)
	w.supervisor.set(func(status *Status) {
		if late && status.Ready {
			return
		}
		status.State, status.Ready, status.Reason = a.state, a.state == imex.Ready, why
	})
	w.reportStarved(a, why)
	switch {
	case a.state == imex.Ready:
		w.pause = steadyInterval
	case late:
		w.pause = firstPause
	default:
		w.pause = min(max(w.pause, firstPause)*3/2, steadyInterval)
	}
	if !well && (w.unwellFor >= unwellLimit || w.unwellFor+w.starvedFor >= starvedLimit) {
		return w.beyondHelp(a)
	}
	return nil
}

// starved reports whether a daemon that gave this answer has been starved for most of the time in which it did not answer.
func (w *watch) starved(a answer) bool {
	return a.err != nil && w.starvedFor > 0 && 2*w.starvedFor >= w.silentFor
}

// why reports why a daemon with this answer is not ready; empty where it is.
func (w *watch) why(a answer) string {
	switch {
	case w.starved(a):
		return fmt.Sprintf("nvidia-imex does not answer: it, or nvidia-imex-ctl, waits for %s of its node; it is replaced only after %s, since "+
			"its end would take the memory that jobs on the node share", w.lacks, starvedLimit)
	case a.err != nil:
		return a.err.Error()
	case a.state != imex.Ready:
		return "the IMEX daemon is " + string(a.state)
	default:
		return ""
	}
}

// reportStarved reports a starved daemon, now and then.
func (w *watch) reportStarved(a answer, why string) {
	if !w.starved(a) || w.silentFor < silentLimit || !w.starvedReported.IsZero() && time.Since(w.starvedReported) < starvedPause {
		return
	}
	w.starvedReported = time.Now()
	w.supervisor.report("IMEXDaemonStarved", fmt.Sprintf("%s (no answer for %s, waiting for %s of these)",
		why, w.silentFor.Round(time.Second), w.starvedFor.Round(time.Second)))
}

// beyondHelp reports why a daemon must be replaced, if it must.
func (w *watch) beyondHelp(a answer) error {
	since := (w.unwellFor + w.starvedFor).Round(time.Second)
	if w.starved(a) {
		return fmt.Errorf("nvidia-imex has not reported its state for %s, too long even for one that waits for %s of its node: %w",
			since, w.lacks, a.err)
	}
	if a.err != nil {
		return fmt.Errorf("nvidia-imex has not reported its state for %s: %w", since, a.err)
	}
	return fmt.Errorf("nvidia-imex has been %s for %s, which it stays: the driver gives a node one IMEX session, which the node's own "+
		"service nvidia-imex may hold "+
		"(see systemctl status nvidia-imex there), and needs every GPU of the node in order", a.state, since)
}

// regard makes the daemon look up its peers again, which it does not do by itself.
func (w *watch) regard(ctx context.Context, group Group) {
	w.group = group
	w.supervisor.serves(serving{w.daemon, group})
	w.supervisor.set(func(status *Status) { status.Peers = len(group.Peers) })
	if err := writeHosts(w.supervisor.spec, group); err != nil {
		w.reportNotUpdated(ctx, err)
		return
	}
	w.stale = true
}

// untilSignal is when the daemon can be signalled to read its peers again: at once unless it was signalled recently.
func (w *watch) untilSignal() time.Duration {
	if !w.stale || !w.answered {
		return time.Hour // an answer or a group comes first, and with it another turn
	}
	if w.signalled.IsZero() {
		return 0
	}
	return max(0, reloadPause-time.Since(w.signalled))
}

// reload notifies the daemon of its peers.
func (w *watch) reload(ctx context.Context) {
	if !w.stale || !w.answered {
		return
	}
	w.stale, w.signalled = false, time.Now()
	if err := w.daemon.Reload(); err != nil {
		w.reportNotUpdated(ctx, err)
	}
}

// reportNotUpdated reports that the daemon runs on with its present peers: stopping it would not help.
func (w *watch) reportNotUpdated(ctx context.Context, err error) {
	klog.FromContext(ctx).Error(err, "The IMEX daemon does not have its new peers")
	w.supervisor.report("IMEXPeersNotUpdated", err.Error())
}
