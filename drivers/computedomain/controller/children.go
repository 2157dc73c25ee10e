package controller

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

const (
	channelRequest = "channel"
	daemonRequest  = "daemon"
	// hostRoot is where a driver root of "/" is mounted.
	hostRoot = "/driver-root"
)

// daemonName is the name of a domain's DaemonSet and of its daemons' ResourceClaimTemplate. Domains of all namespaces meet in the
// controller's, so the name is made of what no two of them share.
func daemonName(domain types.UID) string { return "imex-daemon-" + string(domain) }

// domainLabels mark everything that is made for a domain.
func domainLabels(domain types.UID) map[string]string {
	return map[string]string{
		v1beta1.LabelComputeDomain:     string(domain),
		"app.kubernetes.io/name":       "gpufabric",
		"app.kubernetes.io/component":  "imex-daemon",
		"app.kubernetes.io/managed-by": "gpufabric-controller",
	}
}

// workloadTemplate is what the domain's pods claim channels by.
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
	return template, nil
}

// daemonTemplate is what the domain's daemons claim.
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

// daemonSet runs an IMEX daemon on every node that carries the domain's label.
func daemonSet(domain *v1beta1.ComputeDomain, s Settings) *appsv1.DaemonSet {
	labels := domainLabels(domain.UID)
	selector := map[string]string{v1beta1.LabelComputeDomain: string(domain.UID)}
	driverRoot, volumes, mounts := hostPaths(s.DriverRoot, s.HostMounts)
	claim := daemonName(domain.UID)
	// Long enough for nvidia-imex to end in order; a node that leaves a domain should not be held up longer.
	grace := int64(10)
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: daemonName(domain.UID), Labels: labels,
			Annotations: map[string]string{computedomain.AnnotationName: domain.Name, computedomain.AnnotationNamespace: domain.Namespace},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			// A daemon's restart takes the memory that running jobs share across nodes, so nothing restarts one but its own end: an
			// upgrade of the controller leaves the daemons of domains that exist alone.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector:                  selector,
					Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					PriorityClassName:             "system-node-critical",
					ServiceAccountName:            s.DaemonServiceAccount,
					ImagePullSecrets:              pullSecrets(s.ImagePullSecrets),
					TerminationGracePeriodSeconds: &grace,
					ResourceClaims:                []corev1.PodResourceClaim{{Name: daemonRequest, ResourceClaimTemplateName: &claim}},
					Volumes:                       volumes,
					Containers: []corev1.Container{{
						Name:            computedomain.DaemonContainer,
						Image:           s.Image,
						ImagePullPolicy: corev1.PullPolicy(s.ImagePullPolicy),
						Args:            []string{"imex-daemon", "--driver-root=" + driverRoot, "-v=" + strconv.Itoa(s.DaemonVerbosity)},
						Env:             daemonEnv(),
						Ports:           []corev1.ContainerPort{{Name: "health", ContainerPort: computedomain.HealthPort}},
						Resources:       corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: daemonRequest}}},
						VolumeMounts:    mounts,
						ReadinessProbe:  readinessProbe(),
					}},
				},
			},
		},
	}
}

func pullSecrets(names []string) []corev1.LocalObjectReference {
	var references []corev1.LocalObjectReference
	for _, name := range names {
		references = append(references, corev1.LocalObjectReference{Name: name})
	}
	return references
}

func daemonEnv() []corev1.EnvVar {
	var env []corev1.EnvVar
	for _, field := range [][2]string{
		{"NODE_NAME", "spec.nodeName"}, {"POD_IP", "status.podIP"}, {"POD_NAME", "metadata.name"},
		{"POD_NAMESPACE", "metadata.namespace"}, {"POD_UID", "metadata.uid"},
	} {
		env = append(env, corev1.EnvVar{Name: field[0], ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field[1]}}})
	}
	return env
}

// readinessProbe asks every second; the daemon holds a probe's answer back for nearly that long while it is not ready, so the
// kubelet learns of readiness at once.
func readinessProbe() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("health")}},
		PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 1, SuccessThreshold: 1,
	}
}

// hostPaths mounts what a daemon needs of its node, and returns where the driver root then is.
func hostPaths(driverRoot string, hostMounts []string) (root string, volumes []corev1.Volume, mounts []corev1.VolumeMount) {
	mount := func(hostPath, path string, readOnly bool) {
		name := "host-" + strconv.Itoa(len(volumes))
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: hostPath}}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: readOnly})
	}
	for _, dir := range hostMounts {
		mount(filepath.Clean(dir), filepath.Clean(dir), false)
	}
	root = filepath.Clean(driverRoot)
	switch {
	case root == "/":
		mount("/", hostRoot, true)
		return hostRoot, volumes, mounts
	case !slices.ContainsFunc(hostMounts, func(dir string) bool { return within(root, filepath.Clean(dir)) }):
		mount(root, root, true)
	}
	return root, volumes, mounts
}

// within says whether path is dir or lies in it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
