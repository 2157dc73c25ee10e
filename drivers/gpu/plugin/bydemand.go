package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/layout"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/store"
)

// A layout by demand changes a part of a GPU while its other instances are in use. In this order: the published devices follow the
// layout (instances that it does not plan, and devices that it withdraws, are left out), the ledger holds the parts that change,
// instances are destroyed and created, the new ones are published, the state is reported.

const (
	// cutTries is how often a change of a GPU fails until it counts as failed; the controller then leaves the GPU alone.
	cutTries = 3
	// cutRetry is how long the node waits after a failure: a monitor that has an instance open closes it within seconds.
	cutRetry = 10 * time.Second
	// cutRetryLate is the same after the last of cutTries.
	cutRetryLate = time.Minute
)

// tries are the failed tries to apply one generation of a layout, by GPU UUID.
type tries struct {
	of     string
	failed map[string]int
}

// keptByDemand stores the layouts by demand, so that a restart does not publish a device that they withdraw. A nil file stores nothing.
type keptByDemand struct{ file *store.File[byDemandData] }

// byDemandData are the layouts by GPU UUID.
type byDemandData struct {
	GPUs map[string]devices.Layout `json:"gpus,omitempty"`
}

func byDemandFormat() store.Format[byDemandData] {
	return store.Format[byDemandData]{Name: "gpufabric-mig-by-demand", Version: 1}
}

// openByDemand reads the file of an earlier run. The error names unreadable files; the value can be used all the same.
func openByDemand(path string, writer atomicfile.Writer) (keptByDemand, error) {
	file, unreadable, err := store.OpenFile(path, byDemandFormat(), 0, writer)
	for _, u := range unreadable {
		err = errors.Join(err, errors.New(u.String()))
	}
	if err != nil {
		err = fmt.Errorf("%w: devices that a MIGLayout withdraws are published until it is read", err)
	}
	return keptByDemand{file}, err
}

func (k keptByDemand) get() map[string]devices.Layout {
	if k.file == nil {
		return nil
	}
	data, _ := k.file.Get()
	return data.GPUs
}

// concerning omits layouts that the node does not apply: layouts with auto, which the controller turns into one with gpus for each node;
// and such a one, if an administrator has made a layout for the node since.
func concerning(selected []v1alpha1.MIGLayout) []v1alpha1.MIGLayout {
	out := slices.DeleteFunc(slices.Clone(selected), func(l v1alpha1.MIGLayout) bool { return l.Spec.Auto != nil })
	if slices.ContainsFunc(out, func(l v1alpha1.MIGLayout) bool { return !l.ByDemand() }) {
		out = slices.DeleteFunc(out, func(l v1alpha1.MIGLayout) bool { return l.ByDemand() })
	}
	return out
}

// follow offers GPUs by these layouts, and stores them first. Where they cannot be stored, nothing changes: the controller would cut
// devices that the next start of this role publishes again.
func (w *layouts) follow(gpus map[string]devices.Layout) error {
	if w.kept.file != nil {
		if err := w.kept.file.Put(byDemandData{gpus}); err != nil {
			return fmt.Errorf("store the layout for the next start: %w", err)
		}
	}
	w.kind.SetByDemand(gpus)
	return nil
}

// leave does not offer a GPU by demand any more. The stored state counts until the next start has read the MIGLayouts.
func (w *layouts) leave(ctx context.Context) {
	if w.kept.file != nil && len(w.kept.get()) > 0 {
		if err := w.kept.file.Put(byDemandData{}); err != nil {
			klog.FromContext(ctx).Error(err, "Could not store the end of layouts by demand for the next start")
		}
	}
	w.kind.SetByDemand(nil)
}

// retryAfter is when a layout is tried again without an event; 0: not at all.
func (w *layouts) retryAfter(l *v1alpha1.MIGLayout, state v1alpha1.MIGLayoutState) time.Duration {
	failures := 0
	if w.tries.of == generation(l) {
		for _, n := range w.tries.failed {
			failures = max(failures, n)
		}
	}
	switch {
	case len(l.Spec.GPUs) > 0 && failures >= cutTries:
		return cutRetryLate
	case len(l.Spec.GPUs) > 0 && failures > 0:
		return cutRetry
	case state == v1alpha1.MIGLayoutWaiting:
		return layoutRetry
	}
	return 0
}

func generation(l *v1alpha1.MIGLayout) string { return fmt.Sprintf("%s/%d", identity(l), l.Generation) }

// applyGPUs brings the node's GPUs as close to an explicit layout as is possible now, and completes the node's entry.
func (w *layouts) applyGPUs(ctx context.Context, l *v1alpha1.MIGLayout, entry *v1alpha1.MIGLayoutNode) {
	node := w.kind.Hardware().Node
	if err := layout.Mistake(l); err != nil {
		entry.State, entry.Reason, entry.Message = v1alpha1.MIGLayoutFailed, "InvalidSpec", err.Error()
		return
	}
	if w.tries.of != generation(l) {
		w.tries = tries{of: generation(l), failed: map[string]int{}}
	}
	wanted := map[string]devices.Layout{}
	for _, g := range l.Spec.GPUs {
		offered := devices.Layout{Withdrawn: g.Withdrawn}
		for _, i := range g.Instances {
			offered.Instances = append(offered.Instances, devices.Placed{Profile: i.Profile, Start: int(i.Start)})
		}
		wanted[g.UUID] = offered
	}
	if err := w.follow(wanted); err != nil {
		entry.State, entry.Reason, entry.Message = v1alpha1.MIGLayoutWaiting, "StateNotKept", err.Error()
		states := map[string]v1alpha1.MIGNodeGPU{}
		for uuid := range wanted {
			states[uuid] = v1alpha1.MIGNodeGPU{State: v1alpha1.MIGLayoutWaiting, Message: entry.Message}
		}
		entry.GPUs, entry.Profiles = describeGPUs(node.GPUs, states), describeProfiles(node.GPUs)
		return
	}
	var failed, waiting []string
	states := map[string]v1alpha1.MIGNodeGPU{}
	changed := false
	for _, planned := range l.Spec.GPUs {
		g := node.ByUUID(planned.UUID)
		if g == nil {
			failed = append(failed, fmt.Sprintf("the node has no GPU %s", planned.UUID))
			continue
		}
		touched, err := w.applyGPU(ctx, g, planned.Instances, l.Name)
		changed = changed || touched
		state := v1alpha1.MIGNodeGPU{State: v1alpha1.MIGLayoutApplied}
		if err != nil {
			state.State, state.Message = w.judge(g, err)
			text := fmt.Sprintf("GPU %d: %s", g.Index, state.Message)
			if state.State == v1alpha1.MIGLayoutFailed {
				failed = append(failed, text)
			} else {
				waiting = append(waiting, text)
			}
		} else {
			delete(w.tries.failed, g.UUID)
		}
		states[g.UUID] = state
	}
	if changed {
		w.kind.LayOut()
	}
	applied := fmt.Sprintf("%d of %d GPUs", len(l.Spec.GPUs)-len(failed)-len(waiting), len(l.Spec.GPUs))
	entry.State, entry.Reason, entry.Message = v1alpha1.MIGLayoutApplied, "Applied", applied
	switch {
	case len(failed) > 0:
		entry.State, entry.Reason = v1alpha1.MIGLayoutFailed, "ApplyFailed"
		entry.Message = applied + "; " + strings.Join(slices.Concat(failed, waiting), "; ")
	case len(waiting) > 0:
		entry.State, entry.Reason = v1alpha1.MIGLayoutWaiting, "InUse"
		entry.Message = applied + "; waiting for " + strings.Join(waiting, "; ")
	}
	entry.GPUs, entry.Profiles = describeGPUs(node.GPUs, states), describeProfiles(node.GPUs)
}

// judge reports whether a GPU that could not be changed waits or has failed, and counts the tries. A GPU in use is no failed try.
func (w *layouts) judge(g *inventory.GPU, err error) (v1alpha1.MIGLayoutState, string) {
	var held *ledger.ConflictError
	var impossible *impossibleError
	switch {
	case errors.As(err, &held):
		return v1alpha1.MIGLayoutWaiting, err.Error()
	case errors.As(err, &impossible):
		return v1alpha1.MIGLayoutFailed, err.Error()
	}
	w.tries.failed[g.UUID] = min(w.tries.failed[g.UUID]+1, cutTries)
	tried := fmt.Sprintf("%v (try %d of %d)", err, w.tries.failed[g.UUID], cutTries)
	if w.tries.failed[g.UUID] < cutTries {
		return v1alpha1.MIGLayoutWaiting, tried
	}
	return v1alpha1.MIGLayoutFailed, tried
}

// impossibleError is a layout that a GPU cannot have, however often it is tried.
type impossibleError struct{ error }

// applyGPU changes the parts of a GPU that differ from the plan, where nothing holds them, and publishes its new instances. changed is as
// applyPlan's.
func (w *layouts) applyGPU(ctx context.Context, g *inventory.GPU, planned []v1alpha1.MIGLayoutInstance, name string) (changed bool,
	err error) {
	change, err := layout.Changes(g, planned)
	switch {
	case err != nil:
		return false, &impossibleError{err}
	case len(planned) > 0 && !g.CanBeCut():
		return false, &impossibleError{fmt.Errorf("%s: its MIG mode is off, and only a reset switches it on (nvidia-smi -i %d -mig 1; %s)",
			g.UUID, g.Index, partition.HowToReset(g))}
	case len(planned) == 0 && !g.CanBeWhole():
		return false, &impossibleError{fmt.Errorf("%s: it is in MIG mode, and only a reset switches it off (nvidia-smi -i %d -mig 0; %s)", g.UUID,
			g.Index, partition.HowToReset(g))}
	}
	changed = w.kind.AdoptMode(g) // the layout decides about the GPU's mode
	if change.None() {
		return changed, nil
	}
	owner := ledger.Owner{ID: "miglayout/" + g.UUID, Name: "MIGLayout " + name}
	holds := changedHolds(change)
	if err := w.ledger.TryAcquire(owner, holds...); err != nil {
		w.notifyWhenFree(ctx, g, holds)
		return changed, err
	}
	defer w.ledger.Release(owner.ID)
	unlock, err := w.kind.Lock(ctx, g.UUID)
	if err != nil {
		return changed, err
	}
	defer unlock()
	w.kind.OwnMode(g.UUID)
	klog.FromContext(ctx).Info("Changing a part of a GPU", "gpu", g.UUID, "layout", name, "destroy", len(change.Doomed), "create",
		len(change.Missing))
	err = change.Apply()
	w.kind.LayOut() // also after an error, and before a claim may have these parts
	return false, err
}

// changedHolds are the holds of the parts that a change destroys or creates.
func changedHolds(c layout.Change) []ledger.Reservation {
	var holds []ledger.Reservation
	for _, w := range slices.Concat(c.Doomed, c.Missing) {
		for _, hold := range claims.HoldsOf(&devices.Device{Form: devices.MIG, GPU: c.GPU, Profile: w.Profile, Placement: w.Placement}) {
			if !slices.Contains(holds, hold) {
				holds = append(holds, hold)
			}
		}
	}
	return holds
}

// describeGPUs describes all GPUs of the node for its entry; states are those of the layout, by UUID.
func describeGPUs(gpus []*inventory.GPU, states map[string]v1alpha1.MIGNodeGPU) []v1alpha1.MIGNodeGPU {
	var out []v1alpha1.MIGNodeGPU
	for _, g := range gpus {
		d := states[g.UUID]
		d.UUID, d.Device, d.ProductName = g.UUID, devices.WholeName(g), g.ProductName
		d.MemoryBytes = int64(g.MemoryBytes)                  //nolint:gosec // far below 2^63 bytes
		d.Multiprocessors = int32(devices.Multiprocessors(g)) //nolint:gosec // hundreds
		pending := g.MIG != nil && g.MIG.ModeIsPending()
		d.Whole, d.MIG = g.CanBeWhole() && !pending, g.CanBeCut() && !pending
		if pending && d.Message == "" {
			d.Message = pendingMode(g)
		}
		for _, i := range standing(g) {
			d.Instances = append(d.Instances, v1alpha1.MIGLayoutInstance{Profile: i.Profile.Name,
				Start: int32(i.Placement.Start)}) //nolint:gosec // memory slices, in single digits
		}
		out = append(out, d)
	}
	return out
}

// describeProfiles describes the MIG profiles of the node's kinds of GPUs.
func describeProfiles(gpus []*inventory.GPU) []v1alpha1.MIGNodeProfile {
	var out []v1alpha1.MIGNodeProfile
	seen := map[string]bool{}
	for _, g := range gpus {
		if g.MIG == nil || seen[g.ProductName] {
			continue
		}
		seen[g.ProductName] = true
		for _, p := range g.MIG.Profiles {
			if len(p.Placements) == 0 {
				continue
			}
			d := v1alpha1.MIGNodeProfile{ProductName: g.ProductName, Name: p.Name, MemoryBytes: int64(p.MemoryBytes), //nolint:gosec // as above
				ID: int32(p.ID), ComputeSlices: int32(p.Slices), //nolint:gosec // as above
				Size: int32(p.Placements[0].Size), Max: int32(p.MaxInstances), //nolint:gosec // as above
				Multiprocessors: int32(p.Multiprocessors), CopyEngines: int32(p.CopyEngines), Decoders: int32(p.Decoders), //nolint:gosec // as above
				Encoders: int32(p.Encoders), JPEGEngines: int32(p.JPEGEngines), OFAEngines: int32(p.OFAEngines)} //nolint:gosec // as above
			for _, at := range p.Placements {
				d.Starts = append(d.Starts, int32(at.Start)) //nolint:gosec // as above
			}
			out = append(out, d)
		}
	}
	return out
}
