package agent

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gpufabric.io/fakes/fault"
)

const (
	// faultRetry is the time after which a result that could not be written is written again.
	faultRetry = time.Second
	// lookSpread is the time over which all agents look for a node that a fault names and that has not reported: the first to find that it
	// does not exist reports it, and the others see the report.
	lookSpread = 3 * time.Second
	// longestFault bounds a fault's duration.
	longestFault = 30 * 24 * time.Hour
)

// faults are the FabricFaults of the cluster.
type faults struct {
	wake chan struct{}
	// looks are the times at which to look for nodes that have not reported; the zero time: not again. Only keepFaults uses them.
	looks map[missing]time.Time
	mu    sync.Mutex
	// all are those that exist, by UID; nil until they have been read.
	all map[string]fabricFault
}

// missing is a node that a fault names and that its status does not have.
type missing struct{ uid, node string }

func newFaults() *faults {
	return &faults{wake: make(chan struct{}, 1), looks: map[missing]time.Time{}}
}

// changed has the faults considered again.
func (f *faults) changed() {
	select {
	case f.wake <- struct{}{}:
	default: // they will be
	}
}

func (f *faults) set(all map[string]fabricFault) {
	f.mu.Lock()
	f.all = all
	f.mu.Unlock()
	f.changed()
}

// current are the faults that exist, in the order in which they were made; false before they have been read.
func (f *faults) current() ([]fabricFault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.all), olderFirst), f.all != nil
}

func (a *agent) followFaults(ctx context.Context) {
	a.retry(ctx, "following FabricFaults", func(reached func()) error {
		return a.API.watchFaults(ctx, func(all map[string]fabricFault) {
			reached()
			a.faults.set(all)
		})
	})
}

// keepFaults applies, undoes and reports faults whenever one changes, the node changes or one ends.
func (a *agent) keepFaults(ctx context.Context) {
	for {
		next := a.considerFaults(ctx, time.Now())
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-a.faults.wake:
		case <-due:
		}
	}
}

// considerFaults triggers the due events, and returns the time of the next one; the zero time: when something changes.
func (a *agent) considerFaults(ctx context.Context, now time.Time) time.Time {
	all, read := a.faults.current()
	if !read {
		return time.Time{}
	}
	results, next, err := a.happen(all, now)
	if err != nil {
		a.Log.Error("FabricFaults", "error", err, "retry", faultRetry)
		next = sooner(next, now.Add(faultRetry))
	}
	for _, f := range all {
		if o, has := results[f.Metadata.UID]; has && f.Status.Nodes[a.NodeName] != o {
			if err := a.API.reportFault(ctx, f, a.NodeName, o); err != nil {
				a.Log.Warn("FabricFaults", "error", err, "retry", faultRetry)
				next = sooner(next, now.Add(faultRetry))
			}
		}
		next = sooner(next, a.lookForNodes(ctx, f, now))
	}
	maps.DeleteFunc(a.faults.looks, func(m missing, _ time.Time) bool {
		return !slices.ContainsFunc(all, func(f fabricFault) bool { return f.Metadata.UID == m.uid })
	})
	return next
}

func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// happen applies the faults that are new to the node and undoes those whose time is over or that were deleted. It returns the node's result
// for each fault by UID, and when the next one ends.
func (a *agent) happen(all []fabricFault, now time.Time) (results map[string]outcome, next time.Time, err error) {
	a.hardware.Lock()
	defer a.hardware.Unlock()
	a.mu.Lock()
	labels, problem := a.labels, a.problem
	a.mu.Unlock()
	if labels == nil {
		return nil, next, nil // the node is still unknown
	}
	results = map[string]outcome{}
	if labels[LabelProfile] == "" || problem != nil {
		message := "the node has no fake hardware: set its label " + LabelProfile
		if problem != nil {
			message = "the node has no fake hardware: " + problem.Error()
		}
		for _, f := range all {
			if selected, meant := f.selects(a.NodeName, labels); selected && meant {
				results[f.Metadata.UID] = outcome{Result: resultWaiting, Message: message}
			}
		}
		return results, next, nil
	}
	done, err := readRecord(a.Root)
	if err != nil {
		return nil, next, err
	}
	if next, err = a.undo(done, all, now); err != nil {
		return nil, next, err
	}
	for _, f := range all {
		h, has := done[f.Metadata.UID]
		if selected, _ := f.selects(a.NodeName, labels); selected && !has {
			if h, err = a.trigger(done, f, now); err != nil {
				return results, next, err
			}
			next = sooner(next, h.ends())
			has = true
		}
		if has {
			results[f.Metadata.UID] = h.outcome
		}
	}
	return results, next, nil
}

// ends is when the event is undone; the zero time: never.
func (h happened) ends() time.Time {
	if h.Undo == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, h.Until)
	if err != nil {
		return time.Unix(0, 0) // a damaged record ends it now
	}
	return t
}

// trigger lets a fault happen to the node, and records it before and after.
func (a *agent) trigger(done record, f fabricFault, now time.Time) (happened, error) {
	h := happened{outcome: outcome{Result: resultInterrupted, Time: now.UTC().Format(time.RFC3339),
		Message: "the agent ended while the event happened, so that it may have happened; it is not repeated"}}
	done[f.Metadata.UID] = h
	if err := done.write(a.Root); err != nil {
		delete(done, f.Metadata.UID)
		return h, err
	}
	h, err := f.apply(a.Root, now)
	if err != nil {
		h.Result, h.Message = resultRefused, err.Error()
	}
	a.Log.Info("FabricFault", "name", f.Metadata.Name, "event", f.Spec.Event, "arguments", f.arguments(), "result", h.Result, "error", err)
	done[f.Metadata.UID] = h
	return h, done.write(a.Root)
}

// apply triggers the event, unless its duration cannot be kept.
func (f *fabricFault) apply(root string, now time.Time) (happened, error) {
	h := happened{outcome: outcome{Result: resultApplied, Time: now.UTC().Format(time.RFC3339)}}
	undone := h
	if f.Spec.Duration != "" {
		d, err := time.ParseDuration(f.Spec.Duration)
		if err != nil || d <= 0 || d > longestFault {
			return h, fmt.Errorf("duration is %q, want a time such as 90s or 2h30m, at most %s", f.Spec.Duration, longestFault)
		}
		if _, err := fault.Find(f.Spec.Event); err != nil {
			return h, err
		}
		event, with, ok := fault.Opposite(f.Spec.Event, f.arguments())
		if !ok {
			return h, fmt.Errorf("duration is %q, but %s cannot be undone; leave duration out", f.Spec.Duration, f.Spec.Event)
		}
		undone.Undo, undone.With, undone.Until = event, with, now.Add(d).UTC().Format(time.RFC3339Nano)
	}
	if err := fault.Apply(root, f.Spec.Event, f.arguments()); err != nil {
		return h, err
	}
	return undone, nil
}

// undo ends the faults whose time is over, or that no longer exist, and forgets the latter. It returns when the next one ends.
func (a *agent) undo(done record, all []fabricFault, now time.Time) (next time.Time, err error) {
	exists := map[string]bool{}
	for _, f := range all {
		exists[f.Metadata.UID] = true
	}
	changed := false
	for uid, h := range done {
		if end := h.ends(); !end.IsZero() && exists[uid] && now.Before(end) {
			next = sooner(next, end)
			continue
		}
		if h.Undo != "" {
			err := fault.Apply(a.Root, h.Undo, h.With)
			a.Log.Info("FabricFault ends", "uid", uid, "event", h.Undo, "arguments", h.With, "error", err)
			h = happened{outcome: outcome{Result: resultReverted, Time: now.UTC().Format(time.RFC3339)}}
			if err != nil {
				h.Message = "the node was not as the event had left it: " + err.Error()
			}
			done[uid], changed = h, true
		}
		if !exists[uid] {
			delete(done, uid)
			changed = true
		}
	}
	if changed {
		err = done.write(a.Root)
	}
	return next, err
}

// lookForNodes reports nodes that the fault names and that do not exist, and returns when to look for others.
func (a *agent) lookForNodes(ctx context.Context, f fabricFault, now time.Time) (next time.Time) {
	for _, name := range f.Spec.Nodes {
		at := missing{f.Metadata.UID, name}
		when, waiting := a.faults.looks[at]
		if _, reported := f.Status.Nodes[name]; reported || name == a.NodeName || waiting && when.IsZero() {
			continue
		}
		if !waiting {
			when = now.Add(rand.N(lookSpread))
		} else if !now.Before(when) {
			when = a.look(ctx, f, name, now)
		}
		a.faults.looks[at] = when
		next = sooner(next, when)
	}
	return next
}

// look returns when to look again; the zero time: never, since the node exists or it was reported that it does not.
func (a *agent) look(ctx context.Context, f fabricFault, name string, now time.Time) time.Time {
	exists, err := a.API.nodeExists(ctx, name)
	if err == nil && !exists {
		err = a.API.reportFault(ctx, f, name, outcome{Result: resultRefused, Message: fmt.Sprintf("the cluster has no node %q", name),
			Time: now.UTC().Format(time.RFC3339)})
	}
	if err != nil {
		a.Log.Warn("FabricFaults", "error", err, "retry", lookSpread)
		return now.Add(lookSpread)
	}
	return time.Time{}
}
