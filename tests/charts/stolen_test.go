package charts

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

func resourceOf(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

func create(resource schema.GroupVersionResource, space, text string, subresources ...string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := client.Resource(resource).Namespace(space).Create(ctx, object(text), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}},
			subresources...)
		return err
	}
}

func remove(resource schema.GroupVersionResource, space, name string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		return client.Resource(resource).Namespace(space).Delete(ctx, name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}
}

func get(resource schema.GroupVersionResource, space, name string, subresources ...string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := client.Resource(resource).Namespace(space).Get(ctx, name, metav1.GetOptions{}, subresources...)
		return err
	}
}

func list(resource schema.GroupVersionResource) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
		return err
	}
}

type try struct {
	name string
	try  attempt
}

// everybodysAttacks are requests that are refused to tenants and to every role of the chart, on whatever node its pod runs.
func everybodysAttacks() []try {
	const admin = `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "mine"}, ` +
		`"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}, ` +
		`"subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "attacker"}]}`
	const pod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine"}, "spec": {"containers": [{"name": "c", "image": "i", ` +
		`"securityContext": {"privileged": true}}]}}`
	const daemons = `{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "mine"}, "spec": {"selector": {"matchLabels": ` +
		`{"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}`
	var (
		secrets  = resourceOf("", "v1", "secrets")
		accounts = resourceOf("", "v1", "serviceaccounts")
		maps     = resourceOf("", "v1", "configmaps")
		spaces   = resourceOf("", "v1", "namespaces")
		bindings = resourceOf("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
		sets     = resourceOf("apps", "v1", "daemonsets")
		policies = resourceOf("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings")
		hooks    = resourceOf("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
		requests = resourceOf("certificates.k8s.io", "v1", "certificatesigningrequests")
		volumes  = resourceOf("", "v1", "persistentvolumes")
	)
	return []try{
		{"reads another namespace's Secret", get(secrets, "kube-system", "any")},
		{"lists every Secret", list(secrets)},
		{"has a token made for another account", create(accounts, "kube-system",
			`{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {"name": "any"}, "spec": {}}`, "token")},
		{"starts a privileged pod where privileged pods may run", create(podResource, namespace, pod)},
		{"starts a DaemonSet in kube-system", create(sets, "kube-system", daemons)},
		{"runs a program in another's pod", create(podResource, "kube-system",
			`{"apiVersion": "v1", "kind": "PodExecOptions", "metadata": {"name": "any"}}`, "exec")},
		{"reads another pod's log", get(podResource, "kube-system", "any", "log")},
		{"deletes another tenant's pod", remove(podResource, "other", "any")},
		{"evicts another tenant's pod", create(podResource, "other",
			`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "any"}}`, "eviction")},
		{"deletes another tenant's claim", remove(claimResource, "other", "any")},
		{"makes itself the cluster's administrator", create(bindings, "", admin)},
		{"takes an admission policy away", remove(policies, "", "gpufabric-nodes")},
		{"points the webhook elsewhere", patch(hooks, "", "gpufabric", `{"webhooks": null}`)},
		{"approves a certificate", patch(requests, "", "any", `{"status": {}}`, "approval")},
		{"speaks to a kubelet through the API server", get(nodeResource, "", "node-b", "proxy")},
		{"deletes a node", remove(nodeResource, "", "node-b")},
		{"writes another namespace's configuration", patch(maps, "kube-system", "any", `{"data": {"a": "b"}}`)},
		{"opens a namespace to privileged pods", patch(spaces, "", "other",
			`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}`)},
		{"says that an uninstall ends every ComputeDomain", patch(spaces, "", namespace,
			`{"metadata": {"annotations": {"gpufabric.io/uninstall": "anyway"}}}`)},
		{"makes a volume of a host's directory", create(volumes, "", `{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": `+
			`"mine"}, "spec": {"hostPath": {"path": "/"}, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}`)},
	}
}

// tenantsAttacks are requests that are refused to a user with all ordinary rights in one namespace.
func tenantsAttacks() []try {
	classes, layouts := resourceOf("resource.k8s.io", "v1", "deviceclasses"), resourceOf("gpufabric.io", "v1alpha1", "miglayouts")
	profiles, policies := resourceOf("gpufabric.io", "v1alpha1", "vgpuprofiles"), resourceOf("mellanox.com", "v1alpha1", "nicclusterpolicies")
	return []try{
		{"publishes devices", createSlice(`"nodeName": "node-b"`, "gpu.nvidia.com", "node-b-gpu")},
		{"deletes what a node publishes", deleteSlice("of-node-b")},
		{"puts a node into its compute domain", patchNode("node-b", `{"metadata": {"labels": {"resource.nvidia.com/computeDomain": "mine"}}}`)},
		{"chooses the forms of a node's GPUs", patchNode("node-b", `{"metadata": {"labels": {"gpufabric.io/gpu-forms": "flexible"}}}`)},
		{"makes a DeviceClass with a configuration of its own", create(classes, "",
			`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "mine"}, "spec": {}}`)},
		{"cuts the cluster's GPUs by a MIGLayout", create(layouts, "",
			`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "MIGLayout", "metadata": {"name": "mine"}}`)},
		{"cuts the cluster's GPUs by a VGPUProfile", create(profiles, "",
			`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "VGPUProfile", "metadata": {"name": "mine"}}`)},
		{"gives RDMA devices a pool of its own", create(poolResource, "",
			`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool", "metadata": {"name": "mine"}}`)},
		{"has privileged driver containers started", create(policies, "",
			`{"apiVersion": "mellanox.com/v1alpha1", "kind": "NicClusterPolicy", "metadata": {"name": "mine"}}`)},
		{"allocates its claim by itself", patch(claimResource, "tenant", "any", `{"status": {"allocation": {}}}`, "status")},
	}
}

// TestStolenTokenIsForbiddenForeignRequests tries the same requests with the token of every service account of the chart.
func TestStolenTokenIsForbiddenForeignRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	values := everything()
	values["scheduler"] = map[string]any{"enabled": true, "nodeLock": true}
	live.installChart(t, values)
	var accounts []string
	for _, o := range renderValues(t, "gpufabric", values) {
		if o.GetKind() == "ServiceAccount" {
			accounts = append(accounts, o.GetName())
		}
	}
	if len(accounts) < 8 {
		t.Fatalf("the chart has service accounts %v; a token of each is tried", accounts)
	}
	seen := map[string]bool{}
	check := func(t *testing.T, who string, client dynamic.Interface, all []try) {
		for _, one := range all {
			err := one.try(t.Context(), client)
			switch {
			case ofTheSchedulers(who, one.name):
				if apierrors.IsForbidden(err) {
					t.Errorf("%s %s: %v; where the right is gone, strike it from ofTheSchedulers", who, one.name, err)
				}
			case err == nil:
				t.Errorf("%s %s, and nobody refuses it", who, one.name)
			case !apierrors.IsForbidden(err):
				t.Errorf("%s %s: %v, want it forbidden before anything else is looked at", who, one.name, err)
			case !seen[one.name]:
				seen[one.name] = true // the others see the same with their name
				t.Logf("attacker sees: %v", err)
			}
		}
	}
	for _, account := range accounts {
		t.Run(account, func(t *testing.T) { check(t, account, live.as(t, account, "node-a"), everybodysAttacks()) })
	}
	t.Run("a tenant", func(t *testing.T) {
		check(t, "a tenant", tenant(t, live), append(everybodysAttacks(), tenantsAttacks()...))
	})
}

// ofTheSchedulers are rights of Kubernetes' own role system:kube-scheduler, to which a second scheduler is bound. A scheduler
// deletes pods to preempt them, and deletes the claims that it made for extended resources.
func ofTheSchedulers(who, what string) bool {
	return who == "gpufabric-scheduler" && (what == "deletes another tenant's pod" || what == "deletes another tenant's claim")
}

// tenant is a user with the rights of Kubernetes' role "edit", in the namespace tenant.
func tenant(t *testing.T, live *server) dynamic.Interface {
	t.Helper()
	const user = "tenant-of-a-test"
	if _, err := live.client.Resource(resourceOf("", "v1", "namespaces")).Create(t.Context(),
		object(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// No controller aggregates the role "edit" here, so this is the part of it that Kubernetes defines.
	binding := object(`{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "edit", "namespace": ` +
		`"tenant"},
		"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-edit"},
		"subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "` + user + `"}]}`)
	if _, err := live.client.Resource(resourceOf("rbac.authorization.k8s.io", "v1", "rolebindings")).Namespace("tenant").Create(t.Context(),
		binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(live.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// The tenant's ordinary rights work; otherwise the refusals would show nothing. The server applies a binding a moment after
	// it is made, and reports that nowhere.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := client.Resource(resourceOf("", "v1", "configmaps")).Namespace("tenant").Patch(ctx, "own", types.ApplyPatchType,
			[]byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}}`), metav1.PatchOptions{FieldManager: "test"})
		if err == nil {
			return client
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the tenant may do nothing at all: %v", err)
		case <-again.C:
		}
	}
}
