//go:build faults

package bydemand

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
	"gpufabric.io/tests/simcluster/manifests"
)

const (
	nodes = 2
	// nodeGrace is short, so that a lost lease is noticed within a scenario.
	nodeGrace = 8 * time.Second
)

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
		Nodes: nodes, Mode: fabric.AsProcesses, NodeGrace: nodeGrace, RestartBackoff: 200 * time.Millisecond, Proxy: true,
		Values: map[string]any{
			"computeDomains": map[string]any{"enabled": false},
			"controller":     map[string]any{"replicas": 2},
			"gpus":           map[string]any{"enabled": true, "layoutsByDemand": true},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		return 1
	}
	defer up.Down()
	shared = up
	if err := prepare(up); err != nil {
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

// prepare waits for the controllers, and offers all GPUs by demand.
func prepare(up *fixture.Cluster) error {
	if err := up.AwaitDeployments(context.Background()); err != nil {
		return err
	}
	layout, err := manifests.Parse([]byte(`
apiVersion: gpufabric.io/v1alpha1
kind: MIGLayout
metadata: {name: by-demand}
spec: {auto: {shapes: [{profile: whole}, {profile: 1g.23gb}, {profile: 2g.47gb}, {profile: 3g.93gb}]}}
`))
	if err != nil {
		return err
	}
	return up.Manifests.Apply(context.Background(), "", layout...)
}

// TestLayoutsByDemandSurviveFaults runs every fault for each seed, one after another since they share the planner. It asserts that every
// pod runs in the end, so no claim is refused for ever, that no two pods have the same device or overlapping ones, and that nothing remains
// after deletion.
func TestLayoutsByDemandSurviveFaults(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			for _, f := range []struct {
				name string
				run  func(*scenario)
			}{
				{"the planner is killed at each of its steps", killPlannerAtEachStep},
				{"the planner at work cannot renew its lease, and the other takes over", loseLease},
				{"gpu-plugins are killed at their reports", killPluginsAtReports},
				{"gpu-plugins are killed between the steps of a cut", killPluginsInCuts},
				{"planner and gpu-plugins are killed at any moment", killAnyTime},
				{"a node is silent, then reboots from scratch", silenceAndReboot},
				{"the API server fails", failAPIServer},
				{"watch events are late, repeated and out of order", disturbWatches},
			} {
				name := fnv.New64a()
				_, _ = name.Write([]byte(f.name)) // never fails
				t.Run(f.name, func(t *testing.T) {
					begin := time.Now()
					defer func() { t.Logf("%.1f s", time.Since(begin).Seconds()) }()
					s := &scenario{t: t, n: shared.Namespace(t), seed: uint64(seed), random: rand.New(rand.NewPCG(uint64(seed), name.Sum64()))}
					defer s.describe()
					f.run(s)
				})
			}
		})
	}
}
