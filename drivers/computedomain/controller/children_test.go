package controller

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/computedomain"
)

func TestDaemonContainerHasTheRolesFlags(t *testing.T) {
	set, err := daemonSet(newDomain("d", 1), Settings{Namespace: namespace, Image: "i", ImagePullPolicy: "Always",
		ImagePullSecrets: []string{"s"}, DaemonServiceAccount: "a"})
	if err != nil {
		t.Fatal(err)
	}
	spec := set.Spec.Template.Spec
	container := spec.Containers[0]
	env := map[string]string{}
	for _, variable := range container.Env {
		env[variable.Name] = variable.ValueFrom.FieldRef.FieldPath
	}
	want := map[string]string{"NODE_NAME": "spec.nodeName", "POD_IP": "status.podIP", "POD_NAME": "metadata.name",
		"POD_NAMESPACE": "metadata.namespace", "POD_UID": "metadata.uid"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("environment (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"gpufabric-node", "imex-daemon", "-v=0"}, slices.Concat(container.Command, container.Args)); diff != "" {
		t.Errorf("arguments (-want +got)\n%s", diff)
	}
	probe := container.ReadinessProbe
	if container.Name != computedomain.DaemonContainer || container.ImagePullPolicy != corev1.PullAlways ||
		spec.ImagePullSecrets[0].Name != "s" || spec.ServiceAccountName != "a" || probe.HTTPGet.Path != "/readyz" {
		t.Errorf("pod %+v", spec)
	}
	if len(set.Name) > 52 {
		t.Errorf("the name %s has %d bytes; with more than 52 the controller's hash makes pods' labels too long", set.Name, len(set.Name))
	}
}

func TestNetworkPolicyAdmitsOnlyTheDomainsDaemons(t *testing.T) {
	c := newCluster(t)
	c.reconciler.settings.NetworkPolicies = true
	domain := newDomain("d", 1)
	c.must(c.Create(t.Context(), domain))
	c.settle(domain.UID)
	c.settle(domain.UID) // the DaemonSet exists now
	policy := &networkingv1.NetworkPolicy{}
	c.must(c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(domain.UID)}, policy))
	daemons := &appsv1.DaemonSet{}
	c.must(c.Get(t.Context(), client.ObjectKeyFromObject(policy), daemons))
	selects := func(selector metav1.LabelSelector) bool {
		s, err := metav1.LabelSelectorAsSelector(&selector)
		c.must(err)
		other := labels.Set(domainLabels("another"))
		return s.Matches(labels.Set(daemons.Spec.Template.Labels)) && !s.Matches(other)
	}
	if !selects(policy.Spec.PodSelector) {
		t.Errorf("the policy selects %v", policy.Spec.PodSelector)
	}
	if !metav1.IsControlledBy(policy, daemons) {
		t.Errorf("the policy does not go with its daemons: %v", policy.OwnerReferences)
	}
	open := map[int32]bool{} // port to whether everybody can reach it
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			open[port.Port.IntVal] = len(rule.From) == 0
		}
		for _, from := range rule.From {
			if from.NamespaceSelector != nil || from.IPBlock != nil || !selects(*from.PodSelector) {
				t.Errorf("the policy lets in %v", from)
			}
		}
	}
	want := map[int32]bool{computedomain.HealthPort: true, computedomain.ServerPort: false}
	if diff := cmp.Diff(want, open); diff != "" {
		t.Errorf("ports (-want +got)\n%s", diff)
	}
}

func TestDaemonGuardsMetricsWhenTheControllerDoes(t *testing.T) {
	settings := Settings{Namespace: namespace, Image: "i", MetricsAuthentication: true}
	set, err := daemonSet(newDomain("d", 1), settings)
	if err != nil {
		t.Fatal(err)
	}
	container := set.Spec.Template.Spec.Containers[0]
	if diff := cmp.Diff([]string{"imex-daemon", "-v=0", "--metrics-authentication"}, container.Args); diff != "" {
		t.Errorf("arguments (-want +got)\n%s", diff)
	}
	ports := map[string]int32{}
	for _, port := range container.Ports {
		ports[port.Name] = port.ContainerPort
	}
	want := map[string]int32{"health": computedomain.HealthPort, "imex": computedomain.ServerPort, "metrics-tls": computedomain.MetricsPort}
	if diff := cmp.Diff(want, ports); diff != "" {
		t.Errorf("ports (-want +got)\n%s", diff)
	}
	// Probes use no TLS: the kubelet probes every second, and gets only the daemon's readiness.
	if probe := container.ReadinessProbe.HTTPGet; probe.Port.StrVal != "health" || probe.Scheme == corev1.URISchemeHTTPS {
		t.Errorf("the kubelet asks %+v", probe)
	}
	open := networkPolicy(newDomain("d", 1), set, settings).Spec.Ingress[0].Ports[0].Port.IntVal
	if open != computedomain.MetricsPort {
		t.Errorf("the domain's NetworkPolicy opens port %d to everybody", open)
	}
}

func TestDaemonPodHasNoPrivilegeAndNoHostAccess(t *testing.T) {
	set, err := daemonSet(newDomain("d", 1), Settings{Namespace: namespace, Image: "i"})
	if err != nil {
		t.Fatal(err)
	}
	pod := set.Spec.Template.Spec
	for _, volume := range pod.Volumes {
		if volume.HostPath != nil {
			t.Errorf("it mounts %s of its node; the driver comes with the claimed device", volume.HostPath.Path)
		}
	}
	container := pod.Containers[0]
	has := container.SecurityContext
	if *has.Privileged || *has.AllowPrivilegeEscalation || !*has.ReadOnlyRootFilesystem || len(has.Capabilities.Add) > 0 ||
		!cmp.Equal(has.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security %+v, of the pod %+v", has, pod.SecurityContext)
	}
	if pod.HostNetwork || pod.HostPID || pod.HostIPC {
		t.Error("it has namespaces of its node")
	}
	if container.LivenessProbe == nil || container.LivenessProbe.HTTPGet.Path != "/livez" || container.Resources.Requests.Cpu().IsZero() ||
		container.Resources.Requests.Memory().IsZero() {
		t.Errorf("liveness %+v, resources %+v", container.LivenessProbe, container.Resources)
	}
	if option := pod.DNSConfig.Options[0]; option.Name != "ndots" || *option.Value != "1" {
		t.Errorf("DNS %+v", pod.DNSConfig)
	}
}

func TestDaemonPodSeesLaterMountsOfSharedDirectories(t *testing.T) {
	volumes, mounts := hostPaths([]string{"/var/lib/fake/"})
	if len(volumes) != 1 || volumes[0].HostPath.Path != "/var/lib/fake" || mounts[0].MountPath != "/var/lib/fake" || mounts[0].ReadOnly ||
		*mounts[0].MountPropagation != corev1.MountPropagationHostToContainer {
		t.Errorf("volumes %+v, mounts %+v", volumes, mounts)
	}
}
