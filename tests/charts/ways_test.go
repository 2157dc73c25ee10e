package charts

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// way is one attempt by a way that kubectl does not usually take.
type way struct {
	name    string
	by      dynamic.Interface
	try     attempt
	refused string // a part of the refusal; "" means allowed
}

// TestPoliciesRefuseWritesByOtherVersionsApplyAndSubresources tries what other tests try by kubectl's ways: through the older versions
// of resource.k8s.io, by server-side apply, through a pod's subresources, and with generated names. The webhook is away, and its
// failurePolicy is Fail: a request that it should see fails.
func TestPoliciesRefuseWritesByOtherVersionsApplyAndSubresources(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t, olderWays()...)
	values := everything()
	values["vgpu"] = map[string]any{"enabled": true, "forbidControlOff": true}
	values["scheduler"] = map[string]any{"enabled": true, "nodeLock": true}
	values["webhook"] = map[string]any{"failurePolicy": "Fail"}
	live.installChart(t, values)
	live.furnish(t)
	for name, ways := range map[string][]way{
		"older versions": olderVersions(t, live), "server-side apply": applies(t, live), "a pod's subresources": subresources(live),
		"generated names": generatedNames(t, live),
	} {
		t.Run(name, func(t *testing.T) {
			// Allowed requests come last: then the policies are in force.
			for _, one := range ways {
				if one.refused == "" {
					continue
				}
				err := refusal(t, one.by, one.try)
				if err == nil || !strings.Contains(err.Error(), one.refused) {
					t.Errorf("%s: got %v, want an error with %q", one.name, err, one.refused)
					continue
				}
				t.Logf("attacker sees: %v", err)
			}
			for _, one := range ways {
				if one.refused != "" {
					continue
				}
				if err := one.try(t.Context(), one.by); err != nil {
					t.Errorf("%s is refused: %v", one.name, err)
				}
			}
		})
	}
	t.Run("annotations by parts of a pod", func(t *testing.T) { annotationsByParts(t, live) })
	t.Run("a status by apply", func(t *testing.T) { appliedStatus(t, live) })
}

// furnish makes what the ways are tried on. The managers gitops and labeller have applied node-a, and gitops the pod and the ComputeDomain.
func (s *server) furnish(t *testing.T) {
	t.Helper()
	const pods = `"spec": {"nodeName": "node-a", "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1", "memory":
		"1Gi", "volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"}}}]}}`
	for _, one := range []*unstructured.Unstructured{
		object(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant", "labels":
			{"resource.kubernetes.io/admin-access": "true"}}}`),
		object(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}}`),
		slice("of-node-b", `"nodeName": "node-b"`, "gpu.nvidia.com", "node-b-gpu"),
	} {
		if _, err := s.client.Resource(resourceOfKind(one)).Namespace(one.GetNamespace()).Create(t.Context(), one,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const capacity = `{"cpu": "64", "memory": "64Gi", "pods": "100"}`
	for _, one := range []struct{ manager, body string }{
		{"gitops", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": {"zone": "z1"}}}`},
		{"labeller", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": {"nvidia.com/gpu.clique": "old"}}}`},
		{"gitops", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "here", "namespace": "tenant"}, ` + pods},
		{"gitops", `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "made", "namespace": "tenant"},
			"spec": {"numNodes": 1, "channel": {"resourceClaimTemplate": {"name": "channel"}}}}`},
	} {
		into := object(one.body)
		if _, err := s.client.Resource(resourceOfKind(into)).Namespace(into.GetNamespace()).Patch(t.Context(), into.GetName(),
			types.ApplyPatchType, []byte(text(into)), metav1.PatchOptions{FieldManager: one.manager}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.Resource(nodeResource).Patch(t.Context(), "node-a", types.MergePatchType, []byte(`{"status": {"capacity": `+
		capacity+`, "allocatable": `+capacity+`}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// resourceOfKind is where the kinds of these tests are served.
func resourceOfKind(one *unstructured.Unstructured) schema.GroupVersionResource {
	kind := one.GroupVersionKind()
	return kind.GroupVersion().WithResource(map[string]string{
		"Namespace": "namespaces", "Node": "nodes", "Pod": "pods", "ResourceSlice": "resourceslices", "ResourceClaim": "resourceclaims",
		"ResourceClaimTemplate": "resourceclaimtemplates", "DeviceClass": "deviceclasses", "ComputeDomain": "computedomains", "Event": "events",
		"DaemonSet": "daemonsets", "RDMAPool": "rdmapools", "Secret": "secrets", "ConfigMap": "configmaps", "Lease": "leases",
		"NetworkPolicy": "networkpolicies",
	}[kind.Kind])
}

// makes creates an object, wherever its kind is served.
func makes(body string) attempt {
	one := object(body)
	return tryCreate(resourceOfKind(one), body)
}

// apply is a forced server-side apply.
func apply(body string, subresources ...string) attempt {
	one, force := object(body), true
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := client.Resource(resourceOfKind(one)).Namespace(one.GetNamespace()).Patch(ctx, one.GetName(), types.ApplyPatchType,
			[]byte(text(one)), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "attacker", Force: &force}, subresources...)
		return err
	}
}
