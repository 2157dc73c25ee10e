//go:build faults

package cliques

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

// nodes are all of one clique.
const nodes = 4

var (
	seeds = flag.Int("seeds", 1, "how many seeds to run, from 1") //nolint:gochecknoglobals // a flag
	first = flag.Int("first", 1, "the first seed")                //nolint:gochecknoglobals // a flag

	shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	up, err := fixture.Up(context.Background(), fixture.Options{
		// Only processes can be killed without a chance to clean up.
		Nodes: nodes, Mode: fabric.AsProcesses, RestartBackoff: 200 * time.Millisecond, Proxy: true,
		Values: map[string]any{
			"computeDomains": map[string]any{"imex": "clique"},
			"controller":     map[string]any{"replicas": 2},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		return 1
	}
	defer up.Down()
	shared = up
	if err := up.AwaitDeployments(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status := m.Run()
	if err := up.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the cluster did not last:", err)
		status = 1
	}
	return status
}

// TestDomainsOfACliqueSurviveFaults runs every fault for each seed, one after another since they share the clique and the
// controllers. It asserts that no two domains have the same channel, that each domain has one channel on all its nodes and is
// Ready in the end, that nothing remains after deletion, and that no IMEX session ends but where the fault is its end.
func TestDomainsOfACliqueSurviveFaults(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			for _, f := range []struct {
				name string
				run  func(*scenario)
			}{
				{"daemons are cut off from each other, and come back", cutPeers},
				{"the session of a node's daemon ends", endSession},
				{"compute-domain-plugins are killed", killPlugins},
				{"a node is lost, and comes back", loseNode},
				{"the controller at work cannot renew its lease, and the other takes over", loseLease},
				{"the controller at work is killed at a step, and the other takes over", killAtStep},
			} {
				name := fnv.New64a()
				_, _ = name.Write([]byte(f.name)) // never fails
				t.Run(f.name, func(t *testing.T) {
					begin := time.Now()
					defer func() { t.Logf("%.1f s", time.Since(begin).Seconds()) }()
					f.run(&scenario{t: t, n: shared.Namespace(t), random: rand.New(rand.NewPCG(uint64(seed), name.Sum64()))})
				})
			}
		})
	}
}
