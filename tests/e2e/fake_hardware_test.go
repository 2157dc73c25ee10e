package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"gpufabric.io/build/images"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/kindcluster/standin"
	"gpufabric.io/tests/rootfs"
)

// hardwarePage has the two commands that turn kind nodes into GPU nodes.
const hardwarePage = "charts/fake-hardware/README.md"

// TestFakeHardwareChartServesPodsOfOthers follows the page of the chart: a cluster as of kind.yaml, one `helm install`, NVIDIA's device
// plugin by its own chart, and a pod that asks it for two GPUs.
func TestFakeHardwareChartServesPodsOfOthers(t *testing.T) {
	e := newCluster(t, "gpufabric-hardware", 2)
	t.Run("a container of plain Docker gets one GPU", e.testPlainDocker)
	must(t, e.Serve(t.Context(), e.printer, "fakefabric"))
	plugin := e.serveDevicePlugin(t)
	commands := e.pageCommands(t, hardwarePage)
	create, install, found := strings.Cut(commands[0], "\n")
	if !found || create != "kind create cluster --config fakes/action/kind.yaml" {
		t.Fatalf("%s begins with %q; want kind's command and Helm's", hardwarePage, commands[0])
	}
	e.isAsConfigured(t, "fakes/action/kind.yaml")
	// kind's own taint, which other tests' pods do not tolerate.
	e.kubectl(t, "taint", "node", e.Nodes[0], "node-role.kubernetes.io/control-plane:NoSchedule")

	started := time.Now()
	// A kind node is a container, which sees the GPUs of its host machine: the page has that value for such machines.
	e.follow(t, install, "oci://ghcr.io/gpufabric/charts/fake-hardware", "charts/fake-hardware --set besideGPUs=true")
	e.follow(t, "kubectl rollout status daemonset/fake-hardware --timeout=4m")
	measured(t, "helm install to fake hardware on two nodes", time.Since(started))

	given := e.follow(t, commands[1], "nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin --version "+
		strings.TrimPrefix(toolchain.NVIDIADevicePlugin, "v"), plugin)
	measured(t, "helm install to the end of a pod with two of NVIDIA's device plugin", time.Since(started))
	gpus := regexp.MustCompile(`(?m)^GPU \d+: NVIDIA H100 .*\(UUID: (GPU-\S+)\)`).FindAllStringSubmatch(given, -1)
	line := regexp.MustCompile(`(?m)^given (\S+),(\S+)$`).FindStringSubmatch(given)
	if len(gpus) != 8 || line == nil || line[1] == line[2] {
		t.Fatalf("the pod printed:\n%s\nwant two UUIDs and the eight GPUs of its node", given)
	}
	for _, uuid := range line[1:] {
		if !slices.ContainsFunc(gpus, func(g []string) bool { return g[1] == uuid }) {
			t.Errorf("the pod was given %s, which is not a GPU of its node:\n%s", uuid, given)
		}
	}
	for node, want := range map[string]string{e.Nodes[0]: "", e.Workers()[0]: "8", e.Workers()[1]: "8"} {
		// One node's plugin is enough for the pod.
		e.eventually(t, fmt.Sprintf("%s to offer %q GPUs", node, want), func(ctx context.Context) (bool, string, error) {
			got, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.status.allocatable.nvidia\.com/gpu}`)
			return err == nil && got == want, got, err
		})
	}
}

// testPlainDocker gives a container one GPU of a node without a cluster, as the page of the fakes does it for a Docker without CDI.
func (e *environment) testPlainDocker(t *testing.T) {
	const page = "fakes/README.md"
	at := slices.IndexFunc(e.pageCommands(t, page), func(block string) bool { return strings.Contains(block, "--device $N/") })
	if at < 0 {
		t.Fatalf("%s has no command for a Docker without CDI", page)
	}
	root := t.TempDir()
	e.follow(t, "fakes/build/fakefabric render --profile h100-hgx --root "+root)
	listing := e.follow(t, e.pageCommands(t, page)[at], "N=/var/lib/fakefabric", "N="+root, "-v $N/state:$N/state",
		"-v $N/state:/var/lib/fakefabric/state", "ubuntu nvidia-smi", "--entrypoint nvidia-smi "+e.Image+" -L")
	want := e.follow(t, root+"/driver/usr/bin/nvidia-smi -i 2 --query-gpu=uuid --format=csv,noheader")
	if strings.Count(listing, "GPU-") != 1 || !strings.Contains(listing, strings.TrimSpace(want)) {
		t.Errorf("the container sees %swant GPU 2 alone, %s", listing, want)
	}
}

// serveDevicePlugin gives the cluster the image of NVIDIA's device plugin where that cannot be pulled, and returns the plugin's own chart.
func (e *environment) serveDevicePlugin(t *testing.T) (chart string) {
	t.Helper()
	tools, err := toolchain.Ensure(t.Context(), "nvidia-device-plugin")
	must(t, err)
	must(t, e.ServeStandIns(t.Context(), e.printer,
		standin.Image{Name: "ubuntu:24.04", Command: []string{"bash"}, Base: rootfs.Base()},
		standin.Image{Name: "nvcr.io/nvidia/k8s-device-plugin:" + toolchain.NVIDIADevicePlugin, Base: rootfs.Base(),
			Files: []images.File{{Path: "/usr/bin/nvidia-device-plugin", From: tools["nvidia-device-plugin"]}}}))
	module, err := toolchain.ModuleDirectory(t.Context(), "nvidia-device-plugin")
	must(t, err)
	return filepath.Join(module, "deployments/helm/nvidia-device-plugin")
}

// isAsConfigured compares the cluster's nodes with kind's configuration: the machine's own settings are added to those of the page.
func (e *environment) isAsConfigured(t *testing.T, path string) {
	t.Helper()
	var config struct {
		Nodes []struct{ Role string }
	}
	must(t, yaml.UnmarshalStrict([]byte(e.file(t, path)), &struct {
		Kind, APIVersion string
		Nodes            *[]struct{ Role string }
	}{Nodes: &config.Nodes}))
	var roles []string
	for _, node := range config.Nodes {
		roles = append(roles, node.Role)
	}
	want := slices.Concat([]string{"control-plane"}, slices.Repeat([]string{"worker"}, len(e.Workers())))
	if !slices.Equal(roles, want) {
		t.Fatalf("%s has nodes %q, and the cluster of this test %q", path, roles, want)
	}
}

var fenced = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// pageCommands are the blocks of commands of a page.
func (e *environment) pageCommands(t *testing.T, path string) []string {
	t.Helper()
	var blocks []string
	for _, match := range fenced.FindAllStringSubmatch(e.file(t, path), -1) {
		if match[1] == "" || match[1] == "sh" {
			blocks = append(blocks, match[2])
		}
	}
	if len(blocks) < 2 {
		t.Fatalf("%s has %d blocks of commands", path, len(blocks))
	}
	return blocks
}

// follow runs commands of a page in the root of the checkout, as a reader would, after the replacement of each first text, which must be
// there, by the second.
func (e *environment) follow(t *testing.T, commands string, replacements ...string) string {
	t.Helper()
	for pair := range slices.Chunk(replacements, 2) {
		if !strings.Contains(commands, pair[0]) {
			t.Fatalf("%q is not in\n%s", pair[0], commands)
		}
		commands = strings.ReplaceAll(commands, pair[0], pair[1])
	}
	tools, err := toolchain.Ensure(t.Context(), "helm", "kubectl")
	must(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", commands)
	cmd.Dir = e.root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.Kubeconfig,
		fmt.Sprintf("PATH=%s:%s:%s", filepath.Dir(tools["helm"]), filepath.Dir(tools["kubectl"]), os.Getenv("PATH")))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s\n%s", err, commands, out, e.state(t))
	}
	return string(out)
}
