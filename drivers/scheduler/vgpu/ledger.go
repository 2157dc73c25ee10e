package vgpu

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/vgpu/annotation"
)

// ledger remembers, by pod, the shares that were chosen until the pod's annotations are seen, and what its annotation read was.
type ledger struct {
	resources annotation.Resources
	mutex     sync.Mutex
	pods      map[types.UID]entry
	// exists asks the watch behind forget: a cycle looks at pods as they were when it began, and what it read of one that is gone would stay.
	exists func(*corev1.Pod) bool
}

type entry struct {
	assumed [][]annotation.Share // chosen by Reserve
	node    string               // where

	value string // of the annotation that read is of
	read  [][]annotation.Share
}

func newLedger(resources annotation.Resources, exists func(*corev1.Pod) bool) *ledger {
	return &ledger{resources: resources, pods: map[types.UID]entry{}, exists: exists}
}

// shares are what a pod on a node has, init containers first; false where nobody has written or chosen any. An annotation that cannot be
// read, or that gives other shares than the pod's containers ask for, counts as none: the node's plugin refuses it too. So a pod that asks
// for nothing takes nothing, whatever is written on it.
func (l *ledger) shares(pod *corev1.Pod, node string) ([][]annotation.Share, bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	e := l.pods[pod.UID]
	value := pod.Annotations[annotation.PodDevices]
	if value == "" || pod.Annotations[annotation.PodNode] != node {
		if e.node != node {
			return nil, false
		}
		return e.assumed, e.assumed != nil
	}
	if e.value != value {
		read, given := l.resources.Given(pod)
		if !given {
			return nil, false
		}
		e.value, e.read = value, read
		if l.exists(pod) { // with the mutex held, so that forget comes after
			l.pods[pod.UID] = e
		}
	}
	return e.read, true
}

// assume books what Reserve chose.
func (l *ledger) assume(uid types.UID, node string, shares [][]annotation.Share) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.pods[uid] = entry{assumed: shares, node: node}
}

// assumed is what Reserve chose for a pod, nil where it did not.
func (l *ledger) assumed(uid types.UID) [][]annotation.Share {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.pods[uid].assumed
}

func (l *ledger) forget(uid types.UID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	delete(l.pods, uid)
}
