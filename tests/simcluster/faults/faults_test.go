//go:build faults

package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	nodes = 6
	// size is how many nodes each domain has; the others stand by.
	size = 4
	// nodeGrace is short, so that a lost lease is noticed within a scenario.
	nodeGrace = 12 * time.Second
)

var (
	seeds = flag.Int("seeds", 1, "how many seeds to run, from 1") //nolint:gochecknoglobals // a flag
	first = flag.Int("first", 1, "the first seed")                //nolint:gochecknoglobals // a flag
	mode  = flag.String("containers", string(fabric.AsProcesses), "how containers run; only processes can be killed without a last word")

	shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	up, err := fixture.Up(context.Background(), fixture.Options{Nodes: nodes, Mode: fabric.Mode(*mode), NodeGrace: nodeGrace})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		return 1
	}
	defer up.Down()
	shared = up
	return m.Run()
}

// TestDomainsSurviveFaults forms a domain for each seed and fault, with the fault at a time of the seed's, and holds: every pod
// runs in the end, no channel is held by two pods of a node, and nothing is left when all is deleted.
func TestDomainsSurviveFaults(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		list := faults()
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, f := range list {
			// The delay reaches from before the first prepare to after the last: a domain of this size forms in one to two seconds.
			delay := time.Duration(random.Int64N(int64(2500 * time.Millisecond)))
			t.Run(fmt.Sprintf("seed %d/%s after %s", seed, f.name, delay.Round(time.Millisecond)), func(t *testing.T) {
				scenario(t, f, delay, random)
			})
		}
	}
}

func scenario(t *testing.T, f fault, delay time.Duration, random *rand.Rand) {
	n := shared.Namespace(t)
	members := random.Perm(nodes)[:size]
	n.Domain("d", size)
	for _, i := range members {
		n.Pod(member(i), "d-channel", cluster.NodeName(i))
	}
	time.Sleep(delay) // the seed's, not an event
	heal := f.inject(t, n, members[random.IntN(len(members))], random)
	holdNobodyTwice(t, n)
	heal()
	ready := n.AwaitDomain("d", func(d domain.Domain) bool { return d.Status == domain.Ready && d.Ready == size })
	for _, i := range members {
		n.AwaitPod(member(i), fixture.Running)
	}
	holdNobodyTwice(t, n)
	for _, i := range members {
		n.DeletePod(member(i))
	}
	n.DeleteDomain("d")
	n.AwaitNothingLeft(ready.UID)
}

func member(i int) string { return fmt.Sprintf("member-%d", i) }

// holdNobodyTwice fails the test if two running pods of a node have the same channel.
func holdNobodyTwice(t *testing.T, n *fixture.Namespace) {
	t.Helper()
	holders := map[string]string{}
	for _, pod := range n.RunningPods() {
		for _, container := range n.TryReceived(&pod) {
			for _, device := range container.Devices {
				key := pod.Spec.NodeName + " " + device.Path
				if other, held := holders[key]; held && other != podName(&pod) {
					t.Errorf("%s is held by %s and by %s", key, other, podName(&pod))
				}
				holders[key] = podName(&pod)
			}
		}
	}
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
