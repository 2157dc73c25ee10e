package lookout

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/provider/internal/cluster"
)

func TestLookoutReportsWhyControllerDoesNotAct(t *testing.T) {
	labels := map[string]string{"app.kubernetes.io/part-of": "gpufabric", "app.kubernetes.io/component": "controller"}
	controller := func(available int32) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "fabric", Name: "controller", Labels: labels},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
			}, Status: appsv1.DeploymentStatus{AvailableReplicas: available}}
	}
	crashing := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fabric", Name: "controller-x", Labels: labels},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "controller", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
				Message: "back-off 40s"}}}}},
	}
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		after   time.Duration // at which the wait is looked at
		gaveUp  bool
		said    string
	}{
		{"a short wait asks nothing", nil, every / 2, false, ""},
		{"without a controller the wait says so", nil, giveUpAfter / 2, false, "no Deployment of the gpufabric controller is in the cluster"},
		{"without a controller the wait is given up after a while", nil, 2 * giveUpAfter, true, "install the drivers"},
		{"a controller that crashes is waited for, and its pod says why", []runtime.Object{controller(0), crashing}, time.Hour, false,
			"CrashLoopBackOff: back-off 40s"},
		{"a controller that runs is no reason for a wait", []runtime.Object{controller(1)}, time.Hour, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, l := Keep(t.Context(), &cluster.Client{Typed: fake.NewClientset(c.objects...)}, "ComputeDomain default/x")
				select {
				case <-ctx.Done():
				case <-time.After(c.after):
				}
				if gaveUp := errors.Is(context.Cause(ctx), ErrNoController); gaveUp != c.gaveUp {
					t.Errorf("gave up: %t, want %t", gaveUp, c.gaveUp)
				}
				if said := l.End(); !strings.Contains(said, c.said) || (c.said == "") != (said == "") {
					t.Errorf("said %q, want %q", said, c.said)
				}
			})
		})
	}
}
