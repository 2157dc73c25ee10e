//go:build faults

package faults

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

// fault is one thing that goes wrong. inject returns what mends it; victim is the number of a node of the domain.
type fault struct {
	name   string
	inject func(t *testing.T, n *fixture.Namespace, victim int, random *rand.Rand) (heal func())
}

func faults() []fault {
	return []fault{
		{"a plugin is killed", killPlugin},
		{"every plugin is killed", killEveryPlugin},
		{"the controller is killed thrice", killController},
		{"the API server stands still", pauseAPIServer},
		{"the API server is killed", killAPIServer},
		{"a node loses its lease", loseLease},
		{"a node reboots", reboot},
		{"a state directory cannot be written", blockState},
	}
}

func nothing() {}

func killPlugin(_ *testing.T, n *fixture.Namespace, victim int, _ *rand.Rand) func() {
	n.KillPlugin("compute-domain-plugin", victim)
	return nothing
}

func killEveryPlugin(_ *testing.T, n *fixture.Namespace, _ int, _ *rand.Rand) func() {
	for i := range nodes {
		n.KillPlugin("compute-domain-plugin", i)
	}
	return nothing
}

// killController kills it at three moments, so that over the seeds every step of its reconcile is hit.
func killController(_ *testing.T, n *fixture.Namespace, _ int, random *rand.Rand) func() {
	for range 3 {
		n.KillController()
		time.Sleep(time.Second + time.Duration(random.Int64N(int64(time.Second)))) // it is back after its back-off of a second
	}
	return nothing
}

func pauseAPIServer(t *testing.T, _ *fixture.Namespace, _ int, random *rand.Rand) func() {
	server := shared.Plane.Process("kube-apiserver")
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2*time.Second + time.Duration(random.Int64N(int64(8*time.Second))))
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	return nothing
}

func killAPIServer(t *testing.T, _ *fixture.Namespace, _ int, _ *rand.Rand) func() {
	if err := shared.Plane.Restart(t.Context(), "kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	return nothing
}

func loseLease(t *testing.T, _ *fixture.Namespace, victim int, _ *rand.Rand) func() {
	node := shared.Fleet.Nodes()[victim]
	if err := node.Silence(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	time.Sleep(nodeGrace + 3*time.Second) // until the controller manager has noticed
	return func() {
		if err := node.Silence(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
}

func reboot(_ *testing.T, _ *fixture.Namespace, victim int, _ *rand.Rand) func() {
	shared.Fleet.Reboot(victim)
	return nothing
}

// blockState puts a file where the driver's state directory is: whatever it writes fails, root or not.
func blockState(t *testing.T, n *fixture.Namespace, victim int, _ *rand.Rand) func() {
	state := filepath.Join(cluster.NodeDir(n.Dir, victim), "r/var/lib/gpufabric")
	aside := state + ".aside"
	if err := os.Rename(state, aside); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(state, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // for a prepare or two to fail
	return func() {
		if err := os.Remove(state); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(aside, state); err != nil {
			t.Fatal(err)
		}
	}
}
