package charts

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var (
	nodeResource  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	podResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	poolResource  = schema.GroupVersionResource{Group: "gpufabric.io", Version: "v1alpha1", Resource: "rdmapools"}
	sliceResource = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}
)

// attempt is one request, sent as a dry run.
type attempt func(context.Context, dynamic.Interface) error

// as asks as a service account of the release whose pod runs on a node ("": with a token that does not say).
func (s *server) as(t *testing.T, account, node string) dynamic.Interface {
	t.Helper()
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// object reads an object from JSON.
func object(text string) *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &out.Object); err != nil {
		panic(err) // a mistake in this file
	}
	return out
}

// slice is a ResourceSlice without devices. placed says where it is, as in `"nodeName": "node-a"`.
func slice(name, placed, driver, pool string) *unstructured.Unstructured {
	return object(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "` + name + `"},
		"spec": {` + placed + `, "driver": "` + driver + `", "pool": {"name": "` + pool + `", "generation": 1, "resourceSliceCount": 1}}}`)
}

func createSlice(placed, driver, pool string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := client.Resource(sliceResource).Create(ctx, slice("tried", placed, driver, pool),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
}

func deleteSlice(name string) attempt {
	return remove(sliceResource, "", name)
}

func patch(resource schema.GroupVersionResource, space, name, change string, subresources ...string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := client.Resource(resource).Namespace(space).Patch(ctx, name, types.MergePatchType, []byte(change), options, subresources...)
		return err
	}
}

func patchNode(name, change string, subresources ...string) attempt {
	return patch(nodeResource, "", name, change, subresources...)
}

// awaitPolicies returns when each attempt is refused. The server applies a new policy within a second or two, and reports that
// nowhere.
func (s *server) awaitPolicies(t *testing.T, account string, attempts ...attempt) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	client := s.as(t, account, "node-a")
	for _, try := range attempts {
		for {
			err := try(ctx, client)
			if apierrors.IsForbidden(err) {
				break
			}
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("an attempt of %s failed otherwise than by a policy: %v", account, err)
			}
			select {
			case <-ctx.Done():
				t.Fatalf("a policy that speaks of %s is not in force after five minutes", account)
			case <-again.C:
			}
		}
	}
}

func TestPoliciesLimitRolesAndTenants(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	values := everything()
	values["vgpu"] = map[string]any{"enabled": true, "forbidControlOff": true}
	values["scheduler"] = map[string]any{"enabled": true, "nodeLock": true}
	standing := object(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "standing", "namespace": "default", "finalizers": ` +
		`["a.b/c"]}, "spec": {"containers": [
		{"name": "main", "image": "i", "env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]}]}}`)
	if _, err := live.client.Resource(podResource).Namespace("default").Create(t.Context(), standing, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	live.installChart(t, values)
	t.Run("no tenant switches the limits of shared GPUs off", func(t *testing.T) { limitsStay(t, live) })
	t.Run("no tenant says which shares of GPUs a pod has", func(t *testing.T) { sharesStay(t, live) })
	t.Run("no tenant keeps compute domains off a node", func(t *testing.T) { domainsStay(t, live) })
	t.Run("no claim takes a domain's device by another class", func(t *testing.T) { allocationsStay(t, live) })
	t.Run("no claim of a share chooses the GPU's time slice", func(t *testing.T) { timeSlicesStay(t, live) })
	const domain = "compute-domain.nvidia.com"
	for resource, objects := range map[schema.GroupVersionResource][]*unstructured.Unstructured{
		nodeResource: {
			object(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": {"zone": "z1", "nvidia.com/gpu.clique": "old"}}}`),
			object(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b", "labels": {"zone": "z1", ` +
				`"resource.nvidia.com/computeDomain": "uid"}}}`),
		},
		podResource: {
			object(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "here", "namespace": "default"}, "spec": {"nodeName": "node-a", ` +
				`"containers": [{"name": "c", "image": "i"}]}}`),
			object(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "there", "namespace": "default"}, "spec": {"nodeName": "node-b", ` +
				`"containers": [{"name": "c", "image": "i"}]}}`),
			object(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nowhere", "namespace": "default"}, "spec": {"containers": ` +
				`[{"name": "c", "image": "i"}]}}`),
		},
		poolResource: {
			object(`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool", "metadata": {"name": "pool"}, "spec": {"resourceName": "hca", ` +
				`"rdmaHcaMax": 8, "devices": ["ens2f0"]}}`),
		},
		domainResource: {
			object(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "kept", "namespace": "default"}, ` +
				`"spec": {"numNodes": 1, "channel": {"resourceClaimTemplate": {"name": "kept"}}}}`),
		},
		sliceResource: {slice("of-node-b", `"nodeName": "node-b"`, domain, "node-b-compute-domain"),
			slice("of-nvidia", `"nodeName": "node-a"`, domain, "node-a")},
	} {
		for _, one := range objects {
			if _, err := live.client.Resource(resource).Namespace(one.GetNamespace()).Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	entry := func(name, devices string) string {
		return `{"name": "` + name + `", "observedGeneration": 1, "devices": ` + devices + `, "healthyDevices": 0, "units": 0}`
	}
	status := func(body string) attempt { return patch(poolResource, "", "pool", `{"status": `+body+`}`, "status") }
	stands := []byte(`{"status": {"nodes": [` + entry("node-b", "2") + `], "nodeCount": 1}}`)
	if _, err := live.client.Resource(poolResource).Patch(t.Context(), "pool", types.MergePatchType, stands, metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}

	const domains, controller, rdma, vgpu, scheduler = "gpufabric-compute-domain-plugin", "gpufabric-controller", "gpufabric-rdma-plugin",
		"gpufabric-vgpu-plugin", "gpufabric-scheduler"
	const gpus = "gpufabric-gpu-plugin"
	const forms = `{"status": {"conditions": [{"type": "GPUForms", "status": "True", "reason": "ChartDefault", "message": "8 GPUs offer ` +
		`whole"}]}}`
	foreign := `{"metadata": {"labels": {"a": "b"}}}`
	live.awaitPolicies(t, gpus, patchNode("node-b", forms, "status"))
	live.awaitPolicies(t, domains, patchNode("node-b", foreign), createSlice(`"nodeName": "node-b"`, domain, "p"))
	live.awaitPolicies(t, controller, patchNode("node-b", foreign))
	live.awaitPolicies(t, scheduler, patchNode("node-b", foreign))
	live.awaitPolicies(t, rdma, status(`{"nodeCount": 9}`))
	live.awaitPolicies(t, vgpu, patchNode("node-b", foreign), patch(podResource, "default", "there", foreign))

	const (
		otherNode    = "a plugin on node node-a may change that node only, not node-b"
		otherSlices  = "a plugin on node node-a may write ResourceSlices of that node only, not of node-b"
		unsaid       = "carries no claim authentication.kubernetes.io/node-name"
		domainLabels = "may change no labels of a node but nvidia.com/gpu.clique, resource.nvidia.com/computeDomain"
		putsOn       = "may take a compute domain's label off a node, and not put one on"
	)
	for _, test := range []struct {
		name, account, node string
		try                 attempt
		refused             string // a part of the refusal; "" means allowed
	}{
		{"its own slice", domains, "node-a", createSlice(`"nodeName": "node-a"`, domain, "node-a-compute-domain"), ""},
		{"another node's slice", domains, "node-a", createSlice(`"nodeName": "node-b"`, domain, "node-b-compute-domain"), otherSlices},
		{"another driver's slice", domains, "node-a", createSlice(`"nodeName": "node-a"`, "gpu.nvidia.com", "node-a-gpu"),
			"may write slices of driver compute-domain.nvidia.com only, not of gpu.nvidia.com"},
		{"a pool of another name", domains, "node-a", createSlice(`"nodeName": "node-a"`, domain, "node-b-compute-domain"),
			"the pool is named node-a-compute-domain, not node-b-compute-domain"},
		{"a slice for all nodes", domains, "node-a", createSlice(`"allNodes": true`, domain, "node-a-compute-domain"), "not of no node"},
		{"a slice with a token of no node", domains, "", createSlice(`"nodeName": "node-a"`, domain, "node-a-compute-domain"), unsaid},
		{"deleting another node's slice", domains, "node-a", deleteSlice("of-node-b"), otherSlices},
		{"deleting its own slice", domains, "node-b", deleteSlice("of-node-b"), ""},
		{"a slice that NVIDIA's driver left on its node", domains, "node-a", deleteSlice("of-nvidia"), ""},
		{"the GPU plugin's own slice", "gpufabric-gpu-plugin", "node-a", createSlice(`"nodeName": "node-a"`, "gpu.nvidia.com", "node-a-gpu"), ""},
		{"the RDMA plugin's own slice", rdma, "node-a", createSlice(`"nodeName": "node-a"`, "rdma.gpufabric.io", "node-a-rdma"), ""},
		{"the RDMA plugin's slice of GPUs", rdma, "node-a", createSlice(`"nodeName": "node-a"`, "gpu.nvidia.com", "node-a-gpu"),
			"may write slices of driver rdma.gpufabric.io only"},

		{"its own node's fabric labels", domains, "node-a", patchNode("node-a",
			`{"metadata": {"labels": {"nvidia.com/gpu.clique": "new", "resource.nvidia.com/computeDomain": "uid"}}}`), ""},
		{"taking a fabric label off its own node", domains, "node-a",
			patchNode("node-a", `{"metadata": {"labels": {"nvidia.com/gpu.clique": null}}}`), ""},
		{"another node's labels", domains, "node-a", patchNode("node-b", `{"metadata": {"labels": {"nvidia.com/gpu.clique": "new"}}}`),
			otherNode},
		{"a node's labels with a token of no node", domains, "", patchNode("node-a",
			`{"metadata": {"labels": {"nvidia.com/gpu.clique": "new"}}}`), unsaid},
		{"a foreign label of its own node", domains, "node-a", patchNode("node-a", `{"metadata": {"labels": {"zone": "z2"}}}`), domainLabels},
		{"taking a foreign label off its own node", domains, "node-a", patchNode("node-a", `{"metadata": {"labels": {"zone": null}}}`),
			domainLabels},
		{"a new foreign label of its own node", domains, "node-a", patchNode("node-a",
			`{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`), domainLabels},
		{"its own node's taints", domains, "node-a", patchNode("node-a", `{"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}`),
			"neither the spec nor"},
		{"its own node's finalizers", domains, "node-a", patchNode("node-a", `{"metadata": {"finalizers": ["a.b/c"]}}`), "nor the finalizers"},
		{"its own node's annotations", domains, "node-a", patchNode("node-a", `{"metadata": {"annotations": {"a": "b"}}}`),
			"may change no annotations of a node"},
		{"its own node's capacity", domains, "node-a", patchNode("node-a", `{"status": {"capacity": {"cpu": "1"}}}`, "status"),
			"cannot patch resource"},

		{"its own node's condition of forms", gpus, "node-a", patchNode("node-a", forms, "status"), ""},
		{"another node's condition of forms", gpus, "node-a", patchNode("node-b", forms, "status"), otherNode},
		{"a node's condition with a token of no node", gpus, "", patchNode("node-a", forms, "status"), unsaid},
		{"its own node's condition of the driver", gpus, "node-a", patchNode("node-a", strings.Replace(forms, "GPUForms", "GPUDriver", 1),
			"status"), ""},
		{"another node's condition of the driver", gpus, "node-a", patchNode("node-b", strings.Replace(forms, "GPUForms", "GPUDriver", 1),
			"status"), otherNode},
		{"another condition of its own node", gpus, "node-a", patchNode("node-a", strings.Replace(forms, "GPUForms", "Ready", 1), "status"),
			"the conditions GPUForms and GPUDriver of a node's status, and nothing else"},
		{"its own node's capacity beside its condition", gpus, "node-a", patchNode("node-a", `{"status": {"capacity": {"cpu": "1"}}}`, "status"),
			"the conditions GPUForms and GPUDriver of a node's status, and nothing else"},
		{"its own node's labels by way of its status", gpus, "node-a", patchNode("node-a", `{"metadata": {"labels": {"zone": "z2"}}}`, "status"),
			"a GPU plugin may change no labels"},

		{"the controller keeps a domain's status in an annotation", controller, "node-c",
			patch(domainResource, "default", "kept", `{"metadata": {"annotations": {"gpufabric.io/kept-status": "{}"}}}`), ""},
		{"the controller writes another annotation of a domain", controller, "node-c",
			patch(domainResource, "default", "kept", `{"metadata": {"annotations": {"a": "b"}}}`), "change nothing else of it"},
		{"the controller takes a domain's label off", controller, "node-c",
			patchNode("node-b", `{"metadata": {"labels": {"resource.nvidia.com/computeDomain": null}}}`), ""},
		{"the controller puts a domain's label on", controller, "node-c",
			patchNode("node-a", `{"metadata": {"labels": {"resource.nvidia.com/computeDomain": "uid"}}}`), putsOn},
		{"the controller moves a node to another domain", controller, "node-c",
			patchNode("node-b", `{"metadata": {"labels": {"resource.nvidia.com/computeDomain": "other"}}}`), putsOn},
		{"the controller changes a clique", controller, "node-c", patchNode("node-a",
			`{"metadata": {"labels": {"nvidia.com/gpu.clique": "new"}}}`), "may change no labels of a node but resource.nvidia.com/computeDomain"},
		{"the controller taints a node", controller, "node-c", patchNode("node-b",
			`{"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}`), "neither the spec nor"},

		{"its entry in a pool's status", rdma, "node-a", status(`{"nodes": [` + entry("node-b", "2") + `, ` + entry("node-a", "1") + `]}`), ""},
		{"another node's entry in a pool's status", rdma, "node-a", status(`{"nodes": [` + entry("node-b", "0") + `]}`),
			"may write the entry of that node only"},
		{"taking another node's entry away", rdma, "node-a", status(`{"nodes": [` + entry("node-a", "1") + `]}`),
			"may write the entry of that node only"},
		{"what sums a pool up", rdma, "node-a", status(`{"nodeCount": 5}`), "and not what sums the nodes up"},
		{"a pool's spec", rdma, "node-a", patch(poolResource, "", "pool", `{"spec": {"rdmaHcaMax": 9}}`), "cannot patch resource"},

		{"the scheduler locks a node", scheduler, "node-c", patchNode("node-a",
			`{"metadata": {"annotations": {"hamivgpu": "2026-11-22T02:00:00Z"}}}`), ""},
		{"the scheduler registers GPUs", scheduler, "node-c", patchNode("node-a",
			`{"metadata": {"annotations": {"volcano.sh/node-vgpu-register": "x"}}}`),
			"the scheduler may change no annotations of a node but hamivgpu"},
		{"the scheduler labels a node", scheduler, "node-c", patchNode("node-a", `{"metadata": {"labels": {"a": "b"}}}`),
			"the scheduler may change no labels of a node"},
		{"the scheduler taints a node", scheduler, "node-c", patchNode("node-b", `{"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}`),
			"neither the spec nor"},

		{"registering its node's GPUs", vgpu, "node-a", patchNode("node-a",
			`{"metadata": {"annotations": {"volcano.sh/node-vgpu-register": "x", "volcano.sh/node-vgpu-handshake": "y"}}}`), ""},
		{"registering GPUs on another node", vgpu, "node-a", patchNode("node-b",
			`{"metadata": {"annotations": {"volcano.sh/node-vgpu-register": "x"}}}`), otherNode},
		{"a fabric label", vgpu, "node-a", patchNode("node-a", `{"metadata": {"labels": {"nvidia.com/gpu.clique": "new"}}}`),
			"may change no labels of a node"},
		{"telling the scheduler of a pod here", vgpu, "node-a", patch(podResource, "default", "here",
			`{"metadata": {"annotations": {"volcano.sh/bind-phase": "success", "volcano.sh/devices-to-allocate": null}}}`), ""},
		{"showing a pod's MIG instances", vgpu, "node-a", patch(podResource, "default", "here",
			`{"metadata": {"annotations": {"vgpu.gpufabric.io/mig-instances": "{}"}}}`), ""},
		{"failing a pod here that is refused its shares", vgpu, "node-a", patch(podResource, "default", "here",
			`{"status": {"phase": "Failed", "reason": "SharesRefused", "message": "full"}}`, "status"), ""},
		{"failing a pod there", vgpu, "node-a", patch(podResource, "default", "there",
			`{"status": {"phase": "Failed", "reason": "SharesRefused", "message": "full"}}`, "status"),
			"may fail pods on that node only, not on node-b"},
		{"another address of a pod here", vgpu, "node-a", patch(podResource, "default", "here",
			`{"status": {"phase": "Failed", "reason": "SharesRefused", "podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}`, "status"),
			"only that it failed because its shares are refused"},
		{"saying that a pod here has succeeded", vgpu, "node-a", patch(podResource, "default", "here",
			`{"status": {"phase": "Succeeded"}}`, "status"), "only that it failed because its shares are refused"},
		{"a pod's annotation by its status", vgpu, "node-a", patch(podResource, "default", "here",
			`{"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "Failed", "reason": "SharesRefused"}}`, "status"),
			"may change no annotations of a pod"},
		{"an annotation of a pod there", vgpu, "node-a", patch(podResource, "default", "there",
			`{"metadata": {"annotations": {"volcano.sh/bind-phase": "success"}}}`), "may change pods on that node only, not on node-b"},
		{"an annotation of a pod that is nowhere yet", vgpu, "node-a",
			patch(podResource, "default", "nowhere", `{"metadata": {"annotations": {"volcano.sh/bind-phase": "success"}}}`), "not on no node"},
		{"another annotation of a pod here", vgpu, "node-a", patch(podResource, "default", "here",
			`{"metadata": {"annotations": {"volcano.sh/vgpu-ids-new": "x"}}}`), "may change no annotations of a pod but"},
		{"the image of a pod here", vgpu, "node-a", patch(podResource, "default", "here",
			`{"spec": {"containers": [{"name": "c", "image": "other"}]}}`), "neither the spec nor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.try(t.Context(), live.as(t, test.account, test.node))
			switch {
			case test.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.refused != "" && err == nil:
				t.Errorf("allowed; the refusal should say %q", test.refused)
			case test.refused != "" && !strings.Contains(err.Error(), test.refused):
				t.Errorf("refused with\n%v\nwhich lacks %q", err, test.refused)
			}
		})
	}
}

// limitsStay tries pods as an administrator: the policy is for everybody.
func limitsStay(t *testing.T, live *server) {
	create := func(spec string) attempt {
		return func(ctx context.Context, _ dynamic.Interface) error {
			pod := object(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tenant", "namespace": "default"}, "spec": ` + spec + `}`)
			_, err := live.client.Resource(podResource).Namespace("default").Create(ctx, pod,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	const off = `"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]`
	live.awaitPolicies(t, "anybody", create(`{"containers": [{"name": "main", "image": "i", `+off+`}]}`))
	variable := func(name, value string) string {
		return `{"containers": [{"name": "main", "image": "i", "env": [{"name": "` + name + `", ` + value + `}]}]}`
	}
	const elsewhere, policy, limit = `"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}`, "GPU_CORE_UTILIZATION_POLICY",
		"containers main set CUDA_DISABLE_CONTROL, or GPU_CORE_UTILIZATION_POLICY"
	for name, test := range map[string]struct{ spec, refused string }{
		"a container": {`{"containers": [{"name": "main", "image": "i", ` + off + `}]}`,
			"containers main set CUDA_DISABLE_CONTROL"},
		"an init container": {`{"initContainers": [{"name": "first", "image": "i", ` + off +
			`}], "containers": [{"name": "main", "image": "i"}]}`, "containers first set"},
		"a value from elsewhere":      {variable("CUDA_DISABLE_CONTROL", elsewhere), "containers main set"},
		"no limit of cores":           {variable(policy, `"value": "disable"`), limit},
		"no limit of cores, shouted":  {variable(policy, `"value": "DISABLE"`), limit},
		"a policy from elsewhere":     {variable(policy, elsewhere), limit},
		"a policy from its variables": {variable(policy, `"value": "$(A)"`), limit},
		"cores limited always":        {variable(policy, `"value": "force"`), ""},
		"a policy of no value":        {`{"containers": [{"name": "main", "image": "i", "env": [{"name": "` + policy + `"}]}]}`, ""},
		"another variable":            {variable("A", `"value": "disable"`), ""},
		"a pod of no variables":       {`{"containers": [{"name": "main", "image": "i"}]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := create(test.spec)(t.Context(), nil)
			if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("got %v, want an error with %q", err, test.refused)
			}
		})
	}
	t.Run("a pod from before", func(t *testing.T) {
		debug := func(env string) error {
			body := []byte(`{"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"` + env + `}]}}`)
			_, err := live.client.Resource(podResource).Namespace("default").Patch(t.Context(), "standing", types.StrategicMergePatchType, body,
				metav1.PatchOptions{}, "ephemeralcontainers")
			return err
		}
		if err := debug(", " + off); err == nil || !strings.Contains(err.Error(), "containers debug set") {
			t.Errorf("got %v, want the ephemeral container refused", err)
		}
		if err := debug(""); err != nil {
			t.Errorf("a container to look into it with was refused: %v", err)
		}
		if _, err := live.client.Resource(podResource).Namespace("default").Patch(t.Context(), "standing", types.MergePatchType,
			[]byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{}); err != nil {
			t.Errorf("it keeps its finalizer: %v", err)
		}
	})
}
