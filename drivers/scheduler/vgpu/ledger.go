package vgpu

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/vgpu/annotation"
)

// ledger stores, by pod, the chosen shares until the pod's annotations are read, and the parsed annotation.
type ledger struct {
	resources annotation.Resources
	mutex     sync.Mutex
	pods      map[types.UID]podShares
	// exists queries the watch that calls forget. A cycle has pods as they were when it began; otherwise the data of a deleted pod would stay.
	exists func(*corev1.Pod) bool
}

type podShares struct {
	assumed [][]annotation.Share // chosen by Reserve
	node    string               // where

	value string // the annotation that read was parsed from
	read  [][]annotation.Share
}

func newLedger(resources annotation.Resources, exists func(*corev1.Pod) bool) *ledger {
	return &ledger{resources: resources, pods: map[types.UID]podShares{}, exists: exists}
}

// shares returns the shares of a pod on a node, init containers first; false if none was written or chosen. An annotation that
// cannot be parsed, or that gives other shares than the pod's containers request, counts as none: the node's plugin refuses it too.
// So a pod without requests takes none, whatever its annotation.
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

// assume books the choice of Reserve.
func (l *ledger) assume(uid types.UID, node string, shares [][]annotation.Share) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.pods[uid] = podShares{assumed: shares, node: node}
}

// assumed is the choice of Reserve for a pod, nil if there is none.
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
