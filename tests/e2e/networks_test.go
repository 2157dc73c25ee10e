package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/toolchain"
)

// testSecondaryNetwork gives two pods on two nodes an interface of a second network by the real Multus and macvlan, and lets each ping the other there.
func testSecondaryNetwork(t *testing.T, e *environment) {
	e.multus(t)
	e.apply(t, e.file(t, "examples/manifests/secondary-network.yaml"))
	e.kubectl(t, "wait", "pod", "--selector", "app=rail", "--for=condition=Ready", "--timeout=120s")
	nodes := strings.Fields(e.kubectl(t, "get", "pods", "--selector", "app=rail", "--output", "jsonpath={.items[*].spec.nodeName}"))
	if slices.Sort(nodes); len(slices.Compact(nodes)) != 2 {
		t.Fatalf("the pods run on %v, want two nodes", nodes)
	}
	for pod, other := range map[string]string{"rail-a": "10.56.0.2", "rail-b": "10.56.0.1"} {
		// -I: a way over the pod network would not count.
		if said, err := e.Kubectl(t.Context(), nil, "exec", pod, "--", "ping", "-c", "3", "-w", "20", "-I", "net1", other); err != nil {
			t.Errorf("%s cannot reach %s on net1: %v\n%s", pod, other, err, said)
		}
		// Multus says on the pod what it attached.
		if status := e.kubectl(t, "get", "pod", pod, "--output", `jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`); !strings.Contains(status, `"net1"`) {
			t.Errorf("%s has the network status %s, want net1 in it", pod, status)
		}
	}
	e.kubectl(t, "delete", "pod", "rail-a", "rail-b", "--grace-period=1", "--timeout=60s")
}

// multus puts Multus before the workers' CNI plugin, with its own CRD and rights, and takes it away when the test ends.
func (e *environment) multus(t *testing.T) {
	t.Helper()
	chain, err := toolchain.New(e.printer)
	must(t, err)
	tools, err := chain.Ensure(t.Context(), "multus")
	must(t, err)
	e.apply(t, e.multusObjects(t))
	e.kubectl(t, "wait", "crd/network-attachment-definitions.k8s.cni.cncf.io", "--for=condition=Established", "--timeout=60s")
	token := strings.TrimSpace(e.kubectl(t, "--namespace", "kube-system", "create", "token", "multus", "--duration=1h"))

	var cluster struct {
		Clusters []struct {
			Cluster json.RawMessage `json:"cluster"`
		} `json:"clusters"`
	}
	for _, node := range e.Workers() {
		// The kubelet's file has the address and the authority by which a node knows the API server; its rights do not reach networks.
		out, err := docker.Script(t.Context(), node, "kubectl --kubeconfig /etc/kubernetes/kubelet.conf config view --raw --output json")
		must(t, err)
		must(t, json.Unmarshal([]byte(out), &cluster))
		config, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Config", "current-context": "multus",
			"clusters": []any{map[string]any{"name": "cluster", "cluster": cluster.Clusters[0].Cluster}},
			"users":    []any{map[string]any{"name": "multus", "user": map[string]any{"token": token}}},
			"contexts": []any{map[string]any{"name": "multus", "context": map[string]any{"cluster": "cluster", "user": "multus"}}},
		})
		must(t, err)
		e.installMultus(t, node, tools["multus"], string(config))
	}
}

// multusConfiguration sorts before the cluster's own configuration, to which it leaves the pod network. It names that by its name: of a path to a
// conflist, Multus 4.2.2 keeps for the deletion only the fields that it knows, and host-local's ranges are not among them.
const multusConfiguration = `{"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus", "capabilities": {"portMappings": true},
	"kubeconfig": "/etc/cni/net.d/multus.kubeconfig", "confDir": "/etc/cni/net.d", "clusterNetwork": "gpufabric"}`

func (e *environment) installMultus(t *testing.T, node, program, kubeconfig string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := docker.Script(ctx, node, "rm -f /etc/cni/net.d/00-multus.conf /etc/cni/net.d/multus.kubeconfig /opt/cni/bin/multus"); err != nil {
			t.Errorf("take Multus off %s: %v", node, err)
		}
	})
	_, err := docker.Run(t.Context(), "cp", program, node+":/opt/cni/bin/multus")
	must(t, err)
	_, err = docker.Script(t.Context(), node, `umask 077
		printf %s "$KUBECONFIG_TEXT" > /etc/cni/net.d/multus.kubeconfig
		printf %s "$CONFIGURATION" > /etc/cni/net.d/.multus && mv /etc/cni/net.d/.multus /etc/cni/net.d/00-multus.conf`,
		"KUBECONFIG_TEXT="+kubeconfig, "CONFIGURATION="+multusConfiguration)
	must(t, err)
}

// multusObjects are the CRD, the account and the rights of Multus's own manifest. Its DaemonSet would copy the program from an image that cannot be had here.
func (e *environment) multusObjects(t *testing.T) string {
	t.Helper()
	module := filepath.Join(e.root, "tests/toolchain/modules/multus")
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4")
	cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	must(t, err)
	var source struct{ Dir string }
	must(t, json.Unmarshal(out, &source))
	manifest, err := os.ReadFile(filepath.Join(source.Dir, "deployments/multus-daemonset.yml"))
	must(t, err)
	var objects []string
	for _, document := range strings.Split(string(manifest), "\n---\n") {
		if !strings.Contains(document, "kind: DaemonSet") && !strings.Contains(document, "kind: ConfigMap") {
			objects = append(objects, document)
		}
	}
	if len(objects) < 4 {
		t.Fatalf("%d objects in Multus's manifest, want its CRD, account and rights", len(objects))
	}
	return strings.Join(objects, "\n---\n")
}
