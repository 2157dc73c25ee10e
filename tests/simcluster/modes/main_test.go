// Package modes tests a cluster that goes from one mode of IMEX daemons to another and back (computeDomains.imex) while compute domains are
// in use, on a simulated cluster that all of its tests share.
package modes

import (
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 3

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	os.Exit(fixture.Main(m, &shared, fixture.Options{
		Nodes: nodes, Mode: fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS")), Values: valuesOf("domain"),
	}))
}

func valuesOf(mode string) map[string]any {
	return map[string]any{"computeDomains": map[string]any{"imex": mode}}
}
