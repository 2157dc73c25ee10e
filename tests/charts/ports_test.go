package charts

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policed checks the ports of one pod against all NetworkPolicies of its namespace, as a CNI reads them. Some policy admits clients to each
// port that the pod opens, and selects the pod at all, so that every other port is closed. closed are ports that no policy opens to
// everybody.
func policed(t *testing.T, who, space string, pod corev1.PodTemplateSpec, policies []networkingv1.NetworkPolicy, closed ...string) {
	t.Helper()
	if pod.Spec.HostNetwork {
		return // no NetworkPolicy reaches it: it must open nothing but what it needs, see listens
	}
	selected, anybody, somebody := false, map[string]bool{}, map[string]bool{}
	for _, policy := range policies {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			t.Fatal(err)
		}
		if policy.Namespace != space || !selector.Matches(labels.Set(pod.Labels)) ||
			!slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			continue
		}
		selected = true
		for _, rule := range policy.Spec.Ingress {
			if len(rule.Ports) == 0 {
				t.Errorf("%s: the policy %s/%s opens every port", who, space, policy.Name)
			}
			for _, container := range pod.Spec.Containers {
				for _, port := range container.Ports {
					if slices.ContainsFunc(rule.Ports, func(open networkingv1.NetworkPolicyPort) bool { return opens(open, port) }) {
						somebody[port.Name] = true
						anybody[port.Name] = anybody[port.Name] || len(rule.From) == 0
					}
				}
			}
		}
	}
	if !selected {
		t.Errorf("%s in %s (labels %v): no NetworkPolicy selects it, so everybody reaches every port that it opens", who, space, pod.Labels)
		return
	}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			switch private := slices.Contains(closed, port.Name); {
			case !somebody[port.Name]:
				t.Errorf("%s: nobody reaches its port %s", who, port.Name)
			case private && anybody[port.Name]:
				t.Errorf("%s: everybody reaches its port %s", who, port.Name)
			}
			if port.HostPort != 0 {
				t.Errorf("%s: port %s is its node's too", who, port.Name)
			}
		}
	}
}

func opens(open networkingv1.NetworkPolicyPort, port corev1.ContainerPort) bool {
	if open.Protocol != nil && *open.Protocol != corev1.ProtocolTCP {
		return false
	}
	if open.Port == nil {
		return true
	}
	return open.Port.Type == intstr.String && open.Port.StrVal == port.Name || open.Port.Type == intstr.Int &&
		open.Port.IntVal == port.ContainerPort
}

// TestNetworkPoliciesListEveryPortOfChartPods compares the ports of every pod with what the policies of its namespace open. The
// RDMA and vGPU roles may stand in namespaces of their own.
func TestNetworkPoliciesListEveryPortOfChartPods(t *testing.T) {
	for _, imex := range []string{"domain", "clique", "host"} {
		for _, authentication := range []bool{false, true} {
			values := everything()
			values["computeDomains"] = map[string]any{"imex": imex}
			values["metrics"] = map[string]any{"authentication": authentication}
			values["scheduler"], values["console"] = on(), on()
			values["rdma"] = map[string]any{"enabled": true, "namespace": "kube-system"}
			values["vgpu"] = map[string]any{"enabled": true, "namespace": "volcano"}
			objects := renderValues(t, "gpufabric", values)
			var policies []networkingv1.NetworkPolicy
			for _, object := range objects {
				if object.GetKind() != "NetworkPolicy" {
					continue
				}
				var policy networkingv1.NetworkPolicy
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &policy); err != nil {
					t.Fatal(err)
				}
				policies = append(policies, policy)
			}
			looked := 0
			for _, object := range objects {
				if kind := object.GetKind(); kind != "Deployment" && kind != "DaemonSet" {
					continue
				}
				pod := pods(t, []Object{object})[object.GetName()]
				policed(t, object.GetName(), object.GetNamespace(), pod, policies)
				listens(t, object.GetName(), pod)
				looked++
			}
			if looked < 9 {
				t.Errorf("only %d workloads were looked at", looked)
			}
		}
	}
}

// listens checks that each address on which a container's arguments have it listen is one of its ports: a port that is not declared is in
// no list of ports.
func listens(t *testing.T, who string, pod corev1.PodTemplateSpec) {
	t.Helper()
	for _, container := range pod.Spec.Containers {
		for _, arg := range container.Args {
			flag, value, _ := strings.Cut(arg, "=")
			if !strings.HasSuffix(flag, "address") && !strings.HasSuffix(flag, "port") {
				continue
			}
			number := value[strings.LastIndex(value, ":")+1:]
			if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return strconv.Itoa(int(p.ContainerPort)) == number }) {
				t.Errorf("%s listens by %s, which is none of its ports %v", who, arg, container.Ports)
			}
		}
	}
}

// madePorts compares the ports of the DaemonSets that the controller has made for compute domains with the policies that stand.
func (r *roles) madePorts(t *testing.T, selector string) {
	t.Helper()
	sets, err := r.admin.AppsV1().DaemonSets(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	policies, err := r.admin.NetworkingV1().NetworkPolicies(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range sets.Items {
		policed(t, set.Name, namespace, set.Spec.Template, policies.Items, "imex")
	}
}
