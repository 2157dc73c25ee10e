package charts

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// subresources are the ways by a pod's subresources. The pod here has a share of a GPU.
func subresources(live *server) []way {
	const cpuAlone = "only cpu and memory resources are mutable"
	resize := func(limits string) attempt {
		const base = `"cpu": "1", "memory": "1Gi", "volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"`
		both := base
		if limits != "" {
			both = limits
		}
		return patch(podResource, "tenant", "here", `{"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {`+both+
			`}, "requests": {`+both+`}}}]}}`, "resize")
	}
	debug := func(more string) attempt {
		return patch(podResource, "tenant", "here", `{"spec": {"ephemeralContainers": [{"name": "debug", "image": "i",
			"terminationMessagePolicy": "File"`+more+`}]}}`, "ephemeralcontainers")
	}
	const number = `"cpu": "1", "memory": "1Gi", "volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "`
	return []way{
		{"shares by status", live.client, patch(podResource, "tenant", "here", forgedShares, "status"), "may not write volcano.sh/vgpu-ids-new"},
		{"more memory of its GPU by resize", live.client, resize(number + `4096"`), cpuAlone},
		{"a second share by resize", live.client, resize(strings.Replace(number, `number": "1"`, `number": "2"`, 1) + `1024"`), cpuAlone},
		{"no share by resize", live.client, resize(`"cpu": "1", "memory": "1Gi"`), cpuAlone},
		{"more processor by resize", live.client, resize(strings.Replace(number, `"cpu": "1"`, `"cpu": "2"`, 1) + `1024"`), ""},
		{"an ephemeral container with a share", live.client, debug(`, "resources": {"limits": {"volcano.sh/vgpu-number": "1"}}`),
			"cannot be set for an Ephemeral Container"},
		{"an ephemeral container with a claim's device", live.client, debug(`, "resources": {"claims": [{"name": "gpu"}]}`),
			"cannot be set for an Ephemeral Container"},
		{"an ephemeral container without limits", live.client, debug(`, "env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]`),
			"containers debug set CUDA_DISABLE_CONTROL"},
		{"an ephemeral container", live.client, debug(""), ""},
	}
}

const forgedShares = `{"metadata": {"annotations": {"volcano.sh/vgpu-ids-new": "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9,NVIDIA,0,0:;"}}}`

// annotationsByParts writes an annotation with a pod's resize and with its ephemeral containers. The API server itself takes no metadata
// there; the policy is for a server that does.
func annotationsByParts(t *testing.T, live *server) {
	for _, part := range []string{"resize", "ephemeralcontainers"} {
		pod, err := live.client.Resource(podResource).Namespace("tenant").Patch(t.Context(), "here", types.MergePatchType,
			[]byte(forgedShares), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, part)
		if err == nil && len(pod.GetAnnotations()) > 0 || err != nil && !strings.Contains(err.Error(), "may not write volcano.sh/vgpu-ids-new") {
			t.Errorf("%s: got %v, and error %v", part, pod.GetAnnotations(), err)
		}
		t.Logf("attacker sees: no annotation is written by %s (error %v)", part, err)
	}
}

// generatedNames makes objects whose names the API server completes, from prefixes of those that the roles may make.
func generatedNames(t *testing.T, live *server) []way {
	t.Helper()
	controller, vgpu := live.as(t, "gpufabric-controller", "node-a"), live.as(t, "gpufabric-vgpu-plugin", "node-a")
	plugin := live.as(t, "gpufabric-gpu-plugin", "node-a")
	generated := func(body string) attempt {
		one := object(body)
		one.SetGenerateName(one.GetName())
		one.SetName("")
		return makes(text(one))
	}
	return []way{
		{"a DaemonSet", controller, generated(text(domainSet("", ""))), "is none of them"},
		{"a Secret", controller, generated(`{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "imex-daemon-u", "namespace": "` +
			namespace + `", "labels": {"resource.nvidia.com/computeDomain": "u"}}, "type": "kubernetes.io/tls", "stringData": {"tls.crt": "x",
			"tls.key": "y"}}`), "is none of them"},
		{"a lease", controller, generated(`{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "gpufabric-controller",
			"namespace": "` + namespace + `"}}`), "may write the lease gpufabric-system/gpufabric-controller only"},
		{"a NetworkPolicy", controller, generated(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name":
			"imex-daemon-u", "namespace": "` + namespace + `", "labels": {"resource.nvidia.com/computeDomain": "u"}}, "spec": {"podSelector":
			{"matchLabels": {"resource.nvidia.com/computeDomain": "u"}}}}`), "is none of them"},
		{"a claim template of a profile", controller, generated(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
			"metadata": {"name": "p", "namespace": "tenant", "ownerReferences": [{"apiVersion": "gpufabric.io/v1alpha1", "kind": "VGPUProfile",
			"name": "p", "uid": "u", "controller": true}]}, "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly":
			{"deviceClassName": "p"}}]}}}}`), "is of none"},
		{"a ConfigMap", vgpu, generated(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpufabric-vgpu-unit", "namespace": "` +
			namespace + `"}, "data": {"memoryFactorMiB": "4"}}`), "may write the ConfigMap gpufabric-vgpu-unit only"},
		{"another node's slice", plugin, generated(text(slice("node-a-gpu", `"nodeName": "node-b"`, "gpu.nvidia.com", "node-b-gpu"))),
			"not of node-b"},
		{"its own slice", plugin, generated(text(slice("node-a-gpu", `"nodeName": "node-a"`, "gpu.nvidia.com", "node-a-gpu"))), ""},
	}
}
