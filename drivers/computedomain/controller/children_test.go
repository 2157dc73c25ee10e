package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/computedomain"
)

func TestADaemonsContainerHasWhatTheRoleAsksFor(t *testing.T) {
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
	if diff := cmp.Diff([]string{"imex-daemon", "-v=0"}, container.Args); diff != "" {
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

//shows:cd-daemon
//attack:imex-pod A tenant breaks into an IMEX daemon's pod and finds privilege, or files of the node
func TestADaemonsPodHasNoPrivilegeAndNothingOfItsNode(t *testing.T) {
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

func TestADirectoryOfAllPodsShowsWhatIsMountedThereLater(t *testing.T) {
	volumes, mounts := hostPaths([]string{"/var/lib/fake/"})
	if len(volumes) != 1 || volumes[0].HostPath.Path != "/var/lib/fake" || mounts[0].MountPath != "/var/lib/fake" || mounts[0].ReadOnly ||
		*mounts[0].MountPropagation != corev1.MountPropagationHostToContainer {
		t.Errorf("volumes %+v, mounts %+v", volumes, mounts)
	}
}
