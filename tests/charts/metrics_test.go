package charts

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

func TestThePodMonitorFindsEveryRole(t *testing.T) {
	for _, authentication := range []bool{false, true} {
		t.Run(fmt.Sprintf("authentication %t", authentication), func(t *testing.T) { findsEveryRole(t, authentication) })
	}
}

// Some series name pods of all namespaces.
//
//shows:tenants
func TestAuthenticationGuardsEverySeriesThatNamesPods(t *testing.T) {
	values := everything()
	values["metrics"] = map[string]any{"authentication": true}
	objects := renderValues(t, "gpufabric", values)
	bound := map[string]bool{}
	for _, object := range objects {
		if object.GetName() != "gpufabric-metrics-authentication" {
			continue
		}
		subjects, _, err := unstructured.NestedSlice(object.Object, "subjects")
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range subjects {
			bound[subject.(map[string]any)["name"].(string)] = true
		}
	}
	all := pods(t, objects)
	for _, name := range []string{"gpufabric-compute-domain-plugin", "gpufabric-gpu-plugin", "gpufabric-rdma-plugin", "gpufabric-vgpu-plugin",
		"gpufabric-vgpu-monitor"} {
		container := all[name].Spec.Containers[0]
		if !slices.Contains(container.Args, "--metrics-authentication") || !bound[name] {
			t.Errorf("%s: arguments %v, may ask the API server: %t", name, container.Args, bound[name])
		}
		if probe := container.LivenessProbe.HTTPGet; probe.Scheme != corev1.URISchemeHTTPS || probe.Port.StrVal != container.Ports[0].Name {
			t.Errorf("%s: the kubelet asks %+v", name, probe)
		}
	}
}

func findsEveryRole(t *testing.T, authentication bool) {
	values := everything()
	values["metrics"] = map[string]any{"authentication": authentication, "podMonitor": map[string]any{"enabled": true, "interval": "5s",
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
