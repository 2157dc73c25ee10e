//go:build faults

package shares

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

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	// profile is that of a machine with few GPUs, which few pods fill.
	profile = "t4-edge"
	gpus    = 4
)

var (
	seeds = flag.Int("seeds", 1, "how many seeds to run, from 1") //nolint:gochecknoglobals // a flag
	first = flag.Int("first", 1, "the first seed")                //nolint:gochecknoglobals // a flag

	shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests
	writes *observers       //nolint:gochecknoglobals // likewise
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	up, err := fixture.Up(context.Background(), fixture.Options{
		// Only processes can be killed without a chance to clean up.
		Nodes: len(faults()), Profile: profile, Mode: fabric.AsProcesses, RestartBackoff: 200 * time.Millisecond, Proxy: true,
		Values: map[string]any{
			"computeDomains": map[string]any{"enabled": false}, "gpus": map[string]any{"enabled": true},
			// A simulated node has no container runtime, so no NRI either.
			"vgpu":      map[string]any{"enabled": true, "nriSocket": ""},
			"scheduler": map[string]any{"enabled": true},
			"webhook":   map[string]any{"failurePolicy": "Fail"},
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
	writes = &observers{}
	defer writes.attach(up.Proxy)()
	status := m.Run()
	if err := up.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the cluster did not last:", err)
		status = 1
	}
	return status
}

// fault is a script of failures while a scenario's pods come and go.
type fault struct {
	name string
	run  func(*scenario)
}

func faults() []fault {
	return []fault{
		{"vgpu-plugin and vgpu-monitor are killed before an allocation", killBeforeAllocation},
		{"vgpu-plugin and vgpu-monitor are killed in an allocation", killInAllocation},
		{"vgpu-plugin is killed as it says that a pod has its share", killAtItsReport},
		{"vgpu-plugin and vgpu-monitor are killed after allocations", killAfterAllocation},
		{"vgpu-plugin and vgpu-monitor are killed while pods end", killWhilePodsEnd},
		{"the scheduler is killed between reserve and bind", killBetweenReserveAndBind},
		{"the webhook is killed under writes that must pass it", killWebhook},
	}
}

// TestSharesSurviveFaults runs every fault for each seed, each on a separate node. It asserts that every pod with room runs in
// the end, that no GPU is overbooked, and that nothing remains after deletion.
func TestSharesSurviveFaults(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			nodes := rand.New(rand.NewPCG(uint64(seed), 0)).Perm(len(faults()))
			var running sync.WaitGroup
			for at, f := range faults() {
				running.Go(func() { play(t, uint64(seed), f, nodes[at]) })
			}
			running.Wait()
		})
	}
}

// play runs one fault on its node. Its random choices depend only on the seed and the fault.
func play(t *testing.T, seed uint64, f fault, node int) {
	name := fnv.New64a()
	_, _ = name.Write([]byte(f.name)) // never fails
	t.Run(f.name, func(t *testing.T) {
		begin := time.Now()
		defer func() { t.Logf("node %d, %.1f s", node, time.Since(begin).Seconds()) }()
		s := &scenario{t: t, n: shared.Namespace(t), node: node, random: rand.New(rand.NewPCG(seed, name.Sum64()))}
		defer s.tell()
		f.run(s)
	})
}
