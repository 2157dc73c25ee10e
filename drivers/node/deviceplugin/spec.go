package deviceplugin

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/cdi"
)

// Specified is a Backend whose answers name devices of a CDI spec.
type Specified interface {
	// Spec is the spec's file; empty: there is none now.
	Spec() string
}

// Keeper is a Specified that writes its spec again where somebody removed it, or where it no longer fits the node.
type Keeper interface {
	Specified
	KeepSpec(ctx context.Context) error
}

// keepSpec keeps the resource's CDI spec: without it no container with a device of the resource would start.
func (r *Resource) keepSpec(ctx context.Context) error {
	if keeper, ok := r.backend.(Keeper); ok {
		return keeper.KeepSpec(ctx)
	}
	return nil
}

// keepSpecs keeps the spec of each resource.
func (h *Host) keepSpecs(ctx context.Context) {
	h.mu.Lock()
	resources := slices.Collect(maps.Values(h.resources))
	h.mu.Unlock()
	for _, r := range resources {
		if err := r.keepSpec(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "A CDI spec cannot be written again", "resource", r.name)
		}
	}
}

// wait is the time since which containers wait for a resource's CDI spec to be read. A spec that is written again starts from zero.
type wait struct {
	mu    sync.Mutex
	since time.Time
}

// expectRead records that a container was given a device of the resource's CDI spec.
func (r *Resource) expectRead(now time.Time) {
	specified, ok := r.backend.(Specified)
	if !ok || specified.Spec() == "" {
		return
	}
	_, written, err := cdi.Read(specified.Spec())
	r.waiting.mu.Lock()
	defer r.waiting.mu.Unlock()
	if err == nil && r.waiting.since.Before(written) {
		r.waiting.since = now
	}
}

// unread reports whether a container has waited since before a time for the resource's CDI spec, which was not read. An error means that
// reads cannot be seen.
func (r *Resource) unread(before time.Time) (bool, error) {
	specified, ok := r.backend.(Specified)
	if !ok || specified.Spec() == "" {
		return false, nil
	}
	read, written, err := cdi.Read(specified.Spec())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it is about to be written
	}
	if err != nil {
		return false, err
	}
	r.waiting.mu.Lock()
	defer r.waiting.mu.Unlock()
	return !read && !r.waiting.since.Before(written) && r.waiting.since.Before(before), nil
}
