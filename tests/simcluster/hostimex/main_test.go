// Package hostimex tests compute domains that the nodes' own service nvidia-imex serves (computeDomains.imex: host), on a simulated cluster
// that all of its tests share.
package hostimex

import (
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 2

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	os.Exit(fixture.Main(m, &shared, fixture.Options{
		Nodes: nodes, Values: map[string]any{"computeDomains": map[string]any{"imex": "host"}},
	}))
}
