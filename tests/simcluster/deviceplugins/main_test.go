// Package deviceplugins tests the drivers together on a simulated cluster where they serve the kubelet's device plugin API:
// RDMA pools as extended resources, and shares of GPUs as Volcano's scheduler assigns them.
package deviceplugins

import (
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 2

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	mode := fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS"))
	os.Exit(fixture.Main(m, &shared, fixture.Options{Nodes: nodes, Mode: mode, Values: map[string]any{
		"computeDomains": map[string]any{"enabled": false},
		"rdma":           map[string]any{"enabled": true, "namespace": "kube-system"},
		// A simulated node has no container runtime, so no NRI either.
		"gpus": map[string]any{"enabled": true},
		"vgpu": map[string]any{"enabled": true, "nriSocket": "", "schedulerAccounts": []any{"admin"}}, // the tests play the scheduler
	}}))
}
