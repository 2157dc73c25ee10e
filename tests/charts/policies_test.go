package charts

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// as returns a client that asks as a service account of the release whose pod runs on a node ("": a token without that claim).
func as(t *testing.T, server *rest.Config, account, node string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(server)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// slice is a ResourceSlice with no devices.
func slice(name, node, driver, pool string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: pool, ResourceSliceCount: 1}},
	}
}

// awaitPolicies returns when each probe is refused: the server takes new policies up within a second or two, and says nowhere when.
func awaitPolicies(t *testing.T, probes ...func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for _, probe := range probes {
		for probe() == nil {
			select {
			case <-ctx.Done():
				t.Fatal("an admission policy of the chart is not in force after 30 s")
			case <-again.C:
			}
		}
	}
}

func TestANodePluginWritesOnlyItsOwnNodesObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	ctx := t.Context()
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newHelm(t, live.config).install("gpufabric", load(t, "gpufabric"), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node-a", "node-b"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "z1", "nvidia.com/gpu.clique": "old"}}}
		if name == "node-b" {
			node.Labels["resource.nvidia.com/computeDomain"] = "uid"
		}
		if _, err := admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const driver = "compute-domain.nvidia.com"
	if _, err := admin.ResourceV1().ResourceSlices().Create(ctx, slice("of-node-b", "node-b", driver, "node-b-compute-domain"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	create := func(s *resourcev1.ResourceSlice) func(kubernetes.Interface) error {
		return func(client kubernetes.Interface) error {
			_, err := client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	patch := func(node, json string, subresources ...string) func(kubernetes.Interface) error {
		return func(client kubernetes.Interface) error {
			options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
			_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(json), options, subresources...)
			return err
		}
	}
	const plugin, controller = "gpufabric-compute-domain-plugin", "gpufabric-controller"
	awaitPolicies(t, func() error {
		return patch("node-b", `{"metadata":{"labels":{"a":"b"}}}`)(as(t, live.config, plugin, "node-a"))
	},
		func() error { return create(slice("s", "node-b", driver, "p"))(as(t, live.config, plugin, "node-a")) },
		func() error {
			return patch("node-b", `{"metadata":{"labels":{"a":"b"}}}`)(as(t, live.config, controller, "node-c"))
		})
	for _, test := range []struct {
		name    string
		account string
		node    string
		do      func(kubernetes.Interface) error
		refused string // a part of the refusal; "" means allowed
	}{
		{"its own slice", plugin, "node-a", create(slice("s", "node-a", driver, "node-a-compute-domain")), ""},
		{"another node's slice", plugin, "node-a", create(slice("s", "node-b", driver, "node-b-compute-domain")),
			"a plugin on node node-a may write ResourceSlices of that node only, not of node-b"},
		{"another driver's slice", plugin, "node-a", create(slice("s", "node-a", "gpu.nvidia.com", "node-a-gpu")),
			"may write slices of driver compute-domain.nvidia.com only, not of gpu.nvidia.com"},
		{"a pool of another name", plugin, "node-a", create(slice("s", "node-a", driver, "node-b-compute-domain")),
			"the pool is named node-a-compute-domain, not node-b-compute-domain"},
		{"a slice for all nodes", plugin, "node-a", func(client kubernetes.Interface) error {
			everywhere, all := slice("s", "", driver, "node-a-compute-domain"), true
			everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, &all
			return create(everywhere)(client)
		}, "not of no node"},
		{"a slice with a token of no node", plugin, "", create(slice("s", "node-a", driver, "node-a-compute-domain")),
			"carries no claim authentication.kubernetes.io/node-name"},
		{"deleting another node's slice", plugin, "node-a", func(client kubernetes.Interface) error {
			return client.ResourceV1().ResourceSlices().Delete(ctx, "of-node-b", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		}, "a plugin on node node-a may write ResourceSlices of that node only, not of node-b"},
		{"deleting its own slice", plugin, "node-b", func(client kubernetes.Interface) error {
			return client.ResourceV1().ResourceSlices().Delete(ctx, "of-node-b", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		}, ""},
		{"its own node's fabric labels", plugin, "node-a", patch("node-a", `{"metadata":{"labels":{"nvidia.com/gpu.clique":"new","resource.nvidia.com/computeDomain":"uid"}}}`), ""},
		{"taking a fabric label off its own node", plugin, "node-a", patch("node-a", `{"metadata":{"labels":{"nvidia.com/gpu.clique":null}}}`), ""},
		{"another node's labels", plugin, "node-a", patch("node-b", `{"metadata":{"labels":{"nvidia.com/gpu.clique":"new"}}}`),
			"a plugin on node node-a may change that node only, not node-b"},
		{"a foreign label of its own node", plugin, "node-a", patch("node-a", `{"metadata":{"labels":{"zone":"z2"}}}`), "may change no labels of a node but nvidia.com/gpu.clique, resource.nvidia.com/computeDomain"},
		{"taking a foreign label off its own node", plugin, "node-a", patch("node-a", `{"metadata":{"labels":{"zone":null}}}`), "may change no labels of a node but nvidia.com/gpu.clique, resource.nvidia.com/computeDomain"},
		{"a new foreign label of its own node", plugin, "node-a", patch("node-a", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`), "may change no labels of a node but nvidia.com/gpu.clique, resource.nvidia.com/computeDomain"},
		{"its own node's taints", plugin, "node-a", patch("node-a", `{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`), "neither the spec nor"},
		{"its own node's annotations", plugin, "node-a", patch("node-a", `{"metadata":{"annotations":{"a":"b"}}}`), "may change no annotations of a node"},
		{"its own node's capacity", plugin, "node-a", patch("node-a", `{"status":{"capacity":{"cpu":"1"}}}`, "status"), "cannot patch resource"},
		{"the controller takes a domain's label off", controller, "node-c", patch("node-b", `{"metadata":{"labels":{"resource.nvidia.com/computeDomain":null}}}`), ""},
		{"the controller puts a domain's label on", controller, "node-c", patch("node-a", `{"metadata":{"labels":{"resource.nvidia.com/computeDomain":"uid"}}}`),
			"may take a compute domain's label off a node, and not put one on"},
		{"the controller moves a node to another domain", controller, "node-c", patch("node-b", `{"metadata":{"labels":{"resource.nvidia.com/computeDomain":"other"}}}`),
			"may take a compute domain's label off a node, and not put one on"},
		{"the controller changes a clique", controller, "node-c", patch("node-b", `{"metadata":{"labels":{"nvidia.com/gpu.clique":"new"}}}`), "may change no labels of a node but"},
		{"the controller taints a node", controller, "node-c", patch("node-b", `{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`), "neither the spec nor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.do(as(t, live.config, test.account, test.node))
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
