package podwatch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func pod(name string, uid types.UID, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid}, Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Phase: phase}}
}

func TestWatchReportsEveryPodThatEnds(t *testing.T) {
	client := fake.NewClientset(pod("done", "uid-done", corev1.PodSucceeded), pod("train", "uid-1", corev1.PodRunning))
	ended := make(chan types.UID, 8)
	if _, err := Watch(t.Context(), client, "n", func(pod *corev1.Pod) { ended <- pod.UID }); err != nil {
		t.Fatal(err)
	}
	heard := func(want types.UID) {
		t.Helper()
		if got := <-ended; got != want {
			t.Fatalf("heard of the end of %q, want %q", got, want)
		}
	}
	heard("uid-done") // before the watch began
	// Deleted and created again while the watch was interrupted: watchers see one change.
	if _, err := client.CoreV1().Pods("default").Update(t.Context(), pod("train", "uid-2", corev1.PodRunning),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	heard("uid-1")
	if _, err := client.CoreV1().Pods("default").Update(t.Context(), pod("train", "uid-2", corev1.PodFailed),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	heard("uid-2")
}
