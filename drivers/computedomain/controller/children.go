package controller

import (
	"encoding/json"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

const (
	channelRequest = "channel"
	daemonRequest  = "daemon"
)

// daemonName is the name of a domain's DaemonSet and of its daemons' ResourceClaimTemplate. The domains of all namespaces share the
// controller's namespace, so the name is made from the domain's UID.
func daemonName(domain types.UID) string { return "imex-daemon-" + string(domain) }

// domainLabels mark everything that is created for a domain.
func domainLabels(domain types.UID) map[string]string {
	return map[string]string{
		v1beta1.LabelComputeDomain:     string(domain),
		"app.kubernetes.io/name":       "gpufabric",
		"app.kubernetes.io/component":  "imex-daemon",
		"app.kubernetes.io/managed-by": "gpufabric-controller",
	}
}

// workloadTemplate is the template from which the domain's pods claim channels.
func workloadTemplate(domain *v1beta1.ComputeDomain) (*resourceapi.ResourceClaimTemplate, error) {
	mode := domain.Spec.Channel.AllocationMode
	if mode == "" {
		mode = v1beta1.AllocationModeSingle
	}
	template, err := claimTemplate(domain, channelRequest, computedomain.ChannelClass, &v1beta1.ComputeDomainChannelConfig{
		TypeMeta: configType("ComputeDomainChannelConfig"), DomainID: string(domain.UID), AllocationMode: mode,
	})
	if err != nil {
		return nil, err
	}
	template.Namespace, template.Name = domain.Namespace, domain.Spec.Channel.ResourceClaimTemplate.Name
	// A pod that no channel is left for stays Pending, or goes to another clique.
	template.Spec.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: computedomain.FreeFor(domain.UID)}},
	}
	return template, nil
}

// daemonTemplate is the template for the claims of the domain's daemons.
func daemonTemplate(domain *v1beta1.ComputeDomain, namespace string) (*resourceapi.ResourceClaimTemplate, error) {
	template, err := claimTemplate(domain, daemonRequest, computedomain.DaemonClass, &v1beta1.ComputeDomainDaemonConfig{
		TypeMeta: configType("ComputeDomainDaemonConfig"), DomainID: string(domain.UID),
	})
	if err != nil {
		return nil, err
	}
	template.Namespace, template.Name = namespace, daemonName(domain.UID)
	return template, nil
}

func configType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1beta1.SchemeGroupVersion().String(), Kind: kind}
}

func claimTemplate(domain *v1beta1.ComputeDomain, request, class string, config any) (*resourceapi.ResourceClaimTemplate, error) {
	parameters, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write the configuration of request %s: %w", request, err)
	}
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Labels: domainLabels(domain.UID)},
		Spec: resourceapi.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				computedomain.AnnotationName: domain.Name, computedomain.AnnotationNamespace: domain.Namespace,
			}},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
				Requests: []resourceapi.DeviceRequest{{Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}},
				Config: []resourceapi.DeviceClaimConfiguration{{
					Requests: []string{request},
					DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
						Driver: computedomain.Driver, Parameters: runtime.RawExtension{Raw: parameters},
					}},
				}},
			}},
		},
	}, nil
}
