package charts

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var (
	eventResource         = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	configMapResource     = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	networkPolicyResource = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
	webhookResource       = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
		Resource: "validatingwebhookconfigurations"}
	secretResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	leaseResource  = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	classResource  = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "deviceclasses"}
	layoutResource = schema.GroupVersionResource{Group: "gpufabric.io", Version: "v1alpha1", Resource: "miglayouts"}
)

// preyClaim is allocated on node-b, by every driver.
const preyClaim = `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim", "namespace": "default"},
	"spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}, {"name": "r", "exactly":
	{"deviceClassName":
	"rdma.gpufabric.io"}}, {"name": "c", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}],
	"config": [{"requests": ["c"], "opaque": ` + preyConfig + `}]}}}`

const preyConfig = `{"driver": "compute-domain.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1",
	"kind": "ComputeDomainChannelConfig", "domainID": "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"}}`

const preyAllocation = `{"status": {"allocation": {"devices": {"results": [
	{"request": "g", "driver": "gpu.nvidia.com", "pool": "node-b-gpu", "device": "gpu-0"},
	{"request": "r", "driver": "rdma.gpufabric.io", "pool": "node-b-rdma", "device": "mlx5-0"},
	{"request": "c", "driver": "compute-domain.nvidia.com", "pool": "node-b-compute-domain", "device": "channel-0"}],
	"config": [{"source": "FromClaim", "requests": ["c"], "opaque": ` + preyConfig + `}]}}}}`

// prey are the objects that attacks with stolen tokens try to change: those of tenants, of administrators and of node-b.
func (s *server) prey(t *testing.T) {
	t.Helper()
	s.addDomain(t, "made")
	for _, one := range []struct {
		resource schema.GroupVersionResource
		body     string
		status   string // a merge patch; "" for none
	}{
		{nodeResource, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}`, ""},
		{nodeResource, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b", "labels": {"zone": "z1"}}}`, ""},
		{podResource, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "there", "namespace": "default"}, "spec": {"nodeName": "node-b",
			"containers": [{"name": "c", "image": "i"}]}}`, ""},
		{podResource, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ours", "namespace": "default"}, "spec": {"schedulerName":
			"gpufabric-scheduler", "containers": [{"name": "c", "image": "i"}]}}`, ""},
		{claimResource, preyClaim, preyAllocation},
		{claimTemplateResource, `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "tenants",
			"namespace": "default"}, "spec": {"spec": {"devices": {}}}}`, ""},
		{poolResource, `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool", "metadata": {"name": "pool"}, "spec": {"resourceName": "hca",
			"rdmaHcaMax": 8, "devices": ["ens2f0"]}}`, `{"status": {"nodes": [` + preyEntry + `], "nodeCount": 1}}`},
		{layoutResource, `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "MIGLayout", "metadata": {"name": "layout"}, "spec": {"layout": "off",
			"config": {"version": "v1", "mig-configs": {"off": [{"devices": "all", "mig-enabled": false}]}}}}`,
			`{"status": {"nodes": [{"name": "node-b", "observedGeneration": 1, "state": "Applied"}]}}`},
		{configMapResource, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpufabric-vgpu-unit", "namespace": "` + namespace +
			`"}, "data": {"memoryFactorMiB": "4"}}`, ""},
		{leaseResource, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kube-scheduler", "namespace":
			"kube-system"}}`, ""},
	} {
		made := object(one.body)
		into := s.client.Resource(one.resource).Namespace(made.GetNamespace())
		if _, err := into.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if one.status == "" {
			continue
		}
		if _, err := into.Patch(t.Context(), made.GetName(), "application/merge-patch+json", []byte(one.status), metav1.PatchOptions{},
			"status"); err != nil {
			t.Fatal(err)
		}
	}
}

const preyEntry = `{"name": "node-b", "observedGeneration": 1, "devices": 2, "healthyDevices": 0, "units": 0}`

// installHooks makes the service account and the rights of the uninstall's Job, which Helm makes only for an uninstall.
func (s *server) installHooks(t *testing.T, values map[string]any) {
	t.Helper()
	for _, one := range renderValues(t, "gpufabric", values) {
		if !strings.HasPrefix(one.GetLabels()["app.kubernetes.io/component"], "uninstall") || one.GetKind() == "Job" {
			continue
		}
		if _, err := s.resource(t, one).Create(t.Context(), &one.Unstructured, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// token makes requests with the token that a pod of a role has on node-a.
func (s *server) token(t *testing.T, account string) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(s.withToken(t, account))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// typed is token for built-in kinds.
func (s *server) typed(t *testing.T, account string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.withToken(t, account))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (s *server) withToken(t *testing.T, account string) *rest.Config {
	t.Helper()
	admin, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(s.config)
	config.BearerToken = boundToken(t, admin, account)
	return config
}

// refusal waits for an attempt's error. The server applies a new policy within a second or two, and reports that nowhere.
func refusal(t *testing.T, client dynamic.Interface, try attempt) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if err := try(ctx, client); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// event is an Event about an object ("Pod there"), from a component on a host.
func event(component, host, kind, name string) string {
	space := "default"
	if component == "imex-daemon" {
		space = namespace // where it has the right
	}
	return `{"apiVersion": "v1", "kind": "Event", "metadata": {"name": "tried", "namespace": "` + space + `"}, "reason": "R", "message": "m",
		"type": "Warning", "source": {"component": "` + component + `", "host": "` + host + `"}, "involvedObject": {"kind": "` + kind +
		`", "name": "` + name + `", "namespace": "` + space + `"}}`
}

// domainSet is a DaemonSet as the controller makes it for a compute domain, with changes: "KEY": VALUE, ... of the pod's spec,
// and of its container.
func domainSet(pod, container string) *unstructured.Unstructured {
	const uid = "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"
	set := object(`{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "imex-daemon-` + uid + `", "namespace":
		"` + namespace + `", "labels": {"resource.nvidia.com/computeDomain":
		"` + uid + `"}}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template":
		{"metadata": {"labels": {"a": "b"}}, "spec": {"serviceAccountName": "gpufabric-imex-daemon", "containers": [{"name": "c", "command":
		["gpufabric-node"], "args": ["imex-daemon", "-v=0"], "image":
		"ghcr.io/gpufabric/gpufabric:0.1.0", "securityContext": {"privileged": false, "allowPrivilegeEscalation": false, "capabilities": {"drop":
		["ALL"]}}}]}}}}`)
	spec := set.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	first := spec["containers"].([]any)[0].(map[string]any)
	for into, changes := range map[*map[string]any]string{&spec: pod, &first: container} {
		changed := map[string]any{}
		if err := json.Unmarshal([]byte("{"+changes+"}"), &changed); err != nil {
			panic(err) // a mistake in these tests
		}
		maps.Copy(*into, changed)
	}
	return set
}

// attacks are the attacks with a stolen token, by the line of testdata/rbac.txt with the right that they use.
func attacks() map[string][]attack {
	all := controllerAttacks()
	for line, one := range nodeAttacks() {
		all[line] = one
	}
	for _, plugin := range []struct{ role, driver, pool, request, device string }{
		{"compute-domain-plugin", "compute-domain.nvidia.com", "compute-domain", "c", "channel-0"},
		{"gpu-plugin", "gpu.nvidia.com", "gpu", "g", "gpu-0"},
		{"rdma-plugin", "rdma.gpufabric.io", "rdma", "r", "mlx5-0"},
	} {
		line := "gpufabric-" + plugin.role + " everywhere: "
		status := func(driver, pool, device string) attempt {
			return patch(claimResource, "default", "claim", `{"status": {"devices": [{"driver": "`+driver+`", "pool": "`+pool+`", "device": "`+
				device+`", "conditions": []}]}}`, "status")
		}
		all[line+"events"] = append(eventAttacks(plugin.role),
			attack{"an Event about another node", tryCreate(eventResource, event(plugin.role, "node-a", "Node", "node-b")),
				"about pods, claims and node node-a only, not about Node node-b"},
			attack{"an Event about a role of the cluster", tryCreate(eventResource, event(plugin.role, "node-a", "ClusterRole", "admin")),
				"not about ClusterRole admin"})
		all[line+"resourceslices.resource.k8s.io"] = []attack{
			{"a slice of another node", createSlice(`"nodeName": "node-b"`, plugin.driver, "node-b-"+plugin.pool),
				"may write ResourceSlices of that node only, not of node-b"},
			{"a slice of another driver", createSlice(`"nodeName": "node-a"`, "dra.net", "node-a-"+plugin.pool), "not of dra.net"},
			{"a slice for all nodes", createSlice(`"allNodes": true`, plugin.driver, "node-a-"+plugin.pool), "not of no node"},
		}
		all[line+"resourceclaims/status.resource.k8s.io"] = []attack{
			{"the status of a claim on another node", status(plugin.driver, "node-b-"+plugin.pool, plugin.device),
				"may write the status of claims that have a device of pool node-a-" + plugin.pool + " only"},
			{"taking a claim's devices away", patch(claimResource, "default", "claim", `{"status": {"allocation": null}}`, "status"),
				"a plugin on node node-a"},
			{"reserving a claim for a pod", patch(claimResource, "default", "claim", `{"status": {"reservedFor": [{"resource": "pods", "name":
				"there", "uid": "u"}]}}`, "status"), "a plugin on node node-a"},
		}
	}
	all["gpufabric-vgpu-plugin everywhere: events"] = eventAttacks("vgpu-plugin")
	all["gpufabric-imex-daemon in gpufabric-system: events"] = eventAttacks("imex-daemon")
	return all
}

// eventAttacks are Events that a role on node-a might write in the name of another component.
func eventAttacks(role string) []attack {
	return []attack{
		{"an Event in the kubelet's name", tryCreate(eventResource, strings.ReplaceAll(event("kubelet", "node-a", "Pod", "there"),
			`"namespace": "default"`, `"namespace": "`+map[bool]string{true: namespace, false: "default"}[role == "imex-daemon"]+`"`)),
			"writes Events of component " + role + " only, not of kubelet"},
		{"an Event in another node's name", tryCreate(eventResource, event(role, "node-b", "Pod", "there")), "of that host only, not of node-b"},
	}
}
