package reader

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/fabric"
)

func configOf(server *apiserver.Server, token string) *rest.Config {
	return &rest.Config{Host: server.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: server.CA}}
}

// publish makes a node with one GPU.
func publish(t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name + "-gpu"}, Spec: resourceapi.ResourceSliceSpec{
		NodeName: &name, Driver: "gpu.nvidia.com", Pool: resourceapi.ResourcePool{Name: name + "-gpu", ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpu-0"}}}}
	if _, err := admin.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestReaderUsesTheViewersRights begins without any rights, and adds those that a tenant may have, on a real API
// server without any CRD.
func TestReaderUsesTheViewersRights(t *testing.T) {
	server := apiserver.Start(t)
	admin, err := kubernetes.NewForConfig(configOf(server, apiserver.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	publish(t, admin, "node-a")
	list := func(token string) (*fabric.Facts, error) {
		r, err := New(configOf(server, token), Options{Agent: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return r.List(t.Context())
	}
	if _, err := list(apiserver.ViewerToken); err == nil || !strings.Contains(err.Error(), `User "viewer" cannot list resource "nodes"`) {
		t.Errorf("a viewer without rights: %v", err)
	}
	if _, err := list("wrong"); err == nil {
		t.Error("a wrong token reads the cluster")
	}
	facts, err := list(apiserver.AdminToken)
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Slices) != 1 || len(facts.Nodes) != 1 || len(facts.Missing) != 3 {
		t.Errorf("%d slices, %d nodes, missing %+v; want one each, and no CRDs", len(facts.Slices), len(facts.Nodes), facts.Missing)
	}

	news := make(chan struct{}, 1)
	changed := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	r, err := New(configOf(server, apiserver.ViewerToken), Options{Agent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	following := make(chan *Following, 1)
	ended := make(chan error, 1)
	go func() { ended <- r.Follow(ctx, changed, func(f *Following) { following <- f }) }()
	defer func() {
		stop()
		<-ended
	}()
	f := <-following
	await := func(what string, done func(*fabric.Facts, bool) bool) {
		t.Helper()
		for {
			facts, settled := f.Facts()
			if done(facts, settled) {
				return
			}
			select {
			case <-news:
			case err := <-ended:
				t.Fatalf("%s: the reader ended: %v", what, err)
			case <-t.Context().Done():
				t.Fatalf("%s: %+v", what, facts)
			}
		}
	}
	await("nothing can be read", func(facts *fabric.Facts, settled bool) bool { return settled && len(facts.Missing) == len(Resources()) })
	grant(t, admin, "resourceslices", "resource.k8s.io")
	await("slices can be read", func(facts *fabric.Facts, _ bool) bool {
		return len(facts.Slices) == 1 && len(facts.Slices[0].GPUs) == 1
	})
	publish(t, admin, "node-b")
	await("a slice came", func(facts *fabric.Facts, _ bool) bool { return len(facts.Slices) == 2 })
	if f.Refused() {
		t.Error("a viewer that the API server knows is taken for unknown")
	}
}

func TestReaderIsCompleteWithoutObjects(t *testing.T) {
	server := apiserver.Start(t)
	f, news := follow(t, configOf(server, apiserver.AdminToken))
	for settled := false; !settled; {
		<-news
		_, settled = f.Facts()
	}
}

func TestReaderRejectsAnUnknownToken(t *testing.T) {
	server := apiserver.Start(t)
	f, news := follow(t, configOf(server, "wrong"))
	for !f.Refused() {
		<-news
	}
}

// follow follows the fabric until the end of the test. news has an element after each change.
func follow(t *testing.T, config *rest.Config) (*Following, <-chan struct{}) {
	t.Helper()
	r, err := New(config, Options{Agent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	news, following, ended := make(chan struct{}, 1), make(chan *Following, 1), make(chan error, 1)
	go func() {
		ended <- r.Follow(ctx, func() {
			select {
			case news <- struct{}{}:
			default:
			}
		}, func(f *Following) { following <- f })
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return <-following, news
}

func grant(t *testing.T, admin kubernetes.Interface, resource, group string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: resource},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"list", "watch"}}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta, Subjects: []rbacv1.Subject{{Kind: "User", Name: "viewer",
		APIGroup: rbacv1.GroupName}}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: resource}}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
