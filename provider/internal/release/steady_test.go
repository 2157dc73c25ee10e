package release

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/provider/internal/cluster"
)

const controllerManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller, namespace: fabric}
spec: {selector: {matchLabels: {role: controller}}}
`

func controllerDeployment(generation int64, status appsv1.DeploymentStatus) *appsv1.Deployment {
	one := int32(1)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "fabric", Name: "controller", Generation: generation},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "controller"}},
		}, Status: status}
}

func controllerPod(probed bool, restarts int32, started time.Time) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fabric", Name: "controller-x", Labels: map[string]string{"role": "controller"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "controller"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "controller", RestartCount: restarts,
			State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error"}}}}},
	}
	if probed {
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{}
	}
	return pod
}

func TestAwaitBelievesOnlyWorkloadsThatStay(t *testing.T) {
	whole := appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	with := func(change func(*appsv1.DeploymentStatus)) appsv1.DeploymentStatus {
		s := whole
		change(&s)
		return s
	}
	const now, long = 0, time.Hour // ago
	pod := func(probed bool, restarts int32, ago time.Duration) func() *corev1.Pod {
		return func() *corev1.Pod { return controllerPod(probed, restarts, time.Now().Add(-ago)) }
	}
	for _, c := range []struct {
		name   string
		status appsv1.DeploymentStatus
		pod    func() *corev1.Pod
		want   string // of what is waited for; empty: nothing
	}{
		{"one that runs is rolled out", whole, pod(true, 0, now), ""},
		{"a status of the generation before counts for nothing", with(func(s *appsv1.DeploymentStatus) { s.ObservedGeneration = 1 }),
			pod(true, 0, long), "has not taken the change up yet"},
		{"an old pod that is available counts for nothing", with(func(s *appsv1.DeploymentStatus) { s.UpdatedReplicas, s.Replicas = 0, 1 }),
			pod(true, 0, long), "1 of 1 pods available, 0 updated"},
		{"an old pod beside the new one is waited for", with(func(s *appsv1.DeploymentStatus) { s.Replicas = 2 }), pod(true, 0, long),
			"old ones have yet to end"},
		{"one that is not available is waited for", with(func(s *appsv1.DeploymentStatus) { s.AvailableReplicas = 0 }), pod(true, 0, long),
			"0 of 1 pods available"},
		{"one that restarted just now is not believed, though it is " +
			"available", whole, pod(true, 1, now), "restarted 1 times, last with exit code 2 (Error)"},
		{"one that restarted long ago is", whole, pod(true, 3, long), ""},
		{"one that no probe speaks for must have run for a while", whole, pod(false, 0, -time.Minute), "has only just started"},
		{"a missing one is named", appsv1.DeploymentStatus{}, nil, "Deployment fabric/controller: does not exist"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var objects []runtime.Object
				if c.pod != nil {
					objects = []runtime.Object{controllerDeployment(2, c.status), c.pod()}
				}
				m := &Manager{client: &cluster.Client{Typed: fake.NewClientset(objects...)}}
				ctx, cancel := context.WithTimeout(t.Context(), steadyFor-time.Second)
				defer cancel()
				state, err := m.Await(ctx, &Release{Name: "r", Namespace: "fabric", Manifest: controllerManifest})
				if c.want == "" {
					if err != nil || !state.Ready() {
						t.Errorf("waiting for %v (error %v), want nothing", state.Waiting, err)
					}
					return
				}
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(strings.Join(state.Waiting, "\n"), c.want) {
					t.Errorf("waiting for %v (error %v), want %q", state.Waiting, err, c.want)
				}
			})
		})
	}
}

func TestAwaitBelievesAPodThatStaysUpAfterItsRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
		m := &Manager{client: &cluster.Client{Typed: fake.NewClientset(controllerDeployment(2, status), controllerPod(true, 1, time.Now()))}}
		started := time.Now()
		state, err := m.Await(t.Context(), &Release{Name: "r", Namespace: "fabric", Manifest: controllerManifest})
		if err != nil || !state.Ready() {
			t.Errorf("waiting for %v (error %v), want nothing", state.Waiting, err)
		}
		if took := time.Since(started); took < steadyFor {
			t.Errorf("believed after %s, want %s", took, steadyFor)
		}
	})
}

// The watch of a kind ends now and then; when it is set up again, the credentials may have expired.
func TestAwaitEndsWhenCredentialsAreRejectedForLong(t *testing.T) {
	for _, lasting := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client := fake.NewClientset(controllerDeployment(2, appsv1.DeploymentStatus{}))
			var accepted atomic.Bool // by the server
			accepted.Store(true)
			reject := func(clienttesting.Action) (bool, runtime.Object, error) {
				return !accepted.Load(), nil, apierrors.NewUnauthorized("the token has expired")
			}
			client.PrependReactor("list", "deployments", reject)
			client.PrependReactor("get", "deployments", reject)
			watches := make(chan *watch.RaceFreeFakeWatcher, 1)
			client.PrependWatchReactor("deployments", func(clienttesting.Action) (bool, watch.Interface, error) {
				if !accepted.Load() {
					return true, nil, apierrors.NewUnauthorized("the token has expired")
				}
				w := watch.NewRaceFreeFake()
				watches <- w
				return true, w, nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
			defer cancel()
			go func() {
				for range 2 { // twice, long after one another
					standing := <-watches
					time.Sleep(10 * time.Minute)
					accepted.Store(false)
					standing.Stop()
					if lasting {
						return
					}
					time.Sleep(10 * time.Second)
					accepted.Store(true)
				}
				<-watches
			}()
			began := time.Now()
			m := &Manager{client: &cluster.Client{Typed: client}}
			_, err := m.Await(ctx, &Release{Name: "r", Namespace: "fabric", Manifest: controllerManifest})
			if took := time.Since(began); lasting && (!apierrors.IsUnauthorized(err) || took > 12*time.Minute) ||
				!lasting && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("rejected for ever: %t; it ended after %v with %v", lasting, took, err)
			}
		})
	}
}
