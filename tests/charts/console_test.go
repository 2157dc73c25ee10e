package charts

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The page of the fabric uses its viewers' rights, so the pod that serves it needs none of its own.
func TestConsoleHasNoTokenAndNoRights(t *testing.T) {
	objects := renderFile(t, "gpufabric", "gpufabric/ci/everything.yaml")
	pod, found := pods(t, objects)["gpufabric-console"]
	if !found {
		t.Fatal("everything is on, and no Deployment gpufabric-console")
	}
	if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token {
		t.Errorf("automountServiceAccountToken is %v, want false", token)
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.ConfigMap == nil || volume.ConfigMap.Name != "kube-root-ca.crt" {
			t.Errorf("volume %s is not the API server's certificate", volume.Name)
		}
	}
	if args := pod.Spec.Containers[0].Args; !slices.Contains(args, "--viewer-tokens") || !slices.Contains(args, "--host=fabric.example.com") {
		t.Errorf("arguments %v, want --viewer-tokens and the name of console.hosts", args)
	}
	for _, object := range objects {
		if kind := object.GetKind(); kind != "RoleBinding" && kind != "ClusterRoleBinding" {
			continue
		}
		var binding rbacv1.ClusterRoleBinding // a RoleBinding has the same subjects
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Name == "gpufabric-console" }) {
			t.Errorf("%s %s gives the console rights", object.GetKind(), object.GetName())
		}
	}
	for name := range pods(t, renderFile(t, "gpufabric", "")) {
		if name == "gpufabric-console" {
			t.Error("the console runs as the chart comes")
		}
	}
}
