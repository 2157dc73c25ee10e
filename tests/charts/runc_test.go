package charts

import (
	"os"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/doctor/snapshot"
)

// below reports whether a path lies in a directory, or is it.
func below(file, directory string) bool {
	return file == directory || strings.HasPrefix(file, strings.TrimSuffix(directory, "/")+"/")
}

func privileged(container corev1.Container) bool {
	return container.SecurityContext != nil && container.SecurityContext.Privileged != nil && *container.SecurityContext.Privileged
}

// unstartable returns the reasons why runc would not make a container, or would make one that can read its whole node.
func unstartable(pod corev1.PodTemplateSpec, container corev1.Container) []string {
	hosts := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath != nil {
			hosts[volume.Name] = path.Clean(volume.HostPath.Path)
		}
	}
	termination := container.TerminationMessagePath
	if termination == "" {
		termination = corev1.TerminationMessagePathDefault
	}
	var found []string
	inside := map[string]bool{}
	for _, mount := range container.VolumeMounts {
		target := path.Clean(mount.MountPath)
		if inside[target] {
			found = append(found, target+" is mounted twice")
		}
		inside[target] = true
		// The kubelet mounts a file there, and runc makes the mount point. Where it cannot, it says: "error mounting ... to
		// rootfs at /dev/termination-log: read-only file system".
		if mount.ReadOnly && below(termination, target) {
			found = append(found, target+" is mounted read-only above the termination log "+termination)
		}
		// runc mounts its own /proc, and refuses other mounts in it.
		if below(target, "/proc") {
			found = append(found, target+" is mounted inside /proc")
		}
		// A mount below a read-only one needs its mount point to be there already.
		for _, other := range container.VolumeMounts {
			above := path.Clean(other.MountPath)
			if other.ReadOnly && target != above && below(target, above) && hosts[other.Name] != "" && !below(hosts[mount.Name], hosts[other.Name]) {
				found = append(found, target+" has no mount point in "+above+", which is mounted read-only")
			}
		}
	}
	for name, host := range hosts {
		if host == "/" {
			found = append(found, "volume "+name+" is the node's /")
		}
		// Another process's root and memory are files below /proc. A privileged container could mount it by itself.
		if below(host, "/proc") && !privileged(container) {
			found = append(found, "volume "+name+" is the node's "+host)
		}
	}
	return found
}

func TestContainersCanBeStartedByRunc(t *testing.T) {
	for _, rendering := range renderings(t) {
		for name, pod := range pods(t, rendering.objects) {
			for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				for _, reason := range unstartable(pod, container) {
					t.Errorf("%s: %s/%s: %s", rendering.name, name, container.Name, reason)
				}
			}
		}
	}
}

func TestPreflightPodsCanBeStartedByRunc(t *testing.T) {
	s := &snapshot.Snapshot{Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2.1.0"}}}}}
	for _, file := range []string{"gpufabric/values.yaml", "gpufabric/ci/driver-container.yaml", "gpufabric/ci/everything.yaml",
		"fake-hardware/gpufabric-values.yaml"} {
		paths := chartFiles(t, file)
		if len(paths) != 1 {
			t.Fatalf("%s is %v", file, paths)
		}
		text, err := os.ReadFile(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		values, err := preflight.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := preflight.Jobs(s, withoutSelector(values), "gpufabric-system", "example.invalid/gpufabric")
		if err != nil {
			t.Fatal(err)
		}
		pod := jobs[0].Spec.Template
		for _, reason := range unstartable(pod, pod.Spec.Containers[0]) {
			t.Errorf("%s: %s", file, reason)
		}
	}
}

// withoutSelector selects every node.
func withoutSelector(v preflight.Values) preflight.Values {
	v.NodePlugins.NodeSelector = nil
	return v
}

func TestRuncCheckFindsMountBelowReadOnlyDev(t *testing.T) {
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "root", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}},
		{Name: "dev", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev"}}},
	}}}
	container := corev1.Container{VolumeMounts: []corev1.VolumeMount{
		{Name: "root", MountPath: "/host", ReadOnly: true}, {Name: "dev", MountPath: "/dev", ReadOnly: true},
	}}
	if got := unstartable(pod, container); len(got) != 2 {
		t.Errorf("found %q, want the read-only /dev and the node's /", got)
	}
	container.TerminationMessagePath = "/run/termination-log"
	if got := unstartable(pod, container); len(got) != 1 {
		t.Errorf("with the termination log elsewhere found %q, want the node's / alone", got)
	}
}

// TestDefaultPathsFitBothDriverLayouts compares the mounts of a pod with default values with the places of drivers on real nodes.
func TestDefaultPathsFitBothDriverLayouts(t *testing.T) {
	layouts := map[string][]string{
		"driver on the host": {
			"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1", "/usr/bin/nvidia-smi", "/usr/lib/firmware/nvidia",
			"/etc/alternatives/nvidia",
			"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/sys/bus/pci/devices",
		},
		"driver container": {"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/run/nvidia/driver/dev/nvidiactl",
			"/sys/bus/pci/devices"},
	}
	objects := renderValues(t, "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true}, "vgpu": map[string]any{"enabled": true}})
	all := pods(t, objects)
	for _, role := range []string{"compute-domain-plugin", "gpu-plugin", "mps-keeper", "vgpu-plugin"} {
		pod, there := all["gpufabric-"+role]
		if !there {
			t.Fatalf("no %s is rendered", role)
		}
		args := strings.Join(pod.Spec.Containers[0].Args, " ")
		for layout, files := range layouts {
			for _, file := range files {
				if !reachable(pod, file) {
					t.Errorf("%s: with a %s it does not see %s", role, layout, file)
				}
			}
		}
		if !strings.Contains(args, "--driver-root=/host=/,/run/nvidia/driver") {
			t.Errorf("%s looks for the driver elsewhere: %s", role, args)
		}
	}
}

// reachable reports whether a pod's first container can reach a file of the node.
func reachable(pod corev1.PodTemplateSpec, file string) bool {
	hosts := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath != nil {
			hosts[volume.Name] = volume.HostPath.Path
		}
	}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		if host := hosts[mount.Name]; host != "" && below(file, host) {
			return true
		}
	}
	return false
}
