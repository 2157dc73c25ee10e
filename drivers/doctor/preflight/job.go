package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/doctor/snapshot"
)

const (
	// A pod reads some files and ends. After this time the image cannot be pulled, or the node is not ready.
	deadline = 10 * time.Minute
	// keep is how long the answers stay.
	keep = time.Hour
	// insideRuntime is where a pod has the directories of the container runtime's configuration.
	insideRuntime = "/host/runtime"
)

// Jobs are one Job for each node that nodePlugins.nodeSelector selects. A Job's pod has no token and no capability. It sees the
// directories of the node that a node plugin would see, all of them read-only. It writes its result into its own status, from which
// Run reads it. The API server generates the Jobs' names, so a second request creates new Jobs.
func Jobs(s *snapshot.Snapshot, v Values, namespace, image string) ([]batchv1.Job, error) {
	if image = cmp.Or(image, v.image()); image == "" {
		return nil, errors.New("the image of the pods is unknown: set it with --image, or set image.digest or image.tag in the values")
	}
	if !s.Reads("nodes") {
		return nil, errors.New("a Job is made for each node, and the nodes cannot be listed: get the right to list nodes")
	}
	nodes := selected(s, v)
	if len(nodes) == 0 {
		return nil, fmt.Errorf("nodePlugins.nodeSelector %v does not select any of the %d nodes", v.NodePlugins.NodeSelector, len(s.Nodes))
	}
	var out []batchv1.Job
	for _, n := range nodes {
		out = append(out, job(v, namespace, image, n.Name, n.Status.NodeInfo.ContainerRuntimeVersion))
	}
	return out, nil
}

// job is the job of a node.
func job(v Values, namespace, image, node, runtime string) batchv1.Job {
	labels := map[string]string{"app.kubernetes.io/name": snapshot.PreflightJobs}
	volumes, mounts, flags := v.Hardware.seen(runtime, v.preset.Runtimes)
	return batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: snapshot.PreflightJobs + "-", Namespace: namespace, Labels: labels},
		Spec: batchv1.JobSpec{
			BackoffLimit:            new(int32(2)),
			ActiveDeadlineSeconds:   new(int64(deadline / time.Second)),
			TTLSecondsAfterFinished: new(int32(keep / time.Second)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy:                corev1.RestartPolicyNever,
					AutomountServiceAccountToken: new(false),
					EnableServiceLinks:           new(false),
					ImagePullSecrets:             v.ImagePullSecrets,
					// It tolerates every taint: the question is what the node's machine has.
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					// As a DaemonSet's pods are bound: a node's label kubernetes.io/hostname may differ from its name.
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
							MatchFields: []corev1.NodeSelectorRequirement{{
								Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}},
					Containers: []corev1.Container{{
						Name: "machine", Image: image, ImagePullPolicy: v.Image.PullPolicy,
						Args: append([]string{"doctor", "machine", "--report=" + corev1.TerminationMessagePathDefault}, flags...),
						Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("32Mi")},
							Limits:   corev1.ResourceList{"memory": resource.MustParse("128Mi")},
						},
						SecurityContext: &corev1.SecurityContext{
							// Root without a capability: some distributions let root alone read containerd's configuration.
							RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), ReadOnlyRootFilesystem: new(true),
							AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
							SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
						},
						VolumeMounts: mounts,
					}},
					Volumes: volumes,
				},
			},
		},
	}
}

func (v Values) image() string {
	switch {
	case v.Image.Repository == "":
		return ""
	case v.Image.Digest != "":
		return v.Image.Repository + "@" + v.Image.Digest
	case v.Image.Tag != "":
		return v.Image.Repository + ":" + v.Image.Tag
	default:
		return ""
	}
}

// place is a directory of the node, and its path in the pod.
type place struct {
	node, inside string
	// made: the kubelet creates it where it is missing, as it does for the node plugins, so that the pod does not wait for it.
	made bool
}

// seen are the volumes, the mounts and the flags for the hardware, as the chart has them for node plugins.
func (h Hardware) seen(runtime string, configurations []string) ([]corev1.Volume, []corev1.VolumeMount, []string) {
	var places []place
	same := func(directory string, made bool) {
		places = append(places, place{path.Clean(directory), path.Clean(directory), made})
	}
	for _, m := range h.HostMounts {
		same(m, true)
	}
	root, dev := h.DriverRoot, h.DevRoot
	if root == "/" {
		root = "/host=/"
		for _, d := range h.DriverDirectories {
			places = append(places, place{path.Clean(d), "/host" + path.Clean(d), true})
		}
		if h.DriverContainerRoot != "" {
			root += "," + h.DriverContainerRoot
			same(above(h.DriverContainerRoot), true)
		}
	} else {
		same(above(root), true)
	}
	same(h.SysfsRoot, false)
	if dev == "/dev" {
		dev = "/host/dev=/dev"
		places = append(places, place{"/dev", "/host/dev", false})
	} else {
		same(dev, false)
	}
	if !strings.HasPrefix(h.ProcDevices, "/proc/") {
		same(path.Dir(h.ProcDevices), false)
	}
	flags := []string{"--driver-root=" + root, "--sysfs-root=" + h.SysfsRoot, "--dev-root=" + dev, "--proc-devices=" + h.ProcDevices}
	var read []string
	for _, directory := range configurations {
		// Each runtime has directories of its own.
		if crio := path.Base(directory) == "crio"; crio == strings.HasPrefix(runtime, "cri-o://") {
			inside := insideRuntime + directory
			places = append(places, place{directory, inside, true})
			read = append(read, inside+"="+directory)
		}
	}
	if runtime != "" && len(read) > 0 {
		flags = append(flags, "--runtime="+runtime, "--runtime-configuration="+strings.Join(read, ","))
	}
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	for i, p := range places {
		if slices.ContainsFunc(places[:i], func(o place) bool { return o.inside == p.inside }) ||
			slices.ContainsFunc(places, func(o place) bool {
				return o.node == o.inside && p.node == p.inside && strings.HasPrefix(p.node, o.node+"/")
			}) {
			continue // another one has it
		}
		name := fmt.Sprintf("node-%d", i)
		source := &corev1.HostPathVolumeSource{Path: p.node}
		if p.made {
			source.Type = new(corev1.HostPathDirectoryOrCreate)
		}
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: source}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: p.inside, ReadOnly: true})
	}
	return volumes, mounts, flags
}

// above is the directory above a driver's root, where that is not one of the node's own first directories: the root may be mounted later.
func above(root string) string {
	root = path.Clean(root)
	if parent := path.Dir(root); path.Dir(parent) != "/" {
		return parent
	}
	return root
}

// Namespace is the namespace that the Jobs and the chart need, where the cluster has none of that name; else nil.
func Namespace(s *snapshot.Snapshot, name string) *corev1.Namespace {
	if !s.Reads("namespaces") || slices.ContainsFunc(s.Namespaces, func(n corev1.Namespace) bool { return n.Name == name }) {
		return nil
	}
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}},
	}
}
