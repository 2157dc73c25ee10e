package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/docker"
)

// testSecondaryNetwork gives two pods on two nodes an interface of a second network by the real Multus and macvlan, and lets each ping the
// other there.
func testSecondaryNetwork(t *testing.T, e *environment) {
	e.multus(t)
	e.apply(t, e.file(t, "examples/manifests/secondary-network.yaml"))
	e.kubectl(t, "wait", "pod", "--selector", "app=rail", "--for=condition=Ready", inTime)
	nodes := strings.Fields(e.kubectl(t, "get", "pods", "--selector", "app=rail", "--output", "jsonpath={.items[*].spec.nodeName}"))
	if slices.Sort(nodes); len(slices.Compact(nodes)) != 2 {
		t.Fatalf("the pods run on %v, want two nodes", nodes)
	}
	for pod, other := range map[string]string{"rail-a": "10.56.0.2", "rail-b": "10.56.0.1"} {
		// -I: the ping must not use the pod network.
		if said, err := e.Kubectl(t.Context(), nil, "exec", pod, "--", "ping", "-c", "3", "-w", "20", "-I", "net1", other); err != nil {
			t.Errorf("%s cannot reach %s on net1: %v\n%s", pod, other, err, said)
		}
		// Multus writes on the pod what it attached.
		if status := e.kubectl(t, "get", "pod", pod, "--output",
			`jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`); !strings.Contains(status, `"net1"`) {
			t.Errorf("%s has the network status %s, want net1 in it", pod, status)
		}
	}
	e.kubectl(t, "delete", "pod", "rail-a", "rail-b", "--grace-period=1", inTime)
}

// testRailsPing lets two pods on two nodes join the networks that the Terraform example rdma-cluster declared. whereabouts
// assigns their addresses, and each pod reaches the other on net1.
func testRailsPing(t *testing.T, e *environment) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, labels: {app: rank}, annotations: {k8s.v1.cni.cncf.io/networks: rail-0}},
spec: {nodeSelector: {kubernetes.io/hostname: %[2]s}, terminationGracePeriodSeconds: 1,
  containers: [{name: c, image: "network-test:v1", command: [sleep, infinity], resources: {limits: {rdma/hca_shared_devices_a: 1}}}]}}
`
	nodes := e.Workers()
	e.apply(t, fmt.Sprintf(pod, "rank-0", nodes[0])+"---\n"+fmt.Sprintf(pod, "rank-1", nodes[1]))
	e.kubectl(t, "wait", "pod/rank-0", "pod/rank-1", "--for=condition=Ready", inTime)
	addresses := map[string]string{}
	for _, name := range []string{"rank-0", "rank-1"} {
		var attached []struct {
			Interface string
			IPs       []string
		}
		status := e.kubectl(t, "get", "pod", name, "--output", `jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`)
		must(t, json.Unmarshal([]byte(status), &attached))
		for _, network := range attached {
			if network.Interface == "net1" && len(network.IPs) == 1 && strings.HasPrefix(network.IPs[0], "10.56.") {
				addresses[name] = network.IPs[0]
			}
		}
	}
	if len(addresses) != 2 || addresses["rank-0"] == addresses["rank-1"] {
		t.Fatalf("whereabouts gave %v, want an address of 10.56.0.0/16 each", addresses)
	}
	for name, other := range map[string]string{"rank-0": addresses["rank-1"], "rank-1": addresses["rank-0"]} {
		if said, err := e.Kubectl(t.Context(), nil, "exec", name, "--", "ping", "-c", "3", "-w", "20", "-I", "net1", other); err != nil {
			t.Errorf("%s cannot reach %s on net1: %v\n%s", name, other, err, said)
		}
	}
	e.kubectl(t, "delete", "pod", "rank-0", "rank-1", inTime)
	e.eventually(t, "the addresses to be free again", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "--namespace", "kube-system", "get", "ippools.whereabouts.cni.cncf.io", "--output",
			"jsonpath={.items[*].spec.allocations}")
		return err == nil && !strings.Contains(out, "rank-"), out, err
	})
}

// secondaryNetworks installs Multus with whereabouts.
func (e *environment) secondaryNetworks(t *testing.T) {
	t.Helper()
	e.multus(t)
	e.whereabouts(t)
}

// multus installs Multus before the workers' CNI plugin, with its own CRD and rights, and removes it when the test ends.
func (e *environment) multus(t *testing.T) {
	t.Helper()
	e.apply(t, e.multusObjects(t))
	e.served(t, "network-attachment-definitions.k8s.cni.cncf.io")
	e.installNetworkPlugin(t, "multus", map[string]string{"multus.kubeconfig": "", "00-multus.conf": multusConfiguration})
}

// whereabouts installs whereabouts as a source of addresses for the workers' CNI plugins, with its own CRDs and rights, and
// removes it when the test ends.
func (e *environment) whereabouts(t *testing.T) {
	t.Helper()
	crds := moduleFiles(t, e, "whereabouts", "github.com/k8snetworkplumbingwg/whereabouts", "doc/crds/*.yaml")
	e.apply(t, withoutWorkloads(strings.Join(crds, "\n---\n")))
	for _, kind := range []string{"ippools", "overlappingrangeipreservations"} {
		e.served(t, kind+".whereabouts.cni.cncf.io")
	}
	e.installNetworkPlugin(t, "whereabouts", map[string]string{"whereabouts.d/whereabouts.kubeconfig": "",
		"whereabouts.d/whereabouts.conf": `{"datastore": "kubernetes", "kubernetes": {"kubeconfig": ` +
			`"/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}}`})
}

// installNetworkPlugin copies a CNI plugin to the workers, with its files under /etc/cni/net.d: an empty one becomes the kubeconfig
// of the plugin's account. Its own DaemonSet would do so from an image that is not available here.
func (e *environment) installNetworkPlugin(t *testing.T, name string, files map[string]string) {
	t.Helper()
	chain, err := toolchain.New(e.printer)
	must(t, err)
	tools, err := chain.Ensure(t.Context(), name)
	must(t, err)
	token := strings.TrimSpace(e.kubectl(t, "--namespace", "kube-system", "create", "token", name, "--duration=1h"))
	for _, node := range e.Workers() {
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			for file := range files {
				if _, err := docker.Script(ctx, node, "rm -f /etc/cni/net.d/"+file); err != nil {
					t.Errorf("take %s off %s: %v", file, node, err)
				}
			}
			if _, err := docker.Script(ctx, node, "rm -f /opt/cni/bin/"+name); err != nil {
				t.Errorf("take %s off %s: %v", name, node, err)
			}
		})
		_, err = docker.Run(t.Context(), "cp", tools[name], node+":/opt/cni/bin/"+name)
		must(t, err)
		// A configuration in the top directory is read at once, so the files that it refers to are copied first.
		for _, file := range slices.Backward(slices.Sorted(maps.Keys(files))) {
			content := files[file]
			if content == "" {
				content = e.kubeconfigOn(t, node, name, token)
			}
			_, err = docker.Script(t.Context(), node, `umask 077; mkdir -p "$(dirname "$FILE")"
				printf %s "$CONTENT" > "$FILE.new" && mv "$FILE.new" "$FILE"`, "FILE=/etc/cni/net.d/"+file, "CONTENT="+content)
			must(t, err)
		}
	}
}

// kubeconfigOn is a kubeconfig of an account for programs on a node.
func (e *environment) kubeconfigOn(t *testing.T, node, account, token string) string {
	t.Helper()
	// The kubelet's file has the API server's address and authority. The kubelet has no rights on networks.
	out, err := docker.Script(t.Context(), node, "kubectl --kubeconfig /etc/kubernetes/kubelet.conf config view --raw --output json")
	must(t, err)
	var kubelet struct {
		Clusters []struct {
			Cluster json.RawMessage `json:"cluster"`
		} `json:"clusters"`
	}
	must(t, json.Unmarshal([]byte(out), &kubelet))
	config, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": account,
		"clusters": []any{map[string]any{"name": "cluster", "cluster": kubelet.Clusters[0].Cluster}},
		"users":    []any{map[string]any{"name": account, "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": account, "context": map[string]any{"cluster": "cluster", "user": account}}},
	})
	must(t, err)
	return string(config)
}

// multusConfiguration sorts before the cluster's own configuration, which still serves the pod network. It refers to that by
// name. For a path to a conflist, Multus 4.2.2 would store only the fields that it knows for the deletion, and host-local's
// ranges are not among them.
const multusConfiguration = `{"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus", "capabilities": {"portMappings": true},
	"kubeconfig": "/etc/cni/net.d/multus.kubeconfig", "confDir": "/etc/cni/net.d", "clusterNetwork": "gpufabric"}`

// multusObjects are the CRD, the account and the rights of Multus's own manifest.
func (e *environment) multusObjects(t *testing.T) string {
	t.Helper()
	return withoutWorkloads(moduleFiles(t, e, "multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4", "deployments/multus-daemonset.yml")[0])
}

// moduleFiles reads files of a Go module of the toolchain, by a pattern under the module's root.
func moduleFiles(t *testing.T, e *environment, tools, module, pattern string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir, cmd.Env = filepath.Join(e.root, "build/toolchain/modules", tools), append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	must(t, err)
	var source struct{ Dir string }
	must(t, json.Unmarshal(out, &source))
	paths, err := filepath.Glob(filepath.Join(source.Dir, pattern))
	must(t, err)
	if len(paths) == 0 {
		t.Fatalf("module %s has no %s", module, pattern)
	}
	var contents []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		must(t, err)
		contents = append(contents, string(content))
	}
	return contents
}

// withoutWorkloads removes workloads and their configuration from a manifest.
func withoutWorkloads(manifest string) string {
	var objects []string
	for _, document := range strings.Split(manifest, "\n---\n") {
		if !strings.Contains(document, "kind: DaemonSet") && !strings.Contains(document, "kind: ConfigMap") {
			objects = append(objects, document)
		}
	}
	return strings.Join(objects, "\n---\n")
}
