package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// Labels of nodes, set by node-feature-discovery or an administrator.
const (
	labelNIC     = "feature.node.kubernetes.io/pci-15b3.present"
	labelGPU     = "feature.node.kubernetes.io/pci-10de.present"
	labelOS      = "feature.node.kubernetes.io/system-os_release.ID"
	labelRelease = "feature.node.kubernetes.io/system-os_release.VERSION_ID"
	labelKernel  = "feature.node.kubernetes.io/kernel-version.full"
	labelArch    = "kubernetes.io/arch"
)

// DefaultImage is the name format of the network operator's driver images: mellanox/ofed-driver-5.0-2.1.8.0:ubuntu18.04-amd64.
const DefaultImage = "{repository}/{image}-{version}:{os}{release}-{arch}"

// platform is what a driver is built for.
type platform struct{ os, release, kernel, arch string }

// platformOf reads a node's platform, or returns the name of a missing label.
func platformOf(labels map[string]string) (p platform, missing string) {
	for _, part := range []struct {
		label string
		value *string
	}{{labelOS, &p.os}, {labelRelease, &p.release}, {labelKernel, &p.kernel}, {labelArch, &p.arch}} {
		if *part.value = labels[part.label]; *part.value == "" {
			return p, part.label
		}
	}
	return p, ""
}

func sorted(platforms map[platform]bool) []platform {
	return slices.SortedFunc(maps.Keys(platforms), func(a, b platform) int {
		return cmp.Or(cmp.Compare(a.os, b.os), cmp.Compare(a.release, b.release), cmp.Compare(a.kernel, b.kernel), cmp.Compare(a.arch, b.arch))
	})
}

// driver is a kernel driver that runs as a container on nodes.
type driver struct {
	kind     string // ofed-driver
	image    mellanox.ImageSpec
	template string   // of the image's name; empty: DefaultImage
	needs    []string // labels that a node must have as "true"
	mounts   []mount
	probes   probes
	env      []corev1.EnvVar
	grace    *int64 // seconds to end
	upgrade  upgrade
}

// probes are the probes of a driver; nil: none.
type probes struct{ startup, liveness, readiness *mellanox.ProbeSpec }

// Defaults of the network operator's probes, in seconds:
// https://docs.nvidia.com/networking/display/kubernetes2610/customizations/cr-full-example.html.
const readinessDelay, readinessPeriod = 10, 30

// startupFailures is how often the startup probe may fail: a driver is built for the node's kernel before it is loaded.
const startupFailures = 60

// probesOf are the probes that a section asks for.
func probesOf(s *mellanox.OFEDDriverSpec) probes {
	p := probes{startup: s.StartupProbe, liveness: s.LivenessProbe, readiness: s.ReadinessProbe}
	if p.readiness == nil && upgradeOf(s.UpgradePolicy).automatic {
		p.readiness = &mellanox.ProbeSpec{InitialDelaySeconds: readinessDelay, PeriodSeconds: readinessPeriod}
	}
	return p
}

// probe makes a container's probe, which is a command in it; nil where there is none.
func probe(spec *mellanox.ProbeSpec, failures int32, command ...string) *corev1.Probe {
	if spec == nil {
		return nil
	}
	return &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}},
		InitialDelaySeconds: spec.InitialDelaySeconds, PeriodSeconds: spec.PeriodSeconds, FailureThreshold: failures,
	}
}

// set adds a container's probes. The driver's images make the file /.driver-ready after they loaded it.
func (p probes) set(c *corev1.Container) {
	loaded := []string{"grep", "-q", "^mlx5_core ", "/proc/modules"}
	c.StartupProbe = probe(p.startup, startupFailures, "test", "-e", "/.driver-ready")
	c.LivenessProbe = probe(p.liveness, 1, loaded...)
	c.ReadinessProbe = probe(p.readiness, 1, loaded...)
}

// mount is a directory of the node at the same path in the driver's container.
type mount struct {
	name, path string
	readOnly   bool
}

// ofedMounts are the directories where the driver leaves its files for other builds.
func ofedMounts() []mount {
	return []mount{{name: "run-mofed", path: "/run/mellanox/drivers"}, {name: "modules", path: "/lib/modules", readOnly: true}}
}

// peerMounts are the sources that the peer memory module is built from.
func peerMounts(gpuDriver string) []mount {
	if gpuDriver == "" {
		gpuDriver = "/run/nvidia/driver"
	}
	return []mount{{name: "run-mofed", path: "/run/mellanox/drivers", readOnly: true}, {name: "gpu-driver", path: gpuDriver, readOnly: true},
		{name: "modules", path: "/lib/modules", readOnly: true}}
}

func (d *driver) wanted(labels map[string]string) bool {
	return !slices.ContainsFunc(d.needs, func(need string) bool { return labels[need] != "true" })
}

// name is the DaemonSet's name: ofed-driver-amd64-ubuntu18.04-kver4.15.0-109-generic-ds. Characters that a name cannot have become
// dashes.
func (d *driver) name(on platform) string {
	name := strings.ToLower(d.kind + "-" + on.arch + "-" + on.os + on.release + "-kver" + on.kernel + "-ds")
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, name)
}

// Image fills the placeholders {repository}, {image}, {version}, {os}, {release}, {kernel} and {arch} of an image's name.
func Image(template string, spec mellanox.ImageSpec, os, release, kernel, arch string) string {
	if template == "" {
		template = DefaultImage
	}
	return strings.NewReplacer("{repository}", spec.Repository, "{image}", spec.Image, "{version}", spec.Version,
		"{os}", os, "{release}", release, "{kernel}", kernel, "{arch}", arch).Replace(template)
}

// daemonSet is the DaemonSet of the driver for the nodes of one platform.
func (d *driver) daemonSet(namespace string, on platform) *appsv1.DaemonSet {
	selector := map[string]string{labelOS: on.os, labelRelease: on.release, labelKernel: on.kernel, labelArch: on.arch}
	for _, need := range d.needs {
		selector[need] = "true"
	}
	privileged, noToken := true, false
	name := d.name(on)
	pod := map[string]string{"app.kubernetes.io/name": d.kind, "app.kubernetes.io/instance": shorten(name)}
	container := corev1.Container{
		Name: d.kind, Image: Image(d.template, d.image, on.os, on.release, on.kernel, on.arch), ImagePullPolicy: corev1.PullIfNotPresent,
		SecurityContext: &corev1.SecurityContext{Privileged: &privileged}, // It loads kernel modules.
		Env:             d.env,
	}
	d.probes.set(&container)
	var secrets []corev1.LocalObjectReference
	for _, name := range d.image.ImagePullSecrets {
		secrets = append(secrets, corev1.LocalObjectReference{Name: name})
	}
	var volumes []corev1.Volume
	for _, m := range d.mounts {
		kind, propagation := corev1.HostPathDirectoryOrCreate, corev1.MountPropagationHostToContainer
		if !m.readOnly {
			propagation = corev1.MountPropagationBidirectional
		}
		volumes = append(volumes, corev1.Volume{Name: m.name,
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: m.path, Type: &kind}}})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: m.path, ReadOnly: m.readOnly,
			MountPropagation: &propagation})
	}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: pod},
			// A restart of the driver's container takes the node's NICs down. So it is left to whoever drains the node, unless the policy
			// says otherwise.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: pod},
				Spec: corev1.PodSpec{
					HostNetwork: true, AutomountServiceAccountToken: &noToken, NodeSelector: selector, PriorityClassName: "system-node-critical",
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers:  []corev1.Container{container}, Volumes: volumes, ImagePullSecrets: secrets, TerminationGracePeriodSeconds: d.grace,
				},
			},
		},
	}
}

// maxLabel is the longest value of a label.
const maxLabel = 63

// shorten makes a label's value from a name: it keeps the end, which distinguishes platforms.
func shorten(name string) string {
	return strings.TrimLeft(name[max(0, len(name)-maxLabel):], "-.")
}
