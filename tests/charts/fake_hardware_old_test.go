package charts

import (
	"cmp"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/fakes/agent"
	"gpufabric.io/fakes/tree"
)

// TestFakeHardwareServesKubernetesWithoutDRA renders a node and lets a FabricFault happen to it on the oldest API that the server emulates.
// Kubernetes 1.34 emulates 1.31: TEST_ASSET_KUBE_APISERVER has its path and FAKE_HARDWARE_EMULATES the version.
func TestFakeHardwareServesKubernetesWithoutDRA(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t, apiserver.Emulating(cmp.Or(os.Getenv("FAKE_HARDWARE_EMULATES"), "1.33")))
	values := map[string]any{"faults": true, "profile": "h100-hgx"}
	if _, err := newHelm(t, live.config).install("fake-hardware", load(t, "fake-hardware"), values); err != nil {
		t.Fatal(err)
	}
	// node-b has no label: it has the chart's profile, which is given to the agent, and is the second by name.
	for name, labels := range map[string]string{"node-a": `"` + agent.LabelProfile + `": "h100-hgx"`, "node-b": ""} {
		node := object(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "` + name + `", "labels": {` + labels + `}}}`)
		if _, err := live.client.Resource(nodeResource).Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	root := runAgent(t, live, "node-b", "h100-hgx")
	makeFault(t, live, "cut", `"nodes": ["node-b"], "event": "port-down", "arguments": {"device": "mlx5_0"}`)
	awaitResult(t, live, "cut", "node-b", "Applied", "")
	if r, err := tree.ReadRendered(root); err != nil || r.Profile != "h100-hgx" || r.Node != 1 {
		t.Errorf("rendered is %+v (%v), want node 1 of h100-hgx", r, err)
	}
}

func TestFakeHardwareInstallsOnKubernetesSince131(t *testing.T) {
	for version, allowed := range map[string]bool{"v1.30.14": false, "v1.31.0": true, "v1.37.2": true} {
		for _, file := range []string{"", "fake-hardware/ci/everything.yaml"} {
			values := map[string]any{}
			if file != "" {
				var err error
				if values, err = ValuesFile(file); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Render(load(t, "fake-hardware"), values, Cluster{Version: version})
			if (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "1.31") {
				t.Errorf("Kubernetes %s, values %q: error %v, want it installed: %t", version, file, err, allowed)
			}
		}
	}
}
