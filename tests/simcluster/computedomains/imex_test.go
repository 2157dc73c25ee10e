package computedomains

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

// stateOf is the directory in which node i keeps its IMEX session and faults.
func stateOf(i int) string {
	return filepath.Join(fabric.HardwareOf(cluster.NodeDir(shared.Dir, i)), "state")
}

// form makes a domain over nodes from first on, with a pod on each, and returns the nodes' memory that these imported.
func form(n *fixture.Namespace, t *testing.T, first, size int) []*imex.Import {
	t.Helper()
	n.Domain("d", size)
	for i := range size {
		n.Pod(fmt.Sprintf("member-%d", i), "d-channel", cluster.NodeName(first+i))
	}
	n.AwaitDomain("d", domain.ReadyOn(size))
	var imports []*imex.Import
	for i := range size {
		memory, err := imex.ImportMemory(stateOf(first + i))
		if err != nil {
			t.Fatal(err)
		}
		imports = append(imports, memory)
	}
	return imports
}

func TestIMEXReplacesOnlyFailedOrHungDaemons(t *testing.T) {
	for name, spoil := range map[string]imex.Faults{"it becomes UNAVAILABLE": {Failures: 1}, "it hangs": {Silent: "*"}} {
		t.Run(name, func(t *testing.T) {
			n := shared.Namespace(t)
			const first = 12
			imports := form(n, t, first, 3)
			path := filepath.Join(stateOf(first), imex.FaultsName)
			t.Cleanup(func() {
				if err := imex.WriteFaults(path, imex.Faults{}); err != nil {
					t.Error(err)
				}
			})
			if err := imex.WriteFaults(path, spoil); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if spoil.Silent == "" {
				// The domain is Ready again soon. On a busy machine the test may not see the moment in which it was not.
				n.AwaitEvent("member-0", "IMEXSessionEnded")
			} else {
				n.AwaitDomain("d", func(d domain.Domain) bool { return d.Status != domain.Ready })
				// The next daemon answers.
				for imports[0].Alive() {
					time.Sleep(50 * time.Millisecond)
				}
				if err := imex.WriteFaults(path, imex.Faults{}); err != nil {
					t.Fatal(err)
				}
			}
			n.AwaitDomain("d", domain.ReadyOn(3))
			t.Logf("measured: ready %s later; a daemon is replaced within 15 s on a machine that is not busy", time.Since(began))
			if imports[0].Alive() {
				t.Error("the memory of the node whose daemon was replaced still works; the test is wrong")
			}
			for i, other := range imports[1:] {
				if !other.Alive() {
					t.Errorf("the daemon of node %d was replaced too, and its pod's memory is gone", first+1+i)
				}
			}
		})
	}
}

func TestIMEXKeepsMemoryOfPodsOfADeletedDomain(t *testing.T) {
	n := shared.Namespace(t)
	const first = 15
	imports := form(n, t, first, 2)
	n.StartDeletingDomain("d")
	time.Sleep(3 * time.Second)
	for i, memory := range imports {
		if !memory.Alive() {
			t.Errorf("the pod on node %d lost its memory while it ran", first+i)
		}
	}
	for i := range imports {
		n.DeletePod(fmt.Sprintf("member-%d", i))
	}
	n.AwaitDomainGone("d")
}

func TestIMEXKeepsMemoryWhenAPodComesOrGoes(t *testing.T) {
	n := shared.Namespace(t)
	const first = 9
	imports := form(n, t, first, 2)
	n.Pod("late", "d-channel", cluster.NodeName(first+2))
	n.AwaitDomain("d", domain.ReadyOn(3))
	n.DeletePod("late")
	n.AwaitDomain("d", domain.ReadyOn(2))
	n.KillController()
	n.KillPlugin("compute-domain-plugin", first)
	n.AwaitDomain("d", domain.ReadyOn(2))
	for i, memory := range imports {
		if !memory.Alive() {
			t.Errorf("the pod on node %d lost its memory", first+i)
		}
	}
}
