package snapshot_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/rdma/apiservertest"
)

// TestReleaseIsFoundByItsBindings has a release in two namespaces, neither of which is the usual one, and a tenant whose objects
// have the same labels.
func TestReleaseIsFoundByItsBindings(t *testing.T) {
	config := apiservertest.Start(t, "../../api/crds")
	c := writer(t, config)
	own := map[string]string{"app.kubernetes.io/name": "gpufabric", "app.kubernetes.io/part-of": "gpufabric",
		"app.kubernetes.io/component": "gpu-plugin", v1beta1.LabelComputeDomain: "u"}
	partOf := map[string]string{"app.kubernetes.io/part-of": "gpufabric"}
	spaces := []string{"release", "plugins", "tenant"}
	for _, space := range spaces {
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: own}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "i", Args: []string{canary}}}}}
		selector := &metav1.LabelSelector{MatchLabels: own}
		meta := metav1.ObjectMeta{Namespace: space, Name: "gpufabric-gpu-plugin", Labels: own}
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}},
			&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}},
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
			&corev1.Pod{ObjectMeta: meta, Spec: template.Spec})
	}
	account := func(name, namespace string) rbacv1.Subject {
		return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}
	}
	binding := func(name string, labels map[string]string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}
	}
	create(t, c, binding("gpufabric-controller", partOf, account("gpufabric-controller", "release")),
		binding("gpufabric-vgpu-plugin", partOf, account("gpufabric-vgpu-plugin", "plugins"), account("prometheus", "tenant")),
		binding("gpufabric-viewer", nil, account("viewer", "tenant")),
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com", Labels: partOf,
			Annotations: map[string]string{"meta.helm.sh/release-namespace": "release"}}})

	labelled := func(s *snapshot.Snapshot) []string {
		found := map[string]bool{}
		look := func(o client.Object) {
			if l := o.GetLabels(); l["app.kubernetes.io/name"] != "" || l["app.kubernetes.io/part-of"] != "" {
				found[o.GetNamespace()] = true
			}
		}
		for i := range s.DaemonSets {
			look(&s.DaemonSets[i])
			if args := s.DaemonSets[i].Spec.Template.Spec.Containers[0].Args; s.DaemonSets[i].Namespace == "tenant" && len(args) > 0 {
				t.Errorf("a tenant's arguments are kept: %v", args)
			}
		}
		for i := range s.Deployments {
			look(&s.Deployments[i])
		}
		for i := range s.Pods {
			look(&s.Pods[i])
			if s.Pods[i].Namespace == "tenant" && s.Pods[i].Labels[v1beta1.LabelComputeDomain] != "" {
				t.Error("a tenant's pod is a domain's daemon")
			}
		}
		return slices.Sorted(maps.Keys(found))
	}
	scope := snapshot.Scope{System: snapshot.DefaultSystem, Timeout: time.Minute}
	whole := read(t, config, scope)
	if got := labelled(whole); !slices.Equal(got, []string{"plugins", "release"}) || whole.Release.Unsure != "" ||
		!slices.Equal(whole.Release.Namespaces, got) || len(whole.Pods) != len(spaces) {
		t.Errorf("an administrator: objects of %v have the labels; release %+v; %d pods", got, whole.Release, len(whole.Pods))
	}

	// A user who may read everything else.
	create(t, c, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"", "apps",
		"resource.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"list"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "v"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
			Kind: "ClusterRole", Name: "v"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "viewer"}}})
	// The authorizer is notified of the binding through a watch.
	deadline, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		s := read(t, viewer(config), scope)
		if s.Reads("pods") && s.Reads("deployments.apps") && s.Reads("deviceclasses.resource.k8s.io") {
			if got := labelled(s); !slices.Equal(got, []string{"release"}) || !strings.Contains(s.Release.Unsure, "only pods and DaemonSets of "+
				"namespace release are taken for gpufabric's") || !strings.Contains(s.Release.Unsure, "Helm wrote") {
				t.Errorf("a viewer: objects of %v have the labels; release %+v", got, s.Release)
			}
			break
		}
		if deadline.Err() != nil {
			t.Fatalf("unread %v", s.Unread)
		}
	}
	if err := c.Delete(t.Context(), &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}}); err != nil {
		t.Fatal(err)
	}
	scope.System = "plugins"
	if s := read(t, viewer(config), scope); !slices.Equal(labelled(s), []string{"plugins"}) ||
		!strings.Contains(s.Release.Unsure, "--system-namespace") {
		t.Errorf("a viewer who names a namespace: release %+v", s.Release)
	}
}
