package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// labelTemplate is on every daemon pod: the template from which it was made.
const labelTemplate = "gpufabric.io/daemon-template"

// daemonSet runs an IMEX daemon on every node that carries the domain's label.
func daemonSet(domain *v1beta1.ComputeDomain, s Settings) (*appsv1.DaemonSet, error) {
	template, err := daemonPod(domain, s)
	if err != nil {
		return nil, err
	}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: daemonName(domain.UID), Labels: domainLabels(domain.UID),
			Annotations: map[string]string{computedomain.AnnotationName: domain.Name, computedomain.AnnotationNamespace: domain.Namespace},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1beta1.LabelComputeDomain: string(domain.UID)}},
			// A daemon's restart takes away the memory that running jobs share across nodes. So nothing restarts a daemon except its own
			// end: a changed template applies to pods that start after the change.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template:       *template,
		},
	}, nil
}

// daemonPod is the template of a domain's daemon pods, with a label that identifies the template's content.
//
// The files and devices of the node come with the device that the pod claims (CDI): the driver's files, its device nodes and two
// directories of the domain. So the pod mounts nothing of the node, and has no privilege.
func daemonPod(domain *v1beta1.ComputeDomain, s Settings) (*corev1.PodTemplateSpec, error) {
	volumes, mounts := hostPaths(s.HostMounts)
	scratchVolumes, scratchMounts := scratch()
	volumes, mounts = append(volumes, scratchVolumes...), append(mounts, scratchMounts...)
	if s.Certificates {
		volume, mount := certificateVolume(domain)
		volumes, mounts = append(volumes, volume), append(mounts, mount)
	}
	claim := daemonName(domain.UID)
	// nvidia-imex releases the memory that others have mapped before it ends; there is no reason to hurry when a node leaves a domain.
	grace := int64(30)
	ndots := "1"
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: domainLabels(domain.UID)},
		Spec: corev1.PodSpec{
			NodeSelector:                  daemonNodes(domain, s.Namespace),
			Affinity:                      avoidNodesWithOwnDaemon(domain, s.Namespace),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			PriorityClassName:             "system-node-critical",
			ServiceAccountName:            s.DaemonServiceAccount,
			ImagePullSecrets:              pullSecrets(s.ImagePullSecrets),
			TerminationGracePeriodSeconds: &grace,
			ResourceClaims:                []corev1.PodResourceClaim{{Name: daemonRequest, ResourceClaimTemplateName: &claim}},
			Volumes:                       volumes,
			// Peers' names are in /etc/hosts, and must not be looked up with the cluster's search domains appended.
			DNSConfig:       &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &ndots}}},
			SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name:                     computedomain.DaemonContainer,
				Image:                    s.Image,
				ImagePullPolicy:          corev1.PullPolicy(s.ImagePullPolicy),
				Command:                  []string{"gpufabric-node"},
				Args:                     daemonArgs(s),
				Env:                      daemonEnv(),
				Ports:                    daemonPorts(s),
				Resources:                daemonResources(),
				VolumeMounts:             mounts,
				ReadinessProbe:           readinessProbe(),
				LivenessProbe:            livenessProbe(),
				SecurityContext:          daemonSecurity(),
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		},
	}
	content, err := json.Marshal(template)
	if err != nil {
		return nil, fmt.Errorf("write the template of IMEX daemons: %w", err)
	}
	sum := sha256.Sum256(content)
	template.Labels[labelTemplate] = hex.EncodeToString(sum[:8])
	return template, nil
}

// daemonNodes are the nodes of a domain's daemons: those that joined it, or those of the clique that it represents.
func daemonNodes(domain *v1beta1.ComputeDomain, namespace string) map[string]string {
	if clique := computedomain.CliqueOf(domain, namespace); clique != "" {
		return map[string]string{v1beta1.LabelClique: clique}
	}
	return map[string]string{v1beta1.LabelComputeDomain: string(domain.UID)}
}

// avoidNodesWithOwnDaemon keeps the daemons of a clique off nodes that are part of a domain with daemons of its own (computeDomains.imex:
// domain), since a node has one IMEX session. A node plugin labels its node with such a domain only while no pod there has a channel of
// the clique.
func avoidNodesWithOwnDaemon(domain *v1beta1.ComputeDomain, namespace string) *corev1.Affinity {
	if computedomain.CliqueOf(domain, namespace) == "" {
		return nil
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: v1beta1.LabelComputeDomain, Operator: corev1.NodeSelectorOpDoesNotExist},
		}}},
	}}}
}

// daemonSecurity: the user is root, because root owns the domain's directory on the node and /etc/hosts, but without root's
// capabilities.
func daemonSecurity() *corev1.SecurityContext {
	yes, no, root := true, false, int64(0)
	return &corev1.SecurityContext{
		RunAsUser: &root, RunAsGroup: &root,
		Privileged: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// daemonResources suffice for the supervisor to answer probes on a node whose processors are all busy with jobs: a daemon with
// failing probes makes its domain not Ready. There is no limit: a daemon that is throttled or killed for memory takes jobs down.
func daemonResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Claims:   []corev1.ResourceClaim{{Name: daemonRequest}},
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
	}
}

func daemonArgs(s Settings) []string {
	args := []string{"imex-daemon", "-v=" + strconv.Itoa(s.DaemonVerbosity)}
	if s.MetricsAuthentication {
		args = append(args, "--metrics-authentication")
	}
	if s.Certificates {
		args = append(args, "--certificates="+computedomain.CertificatesDir)
	}
	return args
}

func daemonPorts(s Settings) []corev1.ContainerPort {
	ports := []corev1.ContainerPort{
		{Name: "health", ContainerPort: computedomain.HealthPort}, {Name: "imex", ContainerPort: computedomain.ServerPort},
	}
	if s.MetricsAuthentication {
		ports = append(ports, corev1.ContainerPort{Name: "metrics-tls", ContainerPort: computedomain.MetricsPort})
	}
	return ports
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
		env = append(env, corev1.EnvVar{Name: field[0],
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field[1]}}})
	}
	return env
}

// readinessProbe runs every second. The daemon delays the answer to a probe for nearly that long while it is not ready, so the kubelet
// learns of readiness at once. A late answer is a sign of a node without processor time to spare, not of the daemon's state: only a
// supervisor that hangs takes longer than the time-out.
func readinessProbe() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("health")}},
		PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 1, SuccessThreshold: 1,
	}
}

// livenessProbe ends a container whose supervisor hangs. It checks nothing else: the supervisor itself replaces an nvidia-imex that
// hangs, and the end of a container is the end of the memory that jobs share.
func livenessProbe() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/livez", Port: intstr.FromString("health")}},
		PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6, SuccessThreshold: 1,
	}
}

// scratch is where programs may write as if on a node of their own. nvidia-imex logs to its output here, and its default is
// /var/log/nvidia-imex.log.
func scratch() (volumes []corev1.Volume, mounts []corev1.VolumeMount) {
	limit := resource.MustParse("16Mi")
	for _, dir := range [][2]string{{"log", "/var/log"}, {"tmp", "/tmp"}} {
		volumes = append(volumes, corev1.Volume{Name: dir[0], VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit},
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: dir[0], MountPath: dir[1]})
	}
	return volumes, mounts
}

// hostPaths mounts the directories that every pod of ours on a node sees at their own path. Later mounts below them appear too.
func hostPaths(hostMounts []string) (volumes []corev1.Volume, mounts []corev1.VolumeMount) {
	propagation := corev1.MountPropagationHostToContainer
	for i, dir := range hostMounts {
		name, path := fmt.Sprintf("host-%d", i), filepath.Clean(dir)
		volumes = append(volumes, corev1.Volume{Name: name,
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: path, MountPropagation: &propagation})
	}
	return volumes, mounts
}
