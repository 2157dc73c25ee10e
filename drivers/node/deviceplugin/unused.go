package deviceplugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// endPatience is how long an allocation waits for containers that are just ending. During the wait the kubelet admits no other pod. It
	// fails the pod when the allocation fails.
	endPatience = 3 * time.Second
	// endInterval is how often containers are looked for whose pod the kubelet has forgotten.
	endInterval = 500 * time.Millisecond
	// reasonStillUsed is the reason of the report on a device whose pod is forgotten and still runs.
	reasonStillUsed = "DeviceStillUsed"
	// stillUsedPatience is how long a forgotten pod has run before that is worth a report.
	stillUsedPatience = 10 * time.Second
)

// Exclusive is a Backend that may give each of its devices to one pod alone.
type Exclusive interface {
	Exclusive() bool
}

// exclusive reports whether devices of the resource must not be used by two pods.
func (r *Resource) exclusive() bool {
	backend, ok := r.backend.(Exclusive)
	return ok && r.host.Holders != nil && backend.Exclusive()
}

// used returns the pods with processes that may use one of the devices. With an error there may be more.
func (r *Resource) used(ctx context.Context, ids []string) (id string, users []User, err error) {
	for _, id := range ids {
		users, unread := r.host.Holders.Users(ctx, r.host.Holders.Key(r.name, id))
		if len(users) > 0 {
			return id, users, nil
		}
		err = unread
	}
	return "", nil, err
}

// awaitUnused waits, for endPatience at most, until no pod has a process that may use one of the devices. The pod that gets them has
// none: the kubelet allocates before it makes the pod's cgroup.
func (r *Resource) awaitUnused(ctx context.Context, ids []string) error {
	if !r.exclusive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	tick := time.NewTicker(endInterval / 5)
	defer tick.Stop()
	for {
		id, users, err := r.used(ctx, ids)
		if len(users) == 0 && err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.host.look()
			if len(users) == 0 {
				return fmt.Errorf("cannot determine whether a pod still uses the devices %q: %w", ids, err)
			}
			why := "which the kubelet no longer counts (deleted by force?)"
			if slices.ContainsFunc(users, func(u User) bool { return !u.Forgotten }) {
				why = "which got it under another name of the resource"
			}
			return fmt.Errorf("%s is still used by %s, %s: it is not given to another pod until that has ended (end it with crictl rm --force on "+
				"the node)",
				id, describe(users), why)
		}
	}
}

// prefer returns the devices that suit a container best, those in use last.
func (r *Resource) prefer(ctx context.Context, backend Preferrer, request *pluginapi.ContainerPreferredAllocationRequest) []string {
	available, required, size := request.GetAvailableDeviceIDs(), request.GetMustIncludeDeviceIDs(), int(request.GetAllocationSize())
	if r.exclusive() {
		unused := slices.DeleteFunc(slices.Clone(available), func(id string) bool {
			_, users, _ := r.used(ctx, []string{id})
			return len(users) > 0 && !slices.Contains(required, id)
		})
		if len(unused) >= size {
			available = unused
		}
	}
	return backend.Prefer(available, required, size)
}

// withheld are devices of a resource that are unhealthy for the kubelet, whatever their health in the backend.
type withheld struct {
	mu      sync.Mutex
	devices []Device // as last given to Update; only those of an exclusive resource are kept
	ids     map[string]bool
}

// apply stores devices and returns them with the withheld ones unhealthy. The mutex must be held.
func (w *withheld) apply(devices []Device) []Device {
	w.devices = devices
	if len(w.ids) == 0 {
		return devices
	}
	devices = slices.Clone(devices)
	for i := range devices {
		devices[i].Healthy = devices[i].Healthy && !w.ids[devices[i].ID]
	}
	return devices
}

// withhold reports the devices that which selects as unhealthy to the kubelet, and the others unchanged.
func (r *Resource) withhold(which func(id string) bool) {
	w := &r.withheld
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := map[string]bool{}
	for _, d := range w.devices {
		if which(d.ID) {
			ids[d.ID] = true
		}
	}
	if !maps.Equal(ids, w.ids) {
		w.ids = ids
		r.offer(w.apply(w.devices))
	}
}

// look makes followHolders look again.
func (h *Host) look() {
	select {
	case h.looked <- struct{}{}:
	default:
	}
}

// followHolders makes devices of exclusive resources unhealthy while a pod that the kubelet has forgotten may use them, until ctx ends:
// the scheduler then does not count them.
func (h *Host) followHolders(ctx context.Context) {
	since := map[string]time.Time{}
	tick := time.NewTicker(endInterval)
	defer tick.Stop()
	for {
		kept := h.withhold(h.Holders.Forgotten(ctx))
		h.reportForgotten(ctx, kept, since)
		var again <-chan time.Time
		if len(kept) > 0 {
			again = tick.C
		}
		select {
		case <-h.looked:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// withhold makes the devices of exclusive resources unhealthy that forgotten pods may use, and the others healthy again. It returns
// those pods, by the key of such a device.
func (h *Host) withhold(forgotten map[string][]User) map[string][]User {
	h.mu.Lock()
	var resources []*Resource
	for _, r := range h.resources {
		if r.exclusive() {
			resources = append(resources, r)
		}
	}
	h.mu.Unlock()
	kept := map[string][]User{}
	for _, r := range resources {
		r.withhold(func(id string) bool {
			key := h.Holders.Key(r.name, id)
			if len(forgotten[key]) > 0 {
				kept[key] = forgotten[key]
			}
			return len(forgotten[key]) > 0
		})
	}
	return kept
}

// reportForgotten reports each device once that a forgotten pod has kept for stillUsedPatience. since is the time at which each was
// first seen; the zero time: it is reported.
func (h *Host) reportForgotten(ctx context.Context, forgotten map[string][]User, since map[string]time.Time) {
	for key := range since {
		if len(forgotten[key]) == 0 {
			klog.FromContext(ctx).Info("A device is free: the last container of its pod has ended", "device", key)
			delete(since, key)
		}
	}
	for key, users := range forgotten {
		first, seen := since[key]
		switch {
		case !seen:
			klog.FromContext(ctx).Info("A device waits for the last container of its pod", "device", key, "users", describe(users))
			since[key] = time.Now()
		case !first.IsZero() && time.Since(first) >= stillUsedPatience:
			since[key] = time.Time{}
			if h.Trouble != nil {
				h.Trouble(reasonStillUsed, fmt.Sprintf("device %s of a device plugin is still used by %s, which the kubelet no longer counts: "+
					"no pod gets it until that has ended", key, describe(users)))
			}
		}
	}
}
