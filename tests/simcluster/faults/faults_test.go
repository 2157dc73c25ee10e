//go:build faults

package faults

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/manifests"
	"gpufabric.io/tests/simcluster/smalldisk"
)

const (
	nodes = 12
	// size is how many nodes each scenario has for itself. Its domain has all of them.
	size = 2
	// nodeGrace is short, so that a lost lease is noticed within a scenario.
	nodeGrace = 8 * time.Second
)

var (
	seeds = flag.Int("seeds", 1, "how many seeds to run, from 1") //nolint:gochecknoglobals // a flag
	first = flag.Int("first", 1, "the first seed")                //nolint:gochecknoglobals // a flag

	shared    *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests
	files     *changes         //nolint:gochecknoglobals // likewise
	fullDisks error            //nolint:gochecknoglobals // why full disks are impossible; likewise
)

func TestMain(m *testing.M) {
	flag.Parse()
	status, ran, err := smalldisk.Enter()
	if !ran {
		fullDisks = err
		status = run(m)
	}
	os.Exit(status)
}

func run(m *testing.M) int {
	up, err := fixture.Up(context.Background(), fixture.Options{
		// Only processes can be killed without a chance to clean up.
		Nodes: nodes, Mode: fabric.AsProcesses, NodeGrace: nodeGrace, RestartBackoff: 200 * time.Millisecond, Proxy: true,
		Values: map[string]any{
			"gpus": map[string]any{"enabled": true, "forms": map[string]any{"default": map[string]any{"form": "flexible"}}},
			"rdma": map[string]any{"enabled": true, "devicePlugin": false}, // DRA cannot allocate what a device plugin counts
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		return 1
	}
	defer up.Down()
	shared = up
	if err := offerNICs(up); err != nil {
		fmt.Fprintln(os.Stderr, "offer NICs to one claim each:", err)
		return 1
	}
	if files, err = openChanges(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go files.run(ctx)
	status := m.Run()
	if err := up.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the cluster did not last:", err)
		status = 1
	}
	return status
}

// pool is an RDMAPool whose NICs go to one claim each.
const pool = "whole_hca"

func offerNICs(up *fixture.Cluster) error {
	objects, err := manifests.Parse(fmt.Appendf(nil, `{apiVersion: gpufabric.io/v1alpha1, kind: RDMAPool, metadata: {name: whole},
spec: {resourceName: %s, mode: Exclusive, selectors: {vendors: ["15b3"]}}}`, pool))
	if err != nil {
		return err
	}
	return up.Manifests.Apply(context.Background(), fixture.System, objects...)
}

// fault is a script of failures while a scenario's pods come and go.
type fault struct {
	name string
	run  func(*scenario)
}

// TestDriversSurviveFaults runs every fault for each seed. It asserts that every claim is prepared in the end and until then
// reports why it is not, that no device has two holders, and that nothing remains after deletion. Faults of a node, a plugin or
// the controller run at the same time on separate nodes. When the API server is gone, no other fault happens.
func TestDriversSurviveFaults(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 0))
			order := random.Perm(nodes)
			groups := make(chan []int, nodes/size)
			for i := 0; i < nodes; i += size {
				groups <- order[i : i+size]
			}
			list := sideBySide()
			random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			var running sync.WaitGroup
			for _, f := range list {
				running.Go(func() {
					group := <-groups
					defer func() { groups <- group }()
					play(t, uint64(seed), f, group)
				})
			}
			running.Wait()
			kinds := outages()
			play(t, uint64(seed), kinds[seed%len(kinds)], order[:size])
		})
	}
}

func sideBySide() []fault {
	return []fault{
		{"plugins are killed before they prepare", killBeforePrepare},
		{"plugins are killed while they prepare", killDuringPrepare},
		{"plugins are killed after they prepared", killAfterPrepare},
		{"plugins are killed while they unprepare", killDuringUnprepare},
		{"the controller is killed at each of its steps", killControllerAtEachStep},
		{"a node is silent, then reboots from scratch", silenceAndReboot},
		{"a state directory cannot be written", blockState},
		{"a disk is full", fillDisk},
		{"watch events are late, repeated and out of order", disturbWatches},
		{"clocks are stepped", stepClocks},
	}
}

// outages are the faults of the API server, one for each seed. After long refusal of connections, Kubernetes' own clients wait
// for up to a minute before they try again, so that outage is rare.
func outages() []fault {
	const long = 30 * time.Second
	still := fault{"the API server stands still for 30 s", func(s *scenario) { s.pauseAPIServer(long) }}
	crash := fault{"the API server is killed and starts again", func(s *scenario) { s.killAPIServer(0) }}
	return []fault{{"the API server is killed and starts again after 30 s", func(s *scenario) { s.killAPIServer(long) }}, still, crash, still,
		crash}
}

// play runs one fault on its nodes. Its random choices depend only on the seed and the fault.
func play(t *testing.T, seed uint64, f fault, group []int) {
	name := fnv.New64a()
	_, _ = name.Write([]byte(f.name)) // never fails
	t.Run(f.name, func(t *testing.T) {
		begin := time.Now()
		defer func() { t.Logf("nodes %v, %.1f s", group, time.Since(begin).Seconds()) }()
		random := rand.New(rand.NewPCG(seed, name.Sum64()))
		f.run(&scenario{t: t, n: shared.Namespace(t), nodes: group, victim: group[random.IntN(size)], seed: seed, random: random})
	})
}

func nodeDir(i int) string { return cluster.NodeDir(shared.Dir, i) }
