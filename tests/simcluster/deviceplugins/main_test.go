// Package deviceplugins tests the drivers together on a simulated cluster where they serve the kubelet's device plugin API:
// RDMA pools as extended resources, and shares of GPUs as Volcano's scheduler assigns them.
package deviceplugins

import (
	"context"
	"fmt"
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 2

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx := context.Background()
	up, err := fixture.Up(ctx, fixture.Options{Nodes: nodes, Mode: fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS")), Values: map[string]any{
		"computeDomains": map[string]any{"enabled": false},
		"rdma":           map[string]any{"enabled": true, "namespace": "kube-system"},
		// A simulated node has no container runtime, so no NRI either.
		"gpus": map[string]any{"enabled": true},
		"vgpu": map[string]any{"enabled": true, "nriSocket": "", "schedulerAccounts": []any{"admin"}}, // the tests play the scheduler
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		return 1
	}
	defer up.Down()
	shared = up
	if err := cluster.AwaitSlices(ctx, up.Client, "rdma.gpufabric.io", nodes); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := up.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the cluster did not last:", err)
		code = 1
	}
	return code
}
