package plugin

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

// refuse refuses or serves a container at times after the first, and returns the pod after each.
func refuse(t *testing.T, patience time.Duration, results ...result) []*corev1.Pod {
	t.Helper()
	o, client, _ := telling(t)
	now := time.Date(2026, 11, 23, 4, 0, 0, 0, time.UTC)
	o.failing.patience, o.failing.now = patience, func() time.Time { return now }
	var after []*corev1.Pod
	for _, r := range results {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "train", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.pod = pod
		if err := o.persist(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if pod, err = client.CoreV1().Pods("default").Get(t.Context(), "train", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		after = append(after, pod)
		now = now.Add(time.Minute)
	}
	events := len(o.failing.events.(*record.FakeRecorder).Events)
	if failed := after[len(after)-1].Status.Phase == corev1.PodFailed; failed != (events == 1) {
		t.Errorf("%d Events, and the pod's phase is %q", events, after[len(after)-1].Status.Phase)
	}
	return after
}

// A pod that the kubelet admitted and the node must refuse would wait in CreateContainerError for ever, and its controller would
// make no replacement.
func TestRefusalFailsThePodAfterThePatience(t *testing.T) {
	full := errors.New("the GPU is full")
	refused := result{container: "main", why: full}
	after := refuse(t, 2*time.Minute, refused, refused, refused)
	if after[0].Status.Phase == corev1.PodFailed || after[1].Status.Phase == corev1.PodFailed {
		t.Errorf("it is failed after %v, want after 2m", after[1].Status)
	}
	last := after[2].Status
	if last.Phase != corev1.PodFailed || last.Reason != "SharesRefused" || !strings.Contains(last.Message, "container main") ||
		!strings.Contains(last.Message, "the GPU is full") {
		t.Errorf("status %+v", last)
	}
}

func TestRefusalDoesNotFailAServedPod(t *testing.T) {
	refused, served := result{container: "main", why: errors.New("unhealthy")}, result{container: "main"}
	for _, pod := range refuse(t, 2*time.Minute, refused, refused, served, refused, refused) {
		if pod.Status.Phase == corev1.PodFailed {
			t.Fatalf("status %+v", pod.Status)
		}
	}
}

func TestRefusalDoesNotFailPodsWithoutPatience(t *testing.T) {
	refused := result{container: "main", why: errors.New("unhealthy")}
	after := refuse(t, 0, refused, refused, refused, refused)
	if after[3].Status.Phase == corev1.PodFailed {
		t.Errorf("status %+v", after[3].Status)
	}
}
