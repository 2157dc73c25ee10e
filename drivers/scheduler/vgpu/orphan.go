package vgpu

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"gpufabric.io/drivers/vgpu/annotation"
)

// A scheduler that dies after locking a node leaves the lock. Before the pod is bound no other program removes the lock, and afterwards it
// stays if the pod ends unserved. The next leader handles such a lock.

// orphanAge is the minimum age at which a lock of an earlier leader counts as left: longer than a leader's lease (15 s). A binding
// that was in progress then has arrived, or never will.
const orphanAge = 20 * time.Second

// ofThisScheduler reports whether a lock was taken by a scheduler of this kind, which writes fractions of a second: Volcano and HAMi
// write none.
func ofThisScheduler(value string) bool {
	at, err := time.Parse(time.RFC3339, value)
	return err == nil && at.Nanosecond() != 0
}

// orphan starts the handling of a lock that an earlier leader took. Only the leader reads nodes, so a lock of this kind that is not
// its own belongs to an earlier leader.
func (p *Plugin) orphan(node *corev1.Node) {
	found := lock{node.Name, node.Annotations[annotation.NodeLock]}
	if ofThisScheduler(found.value) && p.locks.leave(found) {
		p.background(func(ctx context.Context) { p.adopt(ctx, found) })
	}
}

// leave records a lock as an earlier leader's; false where it is this leader's, or was recorded before.
func (l *locks) leave(found lock) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.own(found) || l.left[found] {
		return false
	}
	l.left[found] = true
	return true
}

// own reports whether this leader took a lock. The mutex must be held.
func (l *locks) own(found lock) bool {
	for _, taken := range l.taken {
		if taken == found {
			return true
		}
	}
	return false
}

// owns is own for callers without the mutex.
func (l *locks) owns(found lock) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.own(found)
}

func (l *locks) looked(at lock) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	delete(l.left, at)
}

// adopt removes an earlier leader's lock from its node. Where its pod is bound and not served yet, the lock becomes this leader's
// own instead.
func (p *Plugin) adopt(ctx context.Context, found lock) {
	defer p.locks.looked(found) // a lock that is still there then is found again
	taken, err := time.Parse(time.RFC3339, found.value)
	if err != nil {
		return
	}
	select {
	case <-time.After(taken.Add(orphanAge).Sub(p.now())):
	case <-ctx.Done():
		return
	}
	if p.locks.owns(found) {
		return // it was seen on the node before it was recorded here
	}
	ctx, cancel := context.WithTimeout(ctx, unreserveTimeout)
	defer cancel()
	pods, err := p.handle.ClientSet().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", found.node).String()})
	if err != nil {
		err = fmt.Errorf("find the pod that node %s was locked for: %w", found.node, err)
		utilruntime.HandleErrorWithContext(ctx, err, "A node's lock is left as it is; it expires by itself", "after", lockExpiry)
		return
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Spec.NodeName == found.node && awaitsShares(pod) && annotation.Locks(found.value, pod) {
			p.locks.add(pod.UID, found)
			return
		}
	}
	p.unlock(ctx, found)
}

// awaitsShares reports whether the node's plugin has yet to serve a pod.
func awaitsShares(pod *corev1.Pod) bool {
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return !over && pod.Annotations[annotation.BindPhase] == bindAllocating
}
