package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// driverPod is a pod of a driver's DaemonSet whose image cannot be pulled.
func driverPod(set, node string) *corev1.Pod {
	const image = "mellanox/ofed-driver-5.0-2.1.8.0:ubuntu18.04-amd64"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "ofed-" + node, Namespace: "default", Labels: map[string]string{labelName: kindOFED,
			labelInstance: shorten(set)}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: kindOFED, Image: image}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: kindOFED, Image: image, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image"}}}}},
	}
}

func TestTroublesNameTheImageAndTheNode(t *testing.T) {
	const image = "mellanox/ofed-driver-5.0-2.1.8.0:ubuntu18.04-amd64"
	waiting := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
		}
	}
	for _, test := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string
	}{
		{"the image cannot be pulled", func(*corev1.Pod) {}, "ImagePullBackOff of image " + image + ": Back-off pulling image (node a)"},
		{"the registry refuses", waiting("ErrImagePull", "not found"), "ErrImagePull of image " + image + ": not found (node a)"},
		{"it crashes", func(p *corev1.Pod) {
			waiting("CrashLoopBackOff", "back-off 5m0s restarting pod=ofed-a_default(1)")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error",
				Message: "no headers for 6.8"}
		}, "CrashLoopBackOff of image " + image + ": it ended with code 1 (Error) no headers for 6.8 (node a)"},
		{"no node takes it", func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: "Unschedulable", Message: "0/3 nodes are available"}}}
			p.Spec.NodeName = ""
			term := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name",
				Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}}
		}, "Unschedulable of image " + image + ": 0/3 nodes are available (node b)"},
		{"it was evicted", func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk"}
		}, "Evicted of image " + image + ": disk (node a)"},
		{"it starts", waiting("ContainerCreating", ""), ""},
		{"it runs", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		}, ""},
		{"it is of another DaemonSet", func(p *corev1.Pod) { p.Labels[labelInstance] = "other" }, ""},
		{"it is being deleted", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, ""},
		{"a long story", waiting("ErrImagePull", strings.Repeat("ä", 1000)),
			strings.ToValidUTF8(("ErrImagePull of image " + image + ": " + strings.Repeat("ä", 1000))[:maxTrouble], "") + " (node a)"},
	} {
		pod := driverPod("set", "a")
		test.change(pod)
		if diff := cmp.Diff(test.want, strings.Join(troubles("set", []corev1.Pod{*pod}), "; ")); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestTroublesOfManyPodsAreOneText(t *testing.T) {
	var pods []corev1.Pod
	for i := range 1000 {
		pods = append(pods, *driverPod("set", fmt.Sprintf("node-%03d", i)))
	}
	for i := range 10 {
		pod := driverPod("set", fmt.Sprintf("other-%d", i))
		pod.Status.ContainerStatuses[0].State.Waiting.Message = fmt.Sprintf("story %d", i)
		pods = append(pods, *pod)
	}
	got := troubles("set", pods)
	if len(got) != maxTroubles+1 || !strings.HasSuffix(got[0], "(node node-000 and 999 more)") || got[maxTroubles] != "and 7 other reasons" {
		t.Errorf("got %q", got)
	}
}
