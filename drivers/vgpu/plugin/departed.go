package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/occupancy"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/podwatch"
)

const (
	// departedInterval is how often the cgroups of departed pods are read.
	departedInterval = 200 * time.Millisecond
	// departedReportAfter is how long a pod runs after its end before that is worth an Event.
	departedReportAfter = 10 * time.Second
)

// departed are pods that have ended or are gone from the API, and whose containers may still run: a pod that was deleted by force has
// its grace period, or cannot be killed. They keep their shares until no process of theirs is left.
type departed struct {
	cgroups *occupancy.Cgroups
	// free takes back all that a pod had.
	free func(ctx context.Context, pod *corev1.Pod)
	// trouble reports a pod that runs on for departedTold.
	trouble func(reason, message string)

	mu      sync.Mutex
	pods    map[types.UID]*departure
	added   chan struct{}
	changed chan struct{} // closed and replaced when a pod is freed
}

// departure is one pod.
type departure struct {
	pod *corev1.Pod
	// ended: the kubelet reported its end. Otherwise it is gone from the API.
	ended    bool
	since    time.Time
	reported bool
	sight    occupancy.Sight
}

func newDeparted(cgroups *occupancy.Cgroups, free func(context.Context, *corev1.Pod), trouble func(reason, message string)) *departed {
	return &departed{cgroups: cgroups, free: free, trouble: trouble, pods: map[types.UID]*departure{}, added: make(chan struct{}, 1),
		changed: make(chan struct{})}
}

// add frees the shares of a pod that has ended or is gone, at once or when its last process has ended.
func (d *departed) add(ctx context.Context, pod *corev1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.pods[pod.UID]
	if one == nil {
		one = &departure{pod: pod, since: time.Now()}
	}
	one.ended = one.ended || podwatch.Over(pod)
	if d.try(ctx, one) {
		return
	}
	if d.pods[pod.UID] == nil {
		klog.FromContext(ctx).Info("Shares wait for the last container of their pod", "pod", klog.KObj(pod), "uid", pod.UID,
			"users", one.sight.String())
	}
	d.pods[pod.UID] = one
	select {
	case d.added <- struct{}{}:
	default:
	}
}

// try frees the shares of a pod without processes. The mutex must be held.
func (d *departed) try(ctx context.Context, one *departure) bool {
	sight, err := d.cgroups.Look(ctx, one.pod.UID)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not determine whether a pod's containers run", "pod", klog.KObj(one.pod), "uid", one.pod.UID)
	}
	one.sight = sight
	if occupancy.Decide(occupancy.Facts{Requested: one.ended, Gone: !one.ended, GoneFor: time.Since(one.since), Users: sight.Running,
		Known: sight.Known}) != occupancy.Free {
		return false
	}
	d.free(ctx, one.pod)
	delete(d.pods, one.pod.UID)
	close(d.changed)
	d.changed = make(chan struct{})
	return true
}

// running returns the departed pods that may still run, by UID.
func (d *departed) running() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	uids := map[string]bool{}
	for uid := range d.pods {
		uids[string(uid)] = true
	}
	return uids
}

// next returns a channel that is closed when a departed pod is freed after this call; nil: there is none.
func (d *departed) next() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pods) == 0 {
		return nil
	}
	return d.changed
}

// run frees departed pods whose last process has ended, until ctx ends.
func (d *departed) run(ctx context.Context) error {
	tick := time.NewTicker(departedInterval)
	defer tick.Stop()
	for {
		var again <-chan time.Time
		if d.look(ctx) > 0 {
			again = tick.C
		}
		select {
		case <-again:
		case <-d.added:
		case <-ctx.Done():
			return nil
		}
	}
}

// look tries every departed pod once, and returns how many are left.
func (d *departed) look(ctx context.Context) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.pods {
		switch lasts := time.Since(one.since).Round(time.Second); {
		case d.try(ctx, one):
			klog.FromContext(ctx).Info("Shares are free: the last container of their pod has ended", "pod", klog.KObj(one.pod), "uid", one.pod.UID,
				"after", lasts)
		case lasts >= departedReportAfter && !one.reported && d.trouble != nil:
			one.reported = true
			d.trouble("DeviceStillUsed", fmt.Sprintf("shares of pod %s/%s (UID %s), %s after its end, are still used by %s: no pod gets them until "+
				"that has ended", one.pod.Namespace, one.pod.Name, one.pod.UID, lasts, one.sight))
		}
	}
	return len(d.pods)
}

// describe adds the departed pods that a refused share waits for to its error. Pods of other namespaces are not named.
func (d *departed) describe(err error, waiting *corev1.Pod) error {
	var full *holdings.FullError
	if !errors.As(err, &full) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var users []string
	for _, one := range d.pods {
		lasts := time.Since(one.since).Round(time.Second)
		name := one.pod.Namespace + "/" + one.pod.Name
		if !slices.ContainsFunc(full.Holders, func(holder string) bool { return strings.HasPrefix(holder, name+", ") }) {
			continue
		}
		if one.pod.Namespace == waiting.Namespace {
			users = append(users, fmt.Sprintf("%s of pod %s (UID %s) still runs, %s after the pod's end", one.sight, name, one.pod.UID, lasts))
		} else {
			users = append(users, fmt.Sprintf("a pod of another namespace still runs, %s after its end", lasts))
		}
	}
	if len(users) == 0 {
		return err
	}
	slices.Sort(users)
	return fmt.Errorf("%w: %s", err, strings.Join(users, "; "))
}

// runs reports whether a container has processes, or any of the pod's where the container is empty. Where the cgroups do not show it the
// runtime's message counts, but a cgroup that exists and cannot be read counts as one with processes.
func runs(cgroups *occupancy.Cgroups) func(context.Context, string, string) bool {
	return func(ctx context.Context, pod, container string) bool {
		sight, err := cgroups.Look(ctx, types.UID(pod))
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not determine whether a pod's containers run", "uid", pod)
		}
		if container == "" || err != nil { // with an error the container may be one that was not seen
			return sight.Running
		}
		return slices.ContainsFunc(sight.Containers, func(c occupancy.Container) bool { return c.ID == container })
	}
}
