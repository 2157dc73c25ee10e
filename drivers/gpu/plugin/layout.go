package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/layout"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/gpu/selection"
	"gpufabric.io/drivers/node/ledger"
)

// layoutRetry is how long a layout waits for GPUs in use, where no event reports the end of that use.
const layoutRetry = 5 * time.Second

// layouts gives the node's GPUs the layout of the one MIGLayout that selects the node.
type layouts struct {
	kind   *claims.Preparer
	ledger *ledger.Ledger
	view   selection.Node
	// again holds a token when GPUs may have lost their layout. free holds one when an awaited GPU is released.
	again, free chan struct{}
	// awaited are the GPUs that a MIGLayout waits for, waiters the goroutines that wait for them.
	awaited nameSet
	waiters sync.WaitGroup
	// kept stores the layouts by demand. tries are the failed tries to apply the latest one.
	kept  keptByDemand
	tries tries
}

func newLayouts(kind *claims.Preparer, holders *ledger.Ledger, view selection.Node, kept keptByDemand) *layouts {
	return &layouts{kind: kind, ledger: holders, view: view, again: make(chan struct{}, 1), free: make(chan struct{}, 1), kept: kept}
}

// Run follows the layouts until ctx ends.
func (w *layouts) Run(ctx context.Context) error {
	if w.view.Dynamic == nil {
		return nil
	}
	defer w.waiters.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := make(chan []v1alpha1.MIGLayout)
	ended := make(chan error, 1)
	go func() { // Ends with ctx.
		ended <- layout.Watch(ctx, w.view, func(l []v1alpha1.MIGLayout) {
			select {
			case updates <- concerning(l):
			case <-ctx.Done():
			}
		})
	}()
	var selected []v1alpha1.MIGLayout
	var retry <-chan time.Time
	// reported are the entries of the layouts' statuses, by layout, as identity returns it. The controller removes them with the Node object:
	// a new list may be that of another.
	reported := map[string]v1alpha1.MIGLayoutNode{}
	for {
		select {
		case selected = <-updates:
			reported = map[string]v1alpha1.MIGLayoutNode{}
		case <-retry:
		case <-w.free:
		case <-w.again:
		case err := <-ended:
			return err
		}
		retry = nil
		// An entry of a layout that no longer selects the node, or that another of its name replaced, is gone with it, so it no longer
		// counts as reported.
		still := map[string]v1alpha1.MIGLayoutNode{}
		for i, entry := range w.applyLayouts(ctx, selected) {
			l := &selected[i]
			if after := w.retryAfter(l, entry.State); after > 0 {
				retry = time.After(after)
			}
			if !reflect.DeepEqual(reported[identity(l)], entry) {
				if err := layout.Report(ctx, w.view, l.Name, entry); err != nil {
					klog.FromContext(ctx).Error(err, "Could not report on a MIGLayout")
					retry = time.After(layoutRetry)
					continue
				}
			}
			still[identity(l)] = entry
		}
		reported = still
	}
}

// identity distinguishes a layout from the next one of its name.
func identity(l *v1alpha1.MIGLayout) string { return l.Name + "/" + string(l.UID) }

// applyAgain applies the node's layout to GPUs that lost it.
func (w *layouts) applyAgain() {
	select {
	case w.again <- struct{}{}:
	default: // a token is there already
	}
}

// applyLayouts brings the node as close to its layout as is possible now, and returns the state for each MIGLayout.
func (w *layouts) applyLayouts(ctx context.Context, selected []v1alpha1.MIGLayout) []v1alpha1.MIGLayoutNode {
	out := make([]v1alpha1.MIGLayoutNode, 0, len(selected))
	for i := range selected {
		l := &selected[i]
		entry := v1alpha1.MIGLayoutNode{Name: w.view.Name, ObservedGeneration: l.Generation}
		switch {
		case len(selected) > 1:
			entry.State, entry.Reason = v1alpha1.MIGLayoutFailed, "SeveralLayouts"
			entry.Message = fmt.Sprintf("the node keeps what it has: the MIGLayouts %s all select it; narrow their nodeSelectors", names(selected))
		case len(l.Spec.GPUs) > 0:
			w.applyGPUs(ctx, l, &entry)
		default:
			w.leave(ctx)
			entry.State, entry.Reason, entry.Message = w.applyLayout(ctx, l)
		}
		out = append(out, entry)
	}
	if len(selected) == 0 {
		w.leave(ctx)
	}
	return out
}

func names(layouts []v1alpha1.MIGLayout) string {
	var out []string
	for _, l := range layouts {
		out = append(out, l.Name)
	}
	return strings.Join(out, ", ")
}

func (w *layouts) applyLayout(ctx context.Context, l *v1alpha1.MIGLayout) (state v1alpha1.MIGLayoutState, reason,
	message string) {
	if err := layout.Mistake(l); err != nil {
		return v1alpha1.MIGLayoutFailed, "InvalidSpec", err.Error()
	}
	entries := l.Spec.Config.Layouts[l.Spec.Layout]
	plans, err := layout.Plans(w.kind.Hardware().Node.GPUs, entries, standing)
	if err != nil {
		return v1alpha1.MIGLayoutFailed, "LayoutImpossible", err.Error()
	}
	var waiting, failed []string
	changed := false
	for _, plan := range plans {
		touched, err := w.applyPlan(ctx, plan, l.Name)
		changed = changed || touched
		var held *ledger.ConflictError
		switch {
		case err == nil:
		case errors.As(err, &held), errors.Is(err, partition.ErrBusy), errors.Is(err, partition.ErrNeedsReset):
			if held != nil {
				w.notifyWhenFree(ctx, plan.GPU, reservationsOf(plan.GPU))
			}
			waiting = append(waiting, fmt.Sprintf("GPU %d: %v", plan.GPU.Index, err))
		default:
			failed = append(failed, fmt.Sprintf("GPU %d: %v", plan.GPU.Index, err))
		}
	}
	if changed {
		w.kind.LayOut()
	}
	applied := strings.Join(append([]string{fmt.Sprintf("%d of %d GPUs", len(plans)-len(waiting)-len(failed), len(plans))},
		layout.WithoutEffect(w.kind.Hardware().Node.GPUs, entries)...), "; ")
	switch {
	case len(failed) > 0:
		return v1alpha1.MIGLayoutFailed, "ApplyFailed", applied + "; " + strings.Join(slices.Concat(failed, waiting), "; ")
	case len(waiting) > 0:
		return v1alpha1.MIGLayoutWaiting, "InUse", applied + "; waiting for " + strings.Join(waiting, "; ")
	default:
		return v1alpha1.MIGLayoutApplied, "Applied", applied
	}
}

// reservationsOf are the reservations of all parts of GPUs.
func reservationsOf(gpus ...*inventory.GPU) (all []ledger.Reservation) {
	for _, g := range gpus {
		all = append(all, claims.HoldsOf(&devices.Device{Form: devices.Whole, GPU: g})...)
	}
	return all
}

// notifyWhenFree puts a token into free once these holds on a GPU are released. At most one goroutine waits for a GPU.
func (w *layouts) notifyWhenFree(ctx context.Context, g *inventory.GPU, holds []ledger.Reservation) {
	if !w.awaited.add(g.UUID) {
		return
	}
	owner := ledger.Owner{ID: "miglayout-waiting/" + g.UUID, Name: "a waiting MIGLayout"}
	w.waiters.Go(func() {
		defer w.awaited.remove(g.UUID)
		if w.ledger.Acquire(ctx, owner, holds...) != nil {
			return
		}
		w.ledger.Release(owner.ID)
		select {
		case w.free <- struct{}{}:
		default:
		}
	})
}

// nameSet is a set for concurrent use.
type nameSet struct {
	mu   sync.Mutex
	held map[string]bool
}

// add returns whether the name is new.
func (s *nameSet) add(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[name] {
		return false
	}
	if s.held == nil {
		s.held = map[string]bool{}
	}
	s.held[name] = true
	return true
}

func (s *nameSet) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, name)
}

// standing returns the instances that the layout may keep in place.
func standing(g *inventory.GPU) []layout.Wanted {
	now, err := layout.Standing(g)
	if err != nil {
		return nil // instances that cannot be listed cannot be kept; applying reports why
	}
	return now
}

// applyPlan changes one GPU where that is necessary and nothing holds a part of it, and publishes its new instances. changed reports that
// only the owner of its MIG mode has changed, which is not yet published.
func (w *layouts) applyPlan(ctx context.Context, plan layout.Plan, name string) (changed bool, err error) {
	if !plan.MIG {
		changed = w.kind.AdoptMode(plan.GPU) // the layout wants no MIG mode
	}
	// Instances that claims had made go with the claims.
	if done, err := plan.Done(); err != nil || done && !w.kind.MadeOn(plan.GPU.UUID) {
		return changed, err
	}
	owner := ledger.Owner{ID: "miglayout/" + plan.GPU.UUID, Name: "MIGLayout " + name}
	if err := w.ledger.TryAcquire(owner, reservationsOf(plan.GPU)...); err != nil {
		return changed, err
	}
	defer w.ledger.Release(owner.ID)
	unlock, err := w.kind.Lock(ctx, plan.GPU.UUID)
	if err != nil {
		return changed, err
	}
	defer unlock()
	w.kind.OwnMode(plan.GPU.UUID)
	klog.FromContext(ctx).Info("Giving a GPU its layout", "gpu", plan.GPU.UUID, "layout", name, "mig", plan.MIG, "instances",
		len(plan.Instances))
	err = plan.Apply()
	w.kind.SettleMode(plan.GPU)
	w.kind.LayOut() // also after an error; and before a claim may have the GPU, which would take the new instances for a stranger's
	return false, err
}
