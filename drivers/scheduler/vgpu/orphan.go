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

// A scheduler that dies after it has locked a node leaves the lock: before it has bound the pod nobody is there to take it away, and
// afterwards nobody notices when the pod goes unserved. The next leader looks after such a lock.

// orphanAge is how old a lock of an earlier leader must be to count as left: longer than a leader's lease (15 s). A binding that was on its
// way then has arrived, or never will.
const orphanAge = 20 * time.Second

// ofThisScheduler tells whether a lock was taken by a scheduler of this kind, which writes parts of a second: Volcano and HAMi write none.
func ofThisScheduler(value string) bool {
	at, err := time.Parse(time.RFC3339, value)
	return err == nil && at.Nanosecond() != 0
}

// orphan has a lock looked after that an earlier leader took. Only the leader looks at nodes, so what is of this kind and not its own is an
// earlier one's.
func (p *Plugin) orphan(node *corev1.Node) {
	found := lock{node.Name, node.Annotations[annotation.NodeLock]}
	if ofThisScheduler(found.value) && p.locks.leave(found) {
		p.background(func(ctx context.Context) { p.adopt(ctx, found) })
	}
}

// leave notes a lock as an earlier leader's; false where it is this one's, or was noted before.
func (l *locks) leave(found lock) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.own(found) || l.left[found] {
		return false
	}
	l.left[found] = true
	return true
}

// own tells whether this leader took a lock. The mutex is held.
func (l *locks) own(found lock) bool {
	for _, taken := range l.taken {
		if taken == found {
			return true
		}
	}
	return false
}

// owns is own for who does not hold the mutex.
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

// adopt takes an earlier leader's lock off its node. Where the pod that it was taken for is bound and not served yet, the lock becomes this
// leader's own.
func (p *Plugin) adopt(ctx context.Context, found lock) {
	defer p.locks.looked(found) // a lock that still stands then is found again
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
		return // it was seen on the node before it was remembered here
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

// awaitsShares tells whether the node's plugin has still to serve a pod.
func awaitsShares(pod *corev1.Pod) bool {
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return !over && pod.Annotations[annotation.BindPhase] == bindAllocating
}
