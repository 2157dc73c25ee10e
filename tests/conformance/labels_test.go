package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gpufabric.io/fakes/profile"
)

// pciFunctions lists the functions on the bus.
func pciFunctions() ([]string, error) {
	entries, err := os.ReadDir("/sys/bus/pci/devices")
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

func TestGPUFeatureDiscoveryLabelsTheNode(t *testing.T) {
	program := peer(t, "gpu-feature-discovery")
	for _, name := range withGPUs(t) {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			file := filepath.Join(n.root, "labels")
			n.run(t, program, "--oneshot", "--no-timestamp", "--output-file", file)
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := labels(string(content))
			for label, want := range expectedLabels(n.Node) {
				if got["nvidia.com/"+label] != want {
					t.Errorf("%s is %q, want %q", label, got["nvidia.com/"+label], want)
				}
			}
			if clique := got["nvidia.com/gpu.clique"]; !inClique(n.Node) && clique != "" {
				t.Errorf("gpu.clique is %q on a machine without a fabric", clique)
			}
		})
	}
}

func expectedLabels(n *profile.Node) map[string]string {
	p := n.Profile
	model := p.GPUs.Model
	major, minor, _ := strings.Cut(model.ComputeCapability, ".")
	want := map[string]string{
		"gpu.count": fmt.Sprint(len(n.GPUs)), "gpu.product": strings.ReplaceAll(model.Name, " ", "-"), "gpu.memory": inMiB(model, "%d", ""),
		"gpu.machine":       strings.ReplaceAll(p.Host.Product, " ", "-"),
		"gpu.compute.major": major, "gpu.compute.minor": minor, "cuda.driver-version.full": p.Driver.Version,
		"cuda.runtime-version.full": p.Driver.CUDA, "mig.capable": fmt.Sprint(model.MIG != nil),
	}
	if inClique(n) {
		want["gpu.clique"] = fmt.Sprintf("%s.%d", n.ClusterUUID, p.Fabric.CliqueID)
	}
	return want
}

// inClique reports whether the machine shares NVLink with others. A machine with only its own switches reports a cluster of
// zeros.
func inClique(n *profile.Node) bool {
	return n.Profile.Fabric != nil && strings.Trim(n.ClusterUUID, "0-") != ""
}

// labels reads a file of key=value lines.
func labels(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			all[key] = value
		}
	}
	return all
}

// nfdOptions are those of the charts of NVIDIA's operators. Without them NFD does not look at network cards, and puts the class
// into its labels.
const nfdOptions = `{"sources":{"pci":{"deviceClassWhitelist":["02","03"],"deviceLabelFields":["vendor"]}}}`

// noCluster is a kubeconfig for a program that requires one and does not use it.
const noCluster = "apiVersion: v1\nkind: Config\ncurrent-context: none\ncontexts: [{name: none, context: {cluster: none}}]\n" +
	"clusters: [{name: none, cluster: {server: \"http://127.0.0.1:1\"}}]\n"

var pciLabel = regexp.MustCompile(`feature\.node\.kubernetes\.io/pci-([0-9a-f]{4})\.present: "true"`)

func TestNFDLabelsTheVendorsOfTheNode(t *testing.T) {
	program := peer(t, "nfd-worker")
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			kubeconfig := filepath.Join(n.root, "kubeconfig")
			if err := os.WriteFile(kubeconfig, []byte(noCluster), 0o600); err != nil {
				t.Fatal(err)
			}
			// Its log has the labels that it would publish.
			_, said := n.run(t, program, "-kubeconfig", kubeconfig, "-no-publish", "-oneshot", "-feature-sources=pci", "-label-sources=pci",
				"-options", nfdOptions, "-v", "3")
			got := map[string]bool{}
			for _, match := range pciLabel.FindAllStringSubmatch(said, -1) {
				got[match[1]] = true
			}
			if got["10de"] != (len(n.GPUs) > 0) || got["15b3"] != (len(n.NICs) > 0) {
				t.Errorf("pci-10de.present %v with %d GPUs, pci-15b3.present %v with %d NICs; it said:\n%s", got["10de"], len(n.GPUs), got["15b3"],
					len(n.NICs), said)
			}
		})
	}
}
