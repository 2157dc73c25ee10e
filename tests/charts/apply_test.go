package charts

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// applies are server-side applies that take fields of others, and writes to the record of who has applied what.
func applies(t *testing.T, live *server) []way {
	t.Helper()
	domains, gpus := live.as(t, "gpufabric-compute-domain-plugin", "node-a"), live.as(t, "gpufabric-gpu-plugin", "node-a")
	vgpu, controller := live.as(t, "gpufabric-vgpu-plugin", "node-a"), live.as(t, "gpufabric-controller", "node-a")
	const record = "may not change who has applied which fields of"
	const wiped = `{"metadata": {"managedFields": [{}]}}`
	node := func(name, labels string) string {
		return `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "` + name + `", "labels": {` + labels + `}}}`
	}
	domain := func(nodes string) string {
		return `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "made", "namespace": "tenant"},
			"spec": {"numNodes": ` + nodes + `, "channel": {"resourceClaimTemplate": {"name": "channel"}}}}`
	}
	pod := func(name, metadata, image string) string {
		return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name + `", "namespace": "tenant"` + metadata +
			`}, "spec": {"containers": [{"name": "c", "image": "` + image + `"}]}}`
	}
	const shares = `, "annotations": {"volcano.sh/vgpu-ids-new": "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9,NVIDIA,0,0:;"}`
	set := domainSet("", `"securityContext": {"privileged": true}`)
	const plugin = `{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "gpufabric-gpu-plugin", "namespace": "` + namespace +
		`", "labels": {"a": "b"}}}`
	return []way{
		{"another node's label", domains, apply(node("node-b", `"nvidia.com/gpu.clique": "x"`)), "may change that node only, not node-b"},
		{"a foreign label of its own node", domains, apply(node("node-a", `"zone": "z2"`)), "may change no labels of a node but"},
		{"a second owner of a foreign label", domains, apply(node("node-a", `"zone": "z1"`)), record},
		{"no record of a node's owners", domains, patchNode("node-a", wiped), record},
		{"a node that is not there", domains, apply(node("node-z", `"nvidia.com/gpu.clique": "x"`)), `cannot create resource "nodes"`},
		{"its own node's clique, which somebody has applied", domains, patchNode("node-a",
			`{"metadata": {"labels": {"nvidia.com/gpu.clique": "new"}}}`), ""},
		{"its own node's clique, taken off", domains, patchNode("node-a", `{"metadata": {"labels": {"nvidia.com/gpu.clique": null}}}`), ""},
		{"a slice", gpus, apply(text(slice("of-node-b", `"nodeName": "node-b"`, "gpu.nvidia.com", "node-b-gpu"))), "cannot patch resource"},
		{"another node's condition", gpus, apply(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}, "status": {"conditions":
			[{"type": "GPUForms", "status": "True"}]}}`, "status"), "may change that node only, not node-b"},
		{"its own node's readiness", gpus, apply(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}, "status": {"conditions":
			[{"type": "Ready", "status": "True"}]}}`, "status"), record},
		{"a pod's shares", vgpu, apply(pod("here", shares, "i")), "may change no annotations of a pod but"},
		{"a second owner of a pod's image", vgpu, apply(pod("here", "", "i")), record},
		{"no record of a pod's owners", vgpu, patch(podResource, "tenant", "here", wiped), record},
		{"a ComputeDomain's size", controller, apply(domain("99")), "a ComputeDomain's spec cannot be changed"},
		{"a second owner of a ComputeDomain's size", controller, apply(domain("1")), record},
		{"no record of a ComputeDomain's owners", controller, patch(domainResource, "tenant", "made", wiped), record},
		{"a plugin's DaemonSet", controller, apply(plugin), "and gpufabric-gpu-plugin is none of them"},
		{"a privileged daemon", controller, apply(text(set)), "an IMEX daemon has no privilege"},
		{"a pool of nobody's", controller, apply(`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool", "metadata": {"name": "tried"},
			"spec": {"resourceName": "x", "rdmaHcaMax": 8, "devices": ["ens2f0"]}}`), "the RDMAPools of NicClusterPolicies only"},
		{"an Event in the kubelet's name", controller, apply(event("kubelet", "", "ComputeDomain", "made")), "writes Events of component"},
		{"a pod with shares, as a tenant", live.client, apply(pod("tried", shares, "i")), "may not write volcano.sh/vgpu-ids-new of a pod"},
		{"shares on a pod that is there, as a tenant", live.client, apply(pod("here", shares, "i")), "may not write volcano.sh/vgpu-ids-new"},
		{"an IMEX daemon, as a tenant", live.client, apply(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name":
			"tried", "namespace": "tenant"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName":
			"compute-domain-daemon.nvidia.com"}}]}}}`), "is for the IMEX daemons that gpufabric runs"},
	}
}

// appliedStatus applies a ComputeDomain with a status, as a user who may write ComputeDomains and not their status.
func appliedStatus(t *testing.T, live *server) {
	const ready = `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "made", "namespace": "tenant"},
		"spec": {"numNodes": 1, "channel": {"resourceClaimTemplate": {"name": "channel"}}}, "status": {"status": "Ready"}}`
	force := true
	got, err := live.client.Resource(domainResource).Namespace("tenant").Patch(t.Context(), "made", types.ApplyPatchType, []byte(ready),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "attacker", Force: &force})
	if err != nil {
		t.Fatal(err)
	}
	if status, found, _ := unstructured.NestedMap(got.Object, "status"); found {
		t.Errorf("the domain has the status %v", status)
	}
	var writes attempt = func(ctx context.Context, client dynamic.Interface) error { return apply(ready, "status")(ctx, client) }
	if err := writes(t.Context(), live.as(t, "gpufabric-compute-domain-plugin", "node-a")); !apierrors.IsForbidden(err) {
		t.Errorf("a node plugin applies a domain's status: %v", err)
	}
	t.Logf("attacker sees: the domain is applied, and its status is as it was; of the status itself: %v", err)
}
