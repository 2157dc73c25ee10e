package charts

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestRolloutWaitsForReadyPods checks when Kubernetes counts a pod of each role as available. A DaemonSet's rollout allows
// at most maxUnavailable pods that are not. So the rollout of a program that crashes, or that the kubelet does not reach, stops
// after the first batch. Terraform's attribute ready counts available pods too.
func TestRolloutWaitsForReadyPods(t *testing.T) {
	values := everything()
	values["scheduler"] = on()
	objects := renderValues(t, "gpufabric", values)
	for name, pod := range pods(t, objects) {
		if name == "gpufabric-uninstall" || name == "gpufabric-uninstall-check" {
			continue // a Job, which has no rollout
		}
		for _, container := range pod.Spec.Containers {
			ready, live := container.ReadinessProbe, container.LivenessProbe
			if ready == nil || ready.HTTPGet == nil || ready.HTTPGet.Path != "/readyz" {
				t.Errorf("%s/%s: the readiness probe is %+v", name, container.Name, ready)
			}
			if live == nil || live.HTTPGet == nil || live.HTTPGet.Path == "/readyz" {
				t.Errorf("%s/%s: the liveness probe is %+v", name, container.Name, live)
			}
		}
	}
	rolling := 0
	for _, object := range objects {
		var set appsv1.DaemonSet
		if object.GetKind() != "DaemonSet" {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &set); err != nil {
			t.Fatal(err)
		}
		strategy := set.Spec.UpdateStrategy
		if strategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			continue // no rollout replaces its pods
		}
		rolling++
		// A program that starts and then crashes is ready for a moment.
		if set.Spec.MinReadySeconds < 10 {
			t.Errorf("%s: a new pod counts after %d seconds", set.Name, set.Spec.MinReadySeconds)
		}
		if strategy.RollingUpdate == nil || strategy.RollingUpdate.MaxUnavailable == nil ||
			strategy.RollingUpdate.MaxUnavailable.String() != "10%" {
			t.Errorf("%s is replaced %+v at a time", set.Name, strategy.RollingUpdate)
		}
	}
	if rolling < 4 {
		t.Errorf("only %d DaemonSets are rolled out", rolling)
	}
}
