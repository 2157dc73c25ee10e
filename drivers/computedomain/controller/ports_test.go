package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// TestNetworkPolicyListsEveryPortOfDaemons compares the ports of the daemons' pods with the domain's NetworkPolicy, in every form in
// which daemons run. A port that the policy does not know is one that nobody reaches, and imex is for the members alone.
func TestNetworkPolicyListsEveryPortOfDaemons(t *testing.T) {
	clique := newDomain(computedomain.CliqueName("c.1"), 1)
	clique.Namespace, clique.Labels = namespace, map[string]string{v1beta1.LabelClique: "c.1"}
	for _, domain := range []*v1beta1.ComputeDomain{newDomain("d", 1), clique} {
		for _, authentication := range []bool{false, true} {
			for _, certificates := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, metrics guarded %t, certificates %t", domain.Name, authentication, certificates), func(t *testing.T) {
					settings := Settings{Namespace: namespace, Image: "i", MetricsAuthentication: authentication, Certificates: certificates}
					set, err := daemonSet(domain, settings)
					if err != nil {
						t.Fatal(err)
					}
					knowsPorts(t, set, networkPolicy(domain, set, settings))
				})
			}
		}
	}
}

func knowsPorts(t *testing.T, set *appsv1.DaemonSet, policy *networkingv1.NetworkPolicy) {
	t.Helper()
	pod := set.Spec.Template
	selects := func(selector *metav1.LabelSelector, pod labels.Set) bool {
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		return s.Matches(pod)
	}
	if !selects(&policy.Spec.PodSelector, pod.Labels) || selects(&policy.Spec.PodSelector, domainLabels("another")) ||
		!slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
		t.Errorf("the policy selects %v, and the pods have %v", policy.Spec.PodSelector, pod.Labels)
	}
	for _, port := range pod.Spec.Containers[0].Ports {
		reached := false
		for _, rule := range policy.Spec.Ingress {
			if !slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.IntVal == port.ContainerPort }) {
				continue
			}
			reached = true
			if port.Name != "imex" {
				continue
			}
			if len(rule.From) != 1 || rule.From[0].NamespaceSelector != nil || !selects(rule.From[0].PodSelector, pod.Labels) ||
				selects(rule.From[0].PodSelector, domainLabels("another")) {
				t.Errorf("the port imex is open to %+v", rule.From)
			}
		}
		if !reached || port.HostPort != 0 {
			t.Errorf("nobody reaches port %s (%d), or its node's everybody (%d)", port.Name, port.ContainerPort, port.HostPort)
		}
	}
}

// TestChildrenAreValidForTheLongestNames makes what stands for a ComputeDomain whose name, whose namespace and whose template's name are as
// long as the API server lets them be.
func TestChildrenAreValidForTheLongestNames(t *testing.T) {
	c := newCluster(t)
	c.reconciler.settings.NetworkPolicies = true
	long := newDomain(strings.Repeat("d", validation.DNS1123SubdomainMaxLength), 1)
	long.Namespace = strings.Repeat("n", validation.DNS1123LabelMaxLength)
	long.UID = "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"
	long.Spec.Channel.ResourceClaimTemplate.Name = strings.Repeat("t", validation.DNS1123SubdomainMaxLength)
	c.must(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: long.Namespace}}))
	c.must(c.Create(t.Context(), long))
	c.settle(long.UID)
	c.settle(long.UID) // the DaemonSet exists now
	workload, daemons := &resourceapi.ResourceClaimTemplate{}, &appsv1.DaemonSet{}
	c.must(c.Get(t.Context(), client.ObjectKey{Namespace: long.Namespace, Name: long.Spec.Channel.ResourceClaimTemplate.Name}, workload))
	c.must(c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(long.UID)}, daemons))
	for _, o := range []metav1.Object{workload, daemons, &daemons.Spec.Template.ObjectMeta} {
		if wrong := validation.IsDNS1123Subdomain(o.GetName()); o.GetName() != "" && len(wrong) > 0 { // a template has none
			t.Errorf("the name %s: %v", o.GetName(), wrong)
		}
		for key, value := range o.GetLabels() {
			if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
				t.Errorf("%s has the label %s=%s: %v", o.GetName(), key, value, wrong)
			}
		}
	}
	if daemons.Annotations[computedomain.AnnotationName] != long.Name {
		t.Errorf("the DaemonSet says that it is of %q", daemons.Annotations[computedomain.AnnotationName])
	}
}
