package hook

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// lingeringInterval is how often the cgroups of containers are read that run after the runtime's stop message.
const lingeringInterval = 200 * time.Millisecond

// lingering are the containers and pods that the runtime reports as ended and that have processes: their shares are not given to others.
// The zero value is ready to use.
type lingering struct {
	mu sync.Mutex
	// waiting are the functions to call at the end of each, by the container's ID, or by the pod's UID.
	waiting map[string]*linger
	once    sync.Once
	added   chan struct{}
}

type linger struct {
	pod, container string // no container: any of the pod
	end            func(context.Context)
}

func (l *lingering) wake() chan struct{} {
	l.once.Do(func() { l.added = make(chan struct{}, 1) })
	return l.added
}

// atEnd calls end when a container has no process, or the whole pod where container is empty: now, or by Follow.
func (h *Hook) atEnd(ctx context.Context, pod, container string, end func(context.Context)) {
	if h.Runs == nil || !h.Runs(ctx, pod, container) {
		end(ctx)
		return
	}
	key := container
	if key == "" {
		key = pod
	}
	klog.FromContext(ctx).Info("The container runtime reports an end, and processes run: their shares are kept", "uid", pod, "container",
		container)
	h.lingering.mu.Lock()
	defer h.lingering.mu.Unlock()
	if h.lingering.waiting == nil {
		h.lingering.waiting = map[string]*linger{}
	}
	h.lingering.waiting[key] = &linger{pod: pod, container: container, end: end}
	select {
	case h.lingering.wake() <- struct{}{}:
	default:
	}
}

// Follow frees the shares of containers that ran after the runtime's stop message, each when its last process has ended, until ctx ends.
func (h *Hook) Follow(ctx context.Context) error {
	tick := time.NewTicker(lingeringInterval)
	defer tick.Stop()
	for {
		var again <-chan time.Time
		if h.freeEnded(ctx) > 0 {
			again = tick.C
		}
		select {
		case <-again:
		case <-h.lingering.wake():
		case <-ctx.Done():
			return nil
		}
	}
}

// freeEnded returns how many still run.
func (h *Hook) freeEnded(ctx context.Context) int {
	h.lingering.mu.Lock()
	defer h.lingering.mu.Unlock()
	for key, one := range h.lingering.waiting {
		if !h.Runs(ctx, one.pod, one.container) {
			one.end(ctx)
			delete(h.lingering.waiting, key)
		}
	}
	return len(h.lingering.waiting)
}

// addTo adds the containers that run after the runtime's stop message, and their pods.
func (l *lingering) addTo(containers, pods map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.waiting {
		pods[one.pod] = true
		if one.container != "" {
			containers[one.container] = true
		}
	}
}
