package draplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/occupancy"
)

const (
	// endPatience is how long a call to unprepare waits for containers that are just ending. An error would cost the pod the kubelet's
	// pause of 10 s.
	endPatience = 2 * time.Second
	// endInterval is how often the cgroups of a claim that is being released are read where no event reports a change: those of
	// version 1, and where inotify has no watch left.
	endInterval = 500 * time.Millisecond
	// undoPause is the pause after a release that failed for another reason than a container.
	undoPause = 10 * time.Second
)

// reasonStillUsed is the reason of errors and Events about devices that a container may still use.
const reasonStillUsed = "DeviceStillUsed"

// cause is why the devices of a claim are released.
type cause struct {
	requested bool // the kubelet has called unprepare
	gone      bool // the API no longer has the claim with these devices
	forced    bool // an administrator frees them
}

// release is a claim whose devices wait for its last container. releases.mu guards it.
type release struct {
	cause
	since     time.Time
	goneSince time.Time
	users     []user
	followed  bool
	// tainted: the devices are published with a taint.
	tainted bool
}

// releases are the claims whose devices wait for their last container.
type releases struct {
	mu     sync.Mutex
	claims map[types.UID]*release
}

// user is a pod that may use a claim and has processes.
type user struct {
	claimstate.Pod
	containers []occupancy.Container
}

func (u user) String() string {
	return fmt.Sprintf("%s of pod %s (UID %s)", occupancy.Sight{Containers: u.containers}, u.Name, u.UID)
}

// stillUsed is the error of a release that has to wait.
type stillUsed struct {
	users []user
	since time.Time
}

// Error names each container, its pod and the time since the release.
func (e *stillUsed) Error() string {
	lasts := time.Since(e.since).Round(time.Second)
	if len(e.users) == 0 {
		return fmt.Sprintf("released %s ago, and its pods' containers cannot be seen on the node: the devices are free when the "+
			"kubelet asks to unprepare it, or %s after the claim is gone", lasts, occupancy.Patience)
	}
	var users []string
	for _, u := range e.users {
		users = append(users, u.String())
	}
	return fmt.Sprintf("still used by %s, %s after the release: nothing is undone, and the devices are free as soon as that has ended "+
		"(end it with crictl rm --force, or free them with gpufabric release --force on the node)", strings.Join(users, "; "), lasts)
}

// podsOf returns the pods for which a claim is reserved, with their cgroups. The kubelet makes a pod's cgroup before it prepares its
// claims.
func (p *Plugin) podsOf(ctx context.Context, claim *resourceapi.ResourceClaim) []claimstate.Pod {
	var pods []claimstate.Pod
	var uids []types.UID
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods, uids = append(pods, claimstate.Pod{UID: consumer.UID, Name: claim.Namespace + "/" + consumer.Name}), append(uids, consumer.UID)
		}
	}
	found, err := p.cgroups.Find(ctx, uids...)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The cgroups of a claim's pods are looked for when it is released", "claim", klog.KObj(claim))
	}
	for i := range pods {
		pods[i].Cgroup = found[pods[i].UID]
	}
	return pods
}

// withPods returns the pods of a record, and those that came to its claim since, and whether there are any of the latter. With these it
// leaves out pods that have ended: one after the other, thousands may use a claim that is never unprepared.
func (p *Plugin) withPods(
	ctx context.Context, claim *resourceapi.ResourceClaim, record claimstate.Record,
) (pods []claimstate.Pod, more bool) {
	pods = record.Pods[:len(record.Pods):len(record.Pods)]
	isNew := func(uid types.UID) bool {
		return !slices.ContainsFunc(record.Pods, func(known claimstate.Pod) bool { return known.UID == uid })
	}
	if !slices.ContainsFunc(claim.Status.ReservedFor, func(c resourceapi.ResourceClaimConsumerReference) bool { return isNew(c.UID) }) {
		return pods, false
	}
	reserved := p.podsOf(ctx, claim)
	pods = slices.DeleteFunc(slices.Clone(record.Pods), func(known claimstate.Pod) bool {
		if slices.ContainsFunc(reserved, func(pod claimstate.Pod) bool { return pod.UID == known.UID }) {
			return false
		}
		sight, err := p.cgroups.Look(ctx, known.UID)
		return err == nil && sight.Known && !sight.Running
	})
	for _, pod := range reserved {
		if isNew(pod.UID) {
			pods, more = append(pods, pod), true
		}
	}
	return pods, more
}

// keep ends the release of a prepared claim, which is in use again, and adds the pods that came to it to its record.
func (p *Plugin) keep(ctx context.Context, claim *resourceapi.ResourceClaim, record claimstate.Record) (claimstate.Record, error) {
	p.endRelease(record.UID)
	pods, more := p.withPods(ctx, claim, record)
	if !more {
		return record, nil
	}
	record.Pods = pods
	return record, p.state.Put(record)
}

// users returns the pods of a claim that have processes. known: every pod of the claim was seen among the node's cgroups.
func (p *Plugin) users(ctx context.Context, record claimstate.Record) (users []user, known bool) {
	known = len(record.Pods) > 0
	for _, pod := range record.Pods {
		if pod.Cgroup == "" {
			found, err := p.cgroups.Find(ctx, pod.UID)
			if pod.Cgroup = found[pod.UID]; pod.Cgroup == "" {
				known = false
				if err != nil { // it passes, and until then the pod may run
					klog.FromContext(ctx).Error(err, "Could not determine whether a pod's containers run", "pod", pod.Name, "uid", pod.UID)
					users = append(users, user{Pod: pod})
				}
				continue
			}
		}
		live, err := p.cgroups.Live(pod.Cgroup)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not determine whether a pod's containers run", "pod", pod.Name, "uid", pod.UID)
			known = false
		}
		if live {
			users = append(users, user{Pod: pod, containers: p.cgroups.Containers(pod.Cgroup)})
		}
	}
	return users, known
}

// decide returns the state of a claim's devices. Where it is Releasing, the claim has a release afterwards; first: it is new.
func (p *Plugin) decide(ctx context.Context, record claimstate.Record, why cause) (state occupancy.State, r release, first bool) {
	users, known := p.users(ctx, record)
	now := time.Now()
	p.releases.mu.Lock()
	defer p.releases.mu.Unlock()
	kept := p.releases.claims[record.UID]
	if kept == nil {
		kept = &release{since: now}
	}
	kept.users, kept.requested = users, kept.requested || why.requested
	if why.gone && !kept.gone {
		kept.gone, kept.goneSince = true, now
	}
	facts := occupancy.Facts{Requested: kept.requested, Gone: kept.gone, Users: len(users) > 0, Known: known, Forced: why.forced,
		Rebooted: record.BootID != "" && p.bootID != "" && record.BootID != p.bootID}
	if kept.gone {
		facts.GoneFor = now.Sub(kept.goneSince)
	}
	if state = occupancy.Decide(facts); state != occupancy.Releasing {
		return state, *kept, false
	}
	if p.releases.claims == nil {
		p.releases.claims = map[types.UID]*release{}
	}
	p.releases.claims[record.UID] = kept
	p.config.Metrics.Releasing.Set(float64(len(p.releases.claims)))
	first, kept.followed = !kept.followed, true
	return state, *kept, first
}

// free undoes a claim if no container on the node can use its devices any more. Otherwise it undoes nothing, returns a *stillUsed, and
// the plugin follows the claim's containers to undo it when the last has ended. The claim's lock must be held.
func (p *Plugin) free(ctx context.Context, record claimstate.Record, why cause) error {
	check := func() error {
		state, r, first := p.decide(ctx, record, why)
		if state == occupancy.Free {
			return nil
		}
		if first {
			klog.FromContext(ctx).Info("Devices wait for the last container of their claim", "claim", record.Namespace+"/"+record.Name,
				"uid", record.UID, "users", fmt.Sprint(r.users))
			p.wg.Go(func() { p.follow(p.ctx, record) })
		}
		return &stillUsed{users: r.users, since: r.since}
	}
	if err := check(); err != nil {
		return err
	}
	// A container may have been made between the look and the removal of the spec, and none after it.
	return p.undo(ctx, record.UID, check)
}

// freeWithin is like free, and waits for the claim's containers until patience has passed or ctx ends.
func (p *Plugin) freeWithin(ctx context.Context, record claimstate.Record, why cause, patience time.Duration) error {
	err := p.free(ctx, record, why)
	var used *stillUsed
	if !errors.As(err, &used) || patience == 0 {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	changes := p.changesOf(waiting, record)
	tick := time.NewTicker(endInterval / 5)
	defer tick.Stop()
	for errors.As(err, &used) {
		select {
		case <-changes:
		case <-tick.C:
		case <-waiting.Done():
			return err
		}
		err = p.free(ctx, record, why)
	}
	return err
}

// changesOf returns a channel that holds a token when the cgroup of one of a claim's pods lost its last process, until ctx ends.
func (p *Plugin) changesOf(ctx context.Context, record claimstate.Record) <-chan struct{} {
	if p.config.Node.Files == nil {
		return nil
	}
	changed := make(chan struct{}, 1)
	for _, pod := range record.Pods {
		if pod.Cgroup == "" {
			continue
		}
		events := p.config.Node.Files.Modified(ctx, p.cgroups.Path(pod.Cgroup), occupancy.Events)
		p.wg.Go(func() {
			for {
				select {
				case <-events:
				case <-ctx.Done():
					return
				}
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		})
	}
	return changed
}

// follow frees a claim's devices when its last container has ended. It returns when the claim has no release any more.
func (p *Plugin) follow(ctx context.Context, record claimstate.Record) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := p.changesOf(ctx, record)
	pause := time.NewTimer(endInterval)
	reported := time.NewTimer(reportAfter)
	for {
		select {
		case <-changes:
		case <-pause.C:
		case <-reported.C:
			p.reportReleasing(ctx, record.UID)
		case <-ctx.Done():
			return
		}
		wait, ended := p.again(ctx, record.UID)
		if ended {
			return
		}
		pause.Reset(wait)
	}
}

// again tries once more to free a claim that is being released. It returns how long to wait for the next try at most, and whether
// there is none.
func (p *Plugin) again(ctx context.Context, uid types.UID) (wait time.Duration, ended bool) {
	var err error
	defer caught(ctx, &err)
	unlock, err := p.locks.Lock(ctx, string(uid))
	if err != nil {
		return 0, true
	}
	defer unlock()
	record, recorded := p.state.Get(uid)
	r := p.releaseOf(uid)
	if !recorded || r == nil {
		return 0, true
	}
	err = p.free(ctx, record, r.cause)
	var used *stillUsed
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Devices are free: the last container of their claim has ended", "claim", record.Namespace+"/"+record.Name,
			"uid", uid, "seconds", time.Since(r.since).Seconds())
		p.config.Metrics.Claims.Set(float64(p.state.Len()))
		return 0, true
	case errors.As(err, &used):
		return endInterval, false
	}
	klog.FromContext(ctx).Error(err, "Devices of a claim without containers are not released", "claim", record.Namespace+"/"+record.Name,
		"uid", uid)
	return undoPause, false
}

// releaseOf returns a copy of a claim's release; nil: it has none.
func (p *Plugin) releaseOf(uid types.UID) *release {
	p.releases.mu.Lock()
	defer p.releases.mu.Unlock()
	r := p.releases.claims[uid]
	if r == nil {
		return nil
	}
	found := *r
	return &found
}

// endRelease forgets a claim's release: its devices are free, or its own again.
func (p *Plugin) endRelease(uid types.UID) {
	p.releases.mu.Lock()
	r := p.releases.claims[uid]
	delete(p.releases.claims, uid)
	p.config.Metrics.Releasing.Set(float64(len(p.releases.claims)))
	p.releases.mu.Unlock()
	if r != nil && r.tainted {
		p.published.again(p.ctx)
	}
}

// inUse describes a conflict for the claim that waits, with the state of holders that are being released. Of a holder in another
// namespace it names nothing.
func (p *Plugin) inUse(err error) error {
	var held *ledger.ConflictError
	if !errors.As(err, &held) {
		return err
	}
	for _, holder := range held.Holders() {
		r := p.releaseOf(types.UID(holder.ID))
		if r == nil {
			continue
		}
		if held.Requester.Namespace != "" && holder.Namespace != "" && held.Requester.Namespace != holder.Namespace {
			return fmt.Errorf("%w: it was released %s ago, and its container still runs", err, time.Since(r.since).Round(time.Second))
		}
		return fmt.Errorf("%w: %w", err, &stillUsed{users: r.users, since: r.since})
	}
	return err
}
