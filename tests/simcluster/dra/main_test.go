// Package dra tests the GPU and RDMA drivers together on a simulated cluster, where both offer everything through DRA: whole
// GPUs, MIG instances, NICs, GPUs with NICs, and the extended resources that DRA serves.
package dra

import (
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	nodes       = 3
	gpusPerNode = 4
)

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	mode := fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS"))
	os.Exit(fixture.Main(m, &shared, fixture.Options{Nodes: nodes, Mode: mode, Values: map[string]any{
		"computeDomains": map[string]any{"enabled": false},
		"gpus":           map[string]any{"enabled": true, "forms": map[string]any{"default": map[string]any{"form": "flexible"}}},
		// The seed's ConfigMap is in kube-system, and its pods request an extended resource.
		"rdma": map[string]any{"enabled": true, "namespace": "kube-system", "devicePlugin": false,
			"extendedResources": []any{"rdma/hca_shared_devices_a"}},
	}}, fixture.Published("gpu.nvidia.com", nodes), fixture.Published("rdma.gpufabric.io", nodes)))
}
