package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

const clique, otherClique = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766", "69a19a31-f41c-45a5-8245-579b6bce5bdd.1"

func nodeIn(name, clique string) metav1.PartialObjectMetadata {
	labels := map[string]string{v1beta1.LabelComputeDomain: "uid"}
	if clique != "" {
		labels[v1beta1.LabelClique] = clique
	}
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

type podState int

const (
	starting podState = iota
	isReady
	ending
	failed
)

func podOn(node, address string, state podState) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "imex-" + node}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{PodIP: address}}
	if state == ending {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	if state == failed {
		pod.Status.Phase = corev1.PodFailed
	}
	ready := corev1.ConditionFalse
	if state == isReady {
		ready = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	return pod
}

func entry(name, address, clique string, index int, status v1beta1.Readiness) v1beta1.ComputeDomainNode {
	return v1beta1.ComputeDomainNode{Name: name, IPAddress: address, CliqueID: clique, Index: index, Status: status}
}

func TestNodesKeepTheirIndexAndNewOnesGetTheLowestFree(t *testing.T) {
	type nodes = []v1beta1.ComputeDomainNode
	for name, c := range map[string]struct {
		before nodes
		nodes  []metav1.PartialObjectMetadata
		pods   []corev1.Pod
		want   nodes
	}{
		"a pod that failed does not hide its successor, nor is it a daemon": {
			nil,
			[]metav1.PartialObjectMetadata{nodeIn("a", clique), nodeIn("b", clique)},
			[]corev1.Pod{podOn("a", "1", failed), podOn("a", "2", isReady), podOn("b", "3", isReady), podOn("b", "4", failed),
				podOn("left", "5", failed)},
			nodes{entry("a", "2", clique, 0, v1beta1.Ready), entry("b", "3", clique, 1, v1beta1.Ready)},
		},
		"new nodes are numbered by name": {
			nil,
			[]metav1.PartialObjectMetadata{nodeIn("b", clique), nodeIn("a", clique)},
			[]corev1.Pod{podOn("b", "10.0.0.2", isReady), podOn("a", "10.0.0.1", starting)},
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.NotReady), entry("b", "10.0.0.2", clique, 1, v1beta1.Ready)},
		},
		"a node without an address is not in the list yet": {
			nil,
			[]metav1.PartialObjectMetadata{nodeIn("a", clique), nodeIn("b", clique)},
			[]corev1.Pod{podOn("a", "10.0.0.1", starting), podOn("b", "", starting)},
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.NotReady)},
		},
		"a node that was there stays though its daemon is gone": {
			nodes{entry("a", "10.0.0.1", clique, 1, v1beta1.Ready)},
			[]metav1.PartialObjectMetadata{nodeIn("a", clique)},
			nil,
			nodes{entry("a", "10.0.0.1", clique, 1, v1beta1.NotReady)},
		},
		"a new daemon's address replaces the old": {
			nodes{entry("a", "10.0.0.1", clique, 1, v1beta1.Ready)},
			[]metav1.PartialObjectMetadata{nodeIn("a", clique)},
			[]corev1.Pod{podOn("a", "10.0.0.9", starting), podOn("a", "10.0.0.1", ending)},
			nodes{entry("a", "10.0.0.9", clique, 1, v1beta1.NotReady)},
		},
		"an index that was freed is the next to be given": {
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.Ready), entry("b", "10.0.0.2", clique, 1, v1beta1.Ready),
				entry("c", "10.0.0.3", clique, 2, v1beta1.Ready)},
			[]metav1.PartialObjectMetadata{nodeIn("a", clique), nodeIn("c", clique), nodeIn("d", clique)},
			[]corev1.Pod{podOn("a", "10.0.0.1", isReady), podOn("c", "10.0.0.3", isReady), podOn("d", "10.0.0.4", isReady)},
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.Ready), entry("d", "10.0.0.4", clique, 1, v1beta1.Ready),
				entry("c", "10.0.0.3", clique, 2, v1beta1.Ready)},
		},
		"each clique is numbered by itself": {
			nil,
			[]metav1.PartialObjectMetadata{nodeIn("a", clique), nodeIn("b", otherClique), nodeIn("c", "")},
			[]corev1.Pod{podOn("a", "10.0.0.1", isReady), podOn("b", "10.0.0.2", isReady), podOn("c", "10.0.0.3", isReady)},
			nodes{entry("c", "10.0.0.3", "", 0, v1beta1.Ready), entry("b", "10.0.0.2", otherClique, 0, v1beta1.Ready),
				entry("a", "10.0.0.1", clique, 0, v1beta1.Ready)},
		},
		"a node that changed its clique is numbered again": {
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.Ready), entry("b", "10.0.0.2", otherClique, 0, v1beta1.Ready)},
			[]metav1.PartialObjectMetadata{nodeIn("a", otherClique), nodeIn("b", otherClique)},
			[]corev1.Pod{podOn("a", "10.0.0.1", isReady), podOn("b", "10.0.0.2", isReady)},
			nodes{entry("b", "10.0.0.2", otherClique, 0, v1beta1.Ready), entry("a", "10.0.0.1", otherClique, 1, v1beta1.Ready)},
		},
		"a node that left goes with its daemon": {
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.Ready)},
			nil,
			[]corev1.Pod{podOn("a", "10.0.0.1", ending)},
			nodes{},
		},
		"a node whose label is gone stays while its daemon runs": {
			nodes{entry("a", "10.0.0.1", clique, 3, v1beta1.Ready)},
			nil,
			[]corev1.Pod{podOn("a", "10.0.0.1", isReady)},
			nodes{entry("a", "10.0.0.1", clique, 3, v1beta1.Ready)},
		},
		"two entries with one index are told apart": {
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.Ready), entry("b", "10.0.0.2", clique, 0, v1beta1.Ready)},
			[]metav1.PartialObjectMetadata{nodeIn("a", clique), nodeIn("b", clique)},
			[]corev1.Pod{podOn("a", "10.0.0.1", isReady), podOn("b", "10.0.0.2", isReady)},
			nodes{entry("a", "10.0.0.1", clique, 0, v1beta1.Ready), entry("b", "10.0.0.2", clique, 1, v1beta1.Ready)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, nodesOf(c.before, membersOf(c.nodes, c.pods))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
