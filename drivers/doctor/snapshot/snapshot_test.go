package snapshot_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/rdma/apiservertest"
)

const canary = "canary-7f3a"

// patience bounds the wait for a watch; it usually takes a second.
const patience = 2 * time.Minute

func TestSnapshotReadsARealServer(t *testing.T) {
	config := apiservertest.Start(t, "../../api/crds")
	c := writer(t, config)
	node := "n1"
	create(t, c,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{"kubeadm/token": canary,
			"gpufabric.io/a": "kept"}}},
		&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com",
			NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}, Devices: []resourceapi.Device{{Name: "gpu-0"}}}},
		tenantPod(), tenantClaim(),
		&v1alpha1.RDMAPool{ObjectMeta: metav1.ObjectMeta{Name: "rail-0"}, Spec: v1alpha1.RDMAPoolSpec{
			RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "a", Selectors: &v1alpha1.RDMASelectors{IsRDMA: true}, RDMAHCAMax: 1}}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "e"}, Type: corev1.EventTypeWarning, Reason: "Unhealthy",
			Message:        "Readiness probe failed: " + canary,
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "tenant", Name: "p"}},
	)

	t.Run("an administrator reads all of it, and no secret", func(t *testing.T) {
		s := read(t, config, snapshot.Scope{Namespace: "tenant", Pod: "p"})
		// A slow API server reports Events of its own, in other namespaces.
		events := slices.DeleteFunc(slices.Clone(s.Events), func(e corev1.Event) bool { return e.Namespace != "tenant" })
		if len(s.Nodes) != 1 || len(s.Slices) != 1 || len(s.Pods) != 1 || len(s.Claims) != 1 || len(s.RDMAPools) != 1 || len(events) != 1 {
			t.Errorf("read %d nodes, %d slices, %d pods, %d claims, %d pools, %d events", len(s.Nodes), len(s.Slices), len(s.Pods),
				len(s.Claims), len(s.RDMAPools), len(events))
		}
		if len(s.Unread) != 0 || len(s.CRDs) != 5 || !s.Server.Serves("resource.k8s.io/v1") || !strings.HasPrefix(s.Server.Version, "v1.") {
			t.Errorf("server %+v, %d CRDs, unread %v", s.Server, len(s.CRDs), s.Unread)
		}
		if s.Nodes[0].Annotations["gpufabric.io/a"] != "kept" {
			t.Errorf("the node's annotations are %v", s.Nodes[0].Annotations)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.Index(string(text), canary); i >= 0 {
			t.Errorf("the canary came into the Snapshot: %s", text[max(0, i-200):i])
		}
		if s.Server.Requests > 30 {
			t.Errorf("%d requests for a small cluster", s.Server.Requests)
		}
	})
	t.Run("a user without rights is told which are missing", func(t *testing.T) {
		s := read(t, viewer(config), snapshot.Scope{Namespace: "tenant", System: snapshot.DefaultSystem})
		if len(s.Nodes)+len(s.Pods)+len(s.Claims) != 0 || s.Reads("nodes") || s.Reads("resourceclaims.resource.k8s.io") {
			t.Errorf("a user without rights read %d nodes", len(s.Nodes))
		}
		for _, u := range s.Unread {
			if u.Why != snapshot.Forbidden {
				t.Errorf("%s is %s, not forbidden", u, u.Why)
			}
		}
	})
	t.Run("a user of one namespace reads that", func(t *testing.T) {
		here := metav1.ObjectMeta{Namespace: "tenant", Name: "v"}
		create(t, c, &rbacv1.Role{ObjectMeta: here, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"", "resource.k8s.io"}, Resources: []string{"pods", "events", "resourceclaims"}, Verbs: []string{"list"}}}},
			&rbacv1.RoleBinding{ObjectMeta: here, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "v"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "viewer"}}})
		// The authorizer is notified of the binding through a watch.
		deadline, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			s := read(t, viewer(config), snapshot.Scope{Namespace: "tenant", Pod: "p"})
			if len(s.Pods) == 1 && s.Pods[0].Name == "p" && !s.Reads("pods") {
				break
			}
			if deadline.Err() != nil {
				t.Fatalf("pods %v, unread %v", s.Pods, s.Unread)
			}
		}
	})
}

func TestSnapshotNamesAServerThatHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // nobody ever accepts
	reader, err := snapshot.NewReader(&rest.Config{Host: "http://" + listener.Addr().String()},
		snapshot.Scope{Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var silent *snapshot.SilentError
	if _, err := reader.Read(t.Context(), snapshot.Scope{}); !errors.As(err, &silent) || !strings.Contains(err.Error(),
		listener.Addr().String()) {
		t.Errorf("got %v", err)
	}
}

func tenantPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "p", Annotations: map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": canary}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "ubuntu", Command: []string{canary}, Args: []string{canary},
			Env: []corev1.EnvVar{{Name: "TOKEN", Value: canary}}}}}}
}

func tenantClaim() *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "c"}, Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "x"}}},
			Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "other.example.com",
					Parameters: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"kind":"K","password":%q}`, canary)}}}}},
		}}}
}

func read(t *testing.T, config *rest.Config, scope snapshot.Scope) *snapshot.Snapshot {
	t.Helper()
	scope.Timeout = time.Minute
	s, err := snapshot.Take(t.Context(), config, scope)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func viewer(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.BearerToken = apiserver.ViewerToken
	return c
}

func writer(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	kinds, err := snapshot.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}
