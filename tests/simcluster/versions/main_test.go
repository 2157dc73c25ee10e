// Package versions runs each part of gpufabric against a control plane of another version of Kubernetes: what it serves must work, and what
// its feature gates take away must be withheld and named. `make test` has it against an emulated 1.35, `make test-versions` against the
// programs of each version.
package versions

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/tests/simcluster/fixture"
)

// Each node is for one subject.
const (
	formsNode  = iota // GPUs in all forms at once
	faultNode         // one of its GPUs breaks
	staticNode        // an administrator has made MIG instances on a GPU
	pluginNode        // the device plugin API gives out one of its GPUs
	nodes
)

const gpusPerNode = 4

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

// machine is each node's hardware.
var machine *profile.Profile //nolint:gochecknoglobals // as shared

func TestMain(m *testing.M) {
	var err error
	if machine, err = profile.Load("gb200-nvl72"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(fixture.Main(m, &shared, fixture.Options{Nodes: nodes, Kubernetes: fixture.Kubernetes{Emulates: "1.35"}, Values: map[string]any{
		"gpus": map[string]any{"enabled": true, "forms": map[string]any{"default": map[string]any{"form": "flexible"}},
			"devicePlugin": []any{machine.Node(pluginNode).GPUs[0].UUID}},
		"rdma": map[string]any{"enabled": true, "namespace": "kube-system"}, // where the seed's ConfigMap is
	}}, fixture.Published("gpu.nvidia.com", nodes), fixture.Published("compute-domain.nvidia.com", nodes)))
}

const (
	taints   = "DRADeviceTaints"
	counters = "DRAPartitionableDevices"
	shares   = "DRAConsumableCapacity"
	extended = "DRAExtendedResource"
)

var enabled = regexp.MustCompile(`(?m)^kubernetes_feature_enabled\{name="(\w+)",stage="\w*"\} 1$`)

// gates are the feature gates that are on, as the API server reports them.
func gates(t *testing.T) map[string]bool {
	t.Helper()
	metrics, err := shared.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]bool{}
	for _, match := range enabled.FindAllStringSubmatch(string(metrics), -1) {
		on[match[1]] = true
	}
	if !on["DynamicResourceAllocation"] {
		t.Fatalf("the API server's metrics name no gate DynamicResourceAllocation that is on, but %v", on)
	}
	return on
}

// version is the minor version that the API server behaves as.
func version(t *testing.T) string {
	t.Helper()
	info, err := shared.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if info.EmulationMinor != "" {
		return info.EmulationMinor
	}
	return strings.TrimSuffix(info.Minor, "+")
}
