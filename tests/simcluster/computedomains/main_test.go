// Package computedomains tests the controller, node plugins and daemons of compute domains together, on a simulated cluster
// that all of its tests share: a rack of 18 nodes.
package computedomains

import (
	"os"
	"testing"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 18

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	os.Exit(fixture.Main(m, &shared, fixture.Options{Nodes: nodes, Mode: fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS"))}))
}
