package controller

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// networkPolicy lets only the IMEX daemons of one domain reach each other: nvidia-imex does not authenticate its peers. The kubelet's
// probes come from the pod's own node, which no NetworkPolicy blocks; /metrics stays open to the cluster.
func networkPolicy(domain *v1beta1.ComputeDomain, daemons *appsv1.DaemonSet, s Settings) *networkingv1.NetworkPolicy {
	members := metav1.LabelSelector{MatchLabels: map[string]string{
		v1beta1.LabelComputeDomain: string(domain.UID), "app.kubernetes.io/component": "imex-daemon",
	}}
	tcp, server := corev1.ProtocolTCP, intstr.FromInt32(computedomain.ServerPort)
	health, metrics := intstr.FromInt32(computedomain.HealthPort), intstr.FromInt32(computedomain.MetricsPort)
	everybody := []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &health}}}}
	if s.MetricsAuthentication {
		everybody[0].Ports[0].Port = &metrics
		// The controller queries the daemons' connections.
		controller := metav1.LabelSelector{MatchLabels: map[string]string{
			"app.kubernetes.io/name": "gpufabric", "app.kubernetes.io/component": "controller",
		}}
		everybody = append(everybody, networkingv1.NetworkPolicyIngressRule{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &controller}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &health}},
		})
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: daemons.Namespace, Name: daemonName(domain.UID), Labels: domainLabels(domain.UID),
			// It is removed with the daemons, even after the setting was switched off.
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(daemons, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: members,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: append(everybody, networkingv1.NetworkPolicyIngressRule{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &members}},
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &server}},
			}),
		},
	}
}

// ensureNetworkPolicy creates the domain's policy once the DaemonSet exists, which owns it.
func (r *Reconciler) ensureNetworkPolicy(ctx context.Context, p *pass) error {
	if !r.settings.NetworkPolicies || p.daemons == nil {
		return nil
	}
	_, err := r.ensure(ctx, p, networkPolicy(p.domain, p.daemons, r.settings), &networkingv1.NetworkPolicy{})
	return err
}
