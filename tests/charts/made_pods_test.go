package charts

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// madePods checks the pods of the DaemonSets that the controller has made (selector reports which), as other tests check the
// chart's own. They have no namespace of the host and no right, write only to their own directories, and have a token only
// where they use the API server.
func (r *roles) madePods(t *testing.T, selector string, privileged bool) {
	t.Helper()
	sets, err := r.admin.AppsV1().DaemonSets(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	if len(sets.Items) == 0 {
		t.Fatalf("no DaemonSet carries %s", selector)
	}
	for _, set := range sets.Items {
		pod := set.Spec.Template.Spec
		if pod.HostPID || pod.HostIPC {
			t.Errorf("%s shares a namespace of the host", set.Name)
		}
		asks := pod.ServiceAccountName != "" && pod.ServiceAccountName != "default"
		if token := pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken; token && !asks {
			t.Errorf("%s has a token of the account %q, and asks the API server nothing", set.Name, pod.ServiceAccountName)
		}
		for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
			security := container.SecurityContext
			if security == nil {
				t.Errorf("%s/%s has no securityContext", set.Name, container.Name)
				continue
			}
			if got := security.Privileged != nil && *security.Privileged; got != privileged {
				t.Errorf("%s/%s: privileged is %v", set.Name, container.Name, got)
			}
			if privileged {
				continue // it loads kernel modules, so none of the limits below would stop it
			}
			confined := pod.SecurityContext != nil && pod.SecurityContext.SeccompProfile != nil &&
				pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault
			if pod.HostNetwork || !confined || security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem ||
				security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation || security.Capabilities == nil ||
				!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(security.Capabilities.Add) > 0 {
				t.Errorf("%s/%s: host network %v, seccomp %v, %+v", set.Name, container.Name, pod.HostNetwork, confined, security)
			}
		}
		for _, volume := range pod.Volumes {
			if volume.HostPath != nil && volume.HostPath.Path == "/" {
				t.Errorf("%s mounts the host's root", set.Name)
			}
		}
	}
}
