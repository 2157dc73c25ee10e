package charts

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

func TestThePodMonitorFindsEveryRole(t *testing.T) {
	values := everything()
	values["metrics"] = map[string]any{"podMonitor": map[string]any{"enabled": true, "interval": "5s",
		"labels": map[string]any{"release": "prometheus"}}}
	objects := renderValues(t, "gpufabric", values)
	var monitor *Object
	for i := range objects {
		if objects[i].GetKind() == "PodMonitor" {
			monitor = &objects[i]
		}
	}
	if monitor == nil {
		t.Fatal("no PodMonitor is rendered")
	}
	if got := monitor.GetLabels()["release"]; got != "prometheus" {
		t.Errorf("the operator would not select it: label release is %q", got)
	}
	selector, _, err := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	if err != nil {
		t.Fatal(err)
	}
	endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "podMetricsEndpoints")
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{}
	for _, endpoint := range endpoints {
		endpoint := endpoint.(map[string]any)
		asked[endpoint["port"].(string)] = true
		if endpoint["interval"] != "5s" {
			t.Errorf("interval %v of port %v", endpoint["interval"], endpoint["port"])
		}
	}
	// The controller's DaemonSets of IMEX daemons carry these labels and this port (drivers/computedomain/controller).
	daemon := labels.Set{"app.kubernetes.io/name": "gpufabric", "app.kubernetes.io/component": "imex-daemon"}
	if !labels.SelectorFromSet(selector).Matches(daemon) || !asked["health"] {
		t.Errorf("IMEX daemons are not found by %v on %v", selector, asked)
	}
	for name, pod := range pods(t, objects) {
		if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			continue // a Job, which is over before anybody asks
		}
		if !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s is not selected by %v", name, selector)
		}
		count := 0
		for _, port := range pod.Spec.Containers[0].Ports {
			if asked[port.Name] {
				count++
			}
		}
		if count != 1 {
			t.Errorf("%s is asked on %d ports, want one", name, count)
		}
	}
}
