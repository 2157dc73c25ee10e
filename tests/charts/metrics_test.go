package charts

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

func TestThePodMonitorFindsEveryRole(t *testing.T) {
	values := everything()
	values["metrics"] = map[string]any{"podMonitor": map[string]any{"enabled": true, "interval": "5s", "labels": map[string]any{"release": "prometheus"}}}
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
	if err != nil || len(endpoints) != 1 {
		t.Fatalf("endpoints %v, %v", endpoints, err)
	}
	endpoint := endpoints[0].(map[string]any)
	if endpoint["interval"] != "5s" {
		t.Errorf("interval %v", endpoint["interval"])
	}
	for name, pod := range pods(t, objects) {
		if !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s is not selected by %v", name, selector)
		}
		found := false
		for _, port := range pod.Spec.Containers[0].Ports {
			found = found || port.Name == endpoint["port"]
		}
		if !found {
			t.Errorf("%s has no port %v", name, endpoint["port"])
		}
	}
}
