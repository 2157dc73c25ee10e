package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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

// platform is the target of a driver's build.
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
	template func(version string) string // of the image's name
	needs    []string                    // labels that a node must have as "true"
	mounts   []mount
	spec     *mellanox.OFEDDriverSpec // of a driver with probes, environment and upgrades; nil: it has none
	upgrade  upgrade
}

// Kinds of drivers: the values of labelName on their pods.
const kindOFED, kindPeer = "ofed-driver", "nv-peer-mem-driver"

// Labels of drivers' pods: the driver's kind, and the DaemonSet.
const labelName, labelInstance = "app.kubernetes.io/name", "app.kubernetes.io/instance"

// defaultGrace is how long a driver may take to unload, in seconds; the network operator's default.
const defaultGrace = 300

// sharedMount is the directory that drivers share with each other and the node.
const sharedMount = "run-mofed"

// mount is a directory or a file of the node in the driver's container.
type mount struct {
	name           string
	host           string // its path on the node
	path           string // its path in the container; empty: the same
	file, readOnly bool
}

// ofedMounts are the directories of the node that the public driver's image reads and writes, as the network operator mounts it (its
// manifests/state-ofed-driver/0050_ofed-driver-ds.yaml of v26.7). The image builds and installs modules below its own /lib/modules, so the
// node's are elsewhere. Read-only are those that its program does not write (doca-driver-build, entrypoint).
func ofedMounts() []mount {
	return []mount{
		{name: sharedMount, host: "/run/mellanox/drivers"},
		{name: "etc-network", host: "/etc/network", readOnly: true},
		{name: "host-etc", host: "/etc", path: "/host/etc"}, // names of interfaces for udev, and modules not to be loaded by the node
		{name: "host-usr", host: "/usr", path: "/host/usr", readOnly: true},
		{name: "host-udev", host: "/lib/udev", path: "/host/lib/udev", readOnly: true},
		{name: "host-run-udev", host: "/run/udev", readOnly: true},
		{name: "host-lib-modules", host: "/lib/modules", path: "/host/lib/modules"}, // on RHEL the modules are loaded from there
		{name: "drivers-inventory", host: "/var/opt/mofed-container/inventory", path: "/mnt/drivers-inventory"},
		{name: "host-ib-core", host: "/etc/modprobe.d/ib_core.conf", file: true, readOnly: true}, // the node's network-namespace mode
		{name: "dev-infiniband", host: "/dev/infiniband"},
	}
}

// peerMounts are the sources that the peer memory module is built from.
func peerMounts(gpuDriver string) []mount {
	if gpuDriver == "" {
		gpuDriver = "/run/nvidia/driver"
	}
	return []mount{{name: sharedMount, host: "/run/mellanox/drivers", readOnly: true}, {name: "gpu-driver", host: gpuDriver, readOnly: true},
		{name: "modules", host: "/lib/modules", readOnly: true}}
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

// daemonSet is the DaemonSet of the driver for the nodes of one platform.
func (d *driver) daemonSet(namespace string, on platform) *appsv1.DaemonSet {
	selector := map[string]string{labelOS: on.os, labelRelease: on.release, labelKernel: on.kernel, labelArch: on.arch}
	for _, need := range d.needs {
		selector[need] = "true"
	}
	privileged, noToken := true, false
	name := d.name(on)
	pod := map[string]string{labelName: d.kind, labelInstance: shorten(name)}
	container := corev1.Container{
		Name: d.kind, ImagePullPolicy: corev1.PullIfNotPresent,
		Image:           Image(d.template(d.image.Version), d.image, on.os, on.release, on.kernel, on.arch),
		SecurityContext: &corev1.SecurityContext{Privileged: &privileged}, // It loads kernel modules.
	}
	var grace *int64
	if d.spec != nil {
		container.Env = environment(d.spec.Env)
		setProbes(&container, d.spec)
		if grace = d.spec.TerminationGracePeriodSeconds; grace == nil {
			grace = ptr.To[int64](defaultGrace)
		}
	}
	var secrets []corev1.LocalObjectReference
	for _, name := range d.image.ImagePullSecrets {
		secrets = append(secrets, corev1.LocalObjectReference{Name: name})
	}
	var volumes []corev1.Volume
	for _, m := range d.mounts {
		kind, propagation := corev1.HostPathDirectoryOrCreate, corev1.MountPropagationHostToContainer
		if m.file {
			kind = corev1.HostPathFileOrCreate
		}
		if m.name == sharedMount && !m.readOnly {
			propagation = corev1.MountPropagationBidirectional // the container mounts its kernel headers there, for other builds
		}
		volumes = append(volumes, corev1.Volume{Name: m.name,
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: m.host, Type: &kind}}})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: cmp.Or(m.path, m.host),
			ReadOnly: m.readOnly, MountPropagation: &propagation})
	}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: pod},
			// A restart of the driver's container takes the node's NICs down. So the administrator, who drains the node, does it,
			// unless the policy has another setting.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: pod},
				Spec: corev1.PodSpec{
					HostNetwork: true, AutomountServiceAccountToken: &noToken, NodeSelector: selector, PriorityClassName: "system-node-critical",
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers:  []corev1.Container{container}, Volumes: volumes, ImagePullSecrets: secrets, TerminationGracePeriodSeconds: grace,
				},
			},
		},
	}
}

// environment adds the network operator's defaults to a driver's environment (its pkg/state/state_ofed.go, mergeWithDefaultEnvs):
// interfaces keep their names when the driver is loaded, and a driver that was built for a kernel is kept on the node.
func environment(given []corev1.EnvVar) []corev1.EnvVar {
	env := slices.Clone(given)
	for _, v := range []corev1.EnvVar{{Name: "CREATE_IFNAMES_UDEV", Value: "true"},
		{Name: "NVIDIA_NIC_DRIVERS_INVENTORY_PATH", Value: "/mnt/drivers-inventory"}} {
		if !slices.ContainsFunc(given, func(g corev1.EnvVar) bool { return g.Name == v.Name }) {
			env = append(env, v)
		}
	}
	return env
}

// maxLabel is the longest value of a label.
const maxLabel = 63

// shorten makes a label's value from a name: it keeps the end, which distinguishes platforms.
func shorten(name string) string {
	return strings.TrimLeft(name[max(0, len(name)-maxLabel):], "-.")
}
