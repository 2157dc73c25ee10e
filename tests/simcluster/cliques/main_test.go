// Package cliques tests compute domains that are channels of their clique's IMEX daemons (computeDomains.imex: clique), on a simulated
// cluster that all of its tests share.
package cliques

import (
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 4

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	os.Exit(fixture.Main(m, &shared, fixture.Options{
		Nodes: nodes, Mode: fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS")),
		Values: map[string]any{"computeDomains": map[string]any{"imex": "clique", "certificates": "own"}},
	}))
}
