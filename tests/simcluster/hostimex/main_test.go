// Package hostimex tests compute domains that the nodes' own service nvidia-imex serves (computeDomains.imex: host), on a simulated cluster
// that all of its tests share.
package hostimex

import (
	"context"
	"fmt"
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 2

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	up, err := fixture.Up(context.Background(), fixture.Options{
		Nodes: nodes, Values: map[string]any{"computeDomains": map[string]any{"imex": "host"}},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		return 1
	}
	defer up.Down()
	shared = up
	code := m.Run()
	if err := up.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the cluster did not last:", err)
		code = 1
	}
	return code
}
