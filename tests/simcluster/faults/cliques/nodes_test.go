//go:build faults

package cliques

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

// pause waits for a random time below most: a fault may come at any moment.
func (s *scenario) pause(most time.Duration) { time.Sleep(time.Duration(s.random.Int64N(int64(most)))) }

// fault changes the faults of a node's IMEX daemon. Kills and failures only grow, since a daemon compares them with those at its start.
func (s *scenario) fault(i int, change func(*imex.Faults)) {
	s.t.Helper()
	path := filepath.Join(stateOf(i), imex.FaultsName)
	faults, err := imex.ReadFaults(path)
	if err == nil || os.IsNotExist(err) {
		change(&faults)
		err = imex.WriteFaults(path, faults)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// endSession ends the IMEX session of one node in one of the ways in which it can end, while domains come and go. Every pod with a channel
// there gets an Event, no other node's session ends, and every domain is Ready again.
func endSession(s *scenario) {
	s.form("a")
	s.form("b")
	s.settle()
	memory := importAll(s.t)
	victim := s.random.IntN(nodes)
	ways := []struct {
		name string
		end  func()
	}{
		{"its daemon is UNAVAILABLE", func() { s.fault(victim, func(f *imex.Faults) { f.Failures++ }) }},
		{"its daemon is killed", func() { s.fault(victim, func(f *imex.Faults) { f.Kills++ }) }},
		{"its daemon hangs", func() {
			s.fault(victim, func(f *imex.Faults) { f.Silent = "*" })
			s.t.Cleanup(func() { s.fault(victim, func(f *imex.Faults) { f.Silent = "" }) })
		}},
		{"its daemon's supervisor is killed", func() { s.n.KillPlugin("imex-daemon", victim) }},
		{"its daemon's pod is evicted", func() { s.evictDaemon(victim) }},
	}
	way := ways[s.random.IntN(len(ways))]
	s.t.Logf("%s: %s", cluster.NodeName(victim), way.name)
	s.pause(time.Second)
	way.end()
	s.form("c")
	for name, members := range s.domains {
		if name != "c" && slices.Contains(members, victim) {
			s.n.AwaitEvent(podOf(name, victim), "IMEXSessionEnded", cluster.NodeName(victim))
		}
	}
	s.fault(victim, func(f *imex.Faults) { f.Silent = "" })
	s.settle()
	for i, m := range memory {
		if i != victim && !m.Alive() {
			s.t.Errorf("the IMEX session of %s ended too", cluster.NodeName(i))
		}
	}
	s.endAll()
}

// evictDaemon deletes the pod of a node's IMEX daemon.
func (s *scenario) evictDaemon(i int) {
	s.t.Helper()
	pods := shared.Client.CoreV1().Pods(fixture.System)
	found, err := pods.List(s.t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=imex-daemon", FieldSelector: "spec.nodeName=" + cluster.NodeName(i),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	staying := slices.DeleteFunc(found.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	if len(staying) != 1 {
		s.t.Fatalf("%s has %d IMEX daemons that stay", cluster.NodeName(i), len(staying))
	}
	if err := pods.Delete(s.t.Context(), staying[0].Name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// killPlugins kills the compute domain plugin of one node after another, at any moment of domains that form and end. No session ends by
// that, and no pod is touched.
func killPlugins(s *scenario) {
	s.form("a")
	s.settle()
	memory := importAll(s.t)
	killers := map[int]*fixture.Killer{}
	kill := func() {
		i := s.random.IntN(nodes)
		if killers[i] == nil {
			killers[i] = s.n.PluginKiller("compute-domain-plugin", i)
		}
		s.pause(time.Second)
		killers[i].StrikeRunning()
	}
	s.form("b")
	kill()
	s.form("c")
	kill()
	s.settle()
	s.n.StartDeletingDomain("b")
	kill()
	s.end("b")
	s.settle()
	for _, k := range killers {
		k.Prove()
	}
	s.alive(memory)
	s.endAll()
}

// loseNode cuts a node off from the API server until it counts as lost, while domains come and continue the others, and boots it.
func loseNode(s *scenario) {
	s.form("a")
	s.settle()
	memory := importAll(s.t)
	victim := s.random.IntN(nodes)
	s.form("b")
	s.pause(2 * time.Second)
	node := shared.Fleet.Nodes()[victim]
	if err := node.Silence(s.t.Context(), true); err != nil {
		s.t.Fatal(err)
	}
	reboot := sync.OnceFunc(func() { shared.Fleet.Reboot(victim) })
	defer reboot() // a scenario that fails must not leave the node silent for the next one
	s.n.AwaitReady(cluster.NodeName(victim), false)
	others := slices.DeleteFunc(s.random.Perm(nodes), func(i int) bool { return i == victim })
	s.formOn("c", others[:1+s.random.IntN(len(others))])
	s.settleOnly("c")
	if err := os.Remove(filepath.Join(stateOf(victim), "rendered.json")); err != nil {
		s.t.Fatal(err)
	}
	reboot()
	s.n.AwaitReady(cluster.NodeName(victim), true)
	s.settle()
	for i, m := range memory {
		if i != victim && !m.Alive() {
			s.t.Errorf("the IMEX session of %s ended with that of %s", cluster.NodeName(i), cluster.NodeName(victim))
		}
	}
	s.endAll()
}
