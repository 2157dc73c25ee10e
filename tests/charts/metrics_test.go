package charts

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

func TestPodMonitorFindsEveryRole(t *testing.T) {
	for _, authentication := range []bool{false, true} {
		t.Run(fmt.Sprintf("authentication %t", authentication), func(t *testing.T) { findsEveryRole(t, authentication) })
	}
}

// Some series name pods of all namespaces. The scheduler's metrics are always guarded.
func TestAuthenticationGuardsMetricsOfEveryRole(t *testing.T) {
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
	if !bound["gpufabric-imex-daemon"] {
		t.Error("IMEX daemons may not ask the API server who may read their metrics")
	}
	asked := 0
	for name, pod := range all {
		if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			continue // a Job, which has no metrics
		}
		asked++
		container := pod.Spec.Containers[0]
		if !slices.Contains(container.Args, "--metrics-authentication") || !bound[name] || pod.Spec.ServiceAccountName != name {
			t.Errorf("%s: arguments %v, account %q, which may ask the API server: %t", name, container.Args, pod.Spec.ServiceAccountName,
				bound[name])
		}
		if token := pod.Spec.AutomountServiceAccountToken; token != nil && !*token {
			t.Errorf("%s has no token to ask the API server with", name)
		}
		ports := map[string]bool{}
		for _, port := range container.Ports {
			ports[port.Name] = true
		}
		if !ports["metrics-tls"] || ports["metrics"] {
			t.Errorf("%s has the ports %v", name, ports)
		}
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
			get := probe.HTTPGet
			if tls := get.Scheme == corev1.URISchemeHTTPS; tls != (get.Port.StrVal == "metrics-tls") || !ports[get.Port.StrVal] {
				t.Errorf("%s: the kubelet asks %+v", name, get)
			}
		}
	}
	if asked < 8 {
		t.Errorf("only %d roles were looked at", asked)
	}
}

// A NetworkPolicy that leaves out a port blocks Prometheus there, and in some clusters the kubelet.
func TestNetworkPolicyLetsScrapersReachEveryRole(t *testing.T) {
	for _, authentication := range []bool{false, true} {
		values := everything()
		values["scheduler"] = on()
		values["metrics"] = map[string]any{"authentication": authentication}
		objects := renderValues(t, "gpufabric", values)
		open := map[string]bool{}
		for _, object := range objects {
			if object.GetKind() != "NetworkPolicy" {
				continue
			}
			rules, _, err := unstructured.NestedSlice(object.Object, "spec", "ingress")
			if err != nil {
				t.Fatal(err)
			}
			for _, rule := range rules {
				for _, port := range rule.(map[string]any)["ports"].([]any) {
					open[port.(map[string]any)["port"].(string)] = true
				}
			}
		}
		for name, pod := range pods(t, objects) {
			for _, container := range pod.Spec.Containers {
				for _, port := range container.Ports {
					if !open[port.Name] {
						t.Errorf("authentication %t: nobody reaches port %s of %s, only %v", authentication, port.Name, name, open)
					}
				}
			}
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
	if port := map[bool]string{false: "health", true: "metrics-tls"}[authentication]; !labels.SelectorFromSet(selector).Matches(daemon) ||
		!asked[port] {
		t.Errorf("IMEX daemons are not found by %v on %v", selector, asked)
	}
	for name, pod := range pods(t, objects) {
		if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			continue // a Job, which ends before anybody scrapes it
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
