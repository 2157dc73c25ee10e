//go:build faults

package cliques

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

// scenario is a few domains of the clique with a pod on each of their nodes, while something goes wrong.
type scenario struct {
	t       *testing.T
	n       *fixture.Namespace
	random  *rand.Rand
	domains map[string][]int // each domain's nodes
	uids    []string
}

var channel = regexp.MustCompile(`^/dev/nvidia-caps-imex-channels/channel\d+$`)

// form declares a domain over random nodes, with a pod on each, and waits only for its UID.
func (s *scenario) form(name string) {
	s.t.Helper()
	s.formOn(name, s.random.Perm(nodes)[:1+s.random.IntN(nodes)])
}

// formOn is form with the domain's nodes.
func (s *scenario) formOn(name string, members []int) {
	s.t.Helper()
	if s.domains == nil {
		s.domains = map[string][]int{}
	}
	s.domains[name] = members
	s.n.Domain(name, len(members))
	s.uids = append(s.uids, s.n.AwaitDomain(name, func(d domain.Domain) bool { return d.UID != "" }).UID)
	for _, i := range members {
		s.n.Pod(podOf(name, i), name+"-channel", cluster.NodeName(i))
	}
}

func podOf(domain string, node int) string { return fmt.Sprintf("%s-%d", domain, node) }

// settle waits until every domain is Ready and every pod runs.
func (s *scenario) settle() {
	s.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s.domains)) {
		s.settleOnly(name)
	}
}

// settleOnly waits until one domain is Ready and its pods run.
func (s *scenario) settleOnly(name string) {
	s.t.Helper()
	members := s.domains[name]
	s.n.AwaitDomain(name, func(d domain.Domain) bool { return d.Status == domain.Ready && d.Ready == len(members) })
	for _, i := range members {
		s.n.AwaitPod(podOf(name, i), fixture.Running)
	}
	s.assertChannels()
}

// assertChannels fails the test if running pods of one domain have two channels, or pods of two domains have the same one. All
// nodes are in one clique.
func (s *scenario) assertChannels() {
	s.t.Helper()
	of, holder := map[string]string{}, map[string]string{}
	for _, pod := range s.n.RunningPods() {
		name, _, _ := strings.Cut(pod.Name, "-")
		for _, container := range s.n.TryReceived(&pod) {
			for _, device := range container.Devices {
				if !channel.MatchString(device.Path) {
					continue
				}
				if other, has := of[name]; has && other != device.Path {
					s.t.Errorf("pods of domain %s have %s and %s", name, other, device.Path)
				}
				if other, held := holder[device.Path]; held && other != name {
					s.t.Errorf("%s is held by domains %s and %s", device.Path, name, other)
				}
				of[name], holder[device.Path] = device.Path, name
			}
		}
	}
}

// end deletes a domain's pods and the domain, and waits until both are gone.
func (s *scenario) end(name string) {
	s.t.Helper()
	for _, i := range s.domains[name] {
		s.n.DeletePod(podOf(name, i))
	}
	s.n.DeleteDomain(name)
	delete(s.domains, name)
}

// endAll deletes everything and waits until nothing remains.
func (s *scenario) endAll() {
	s.t.Helper()
	claims := s.n.ClaimUIDs()
	for _, name := range slices.Sorted(maps.Keys(s.domains)) {
		s.end(name)
	}
	s.n.AwaitNothingLeft(append(claims, s.uids...)...)
}

// imported is memory that each node has imported from others.
type imported []*imex.Import

func importAll(t *testing.T) imported {
	t.Helper()
	var all imported
	for i := range nodes {
		memory, err := imex.ImportMemory(stateOf(i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, memory)
	}
	return all
}

// alive fails the test if a node's session has ended, which ends its imports, or if a pod has an Event about that.
func (s *scenario) alive(all imported) {
	s.t.Helper()
	for i, memory := range all {
		if !memory.Alive() {
			s.t.Errorf("the IMEX session of %s ended", cluster.NodeName(i))
		}
	}
	events, err := s.n.Client.CoreV1().Events(s.n.Name).List(s.t.Context(), metav1.ListOptions{FieldSelector: "reason=IMEXSessionEnded"})
	if err != nil || len(events.Items) > 0 {
		s.t.Errorf("told of ended sessions: %v, %v", events.Items, err)
	}
}

// stateOf is the directory in which node i keeps its IMEX session and faults.
func stateOf(i int) string {
	return filepath.Join(fabric.HardwareOf(cluster.NodeDir(shared.Dir, i)), "state")
}

// cutPeers cuts some nodes' daemons off from all others while domains exist, appear and disappear.
func cutPeers(s *scenario) {
	s.form("a")
	s.form("b")
	s.settle()
	memory := importAll(s.t)
	set := func(i int, faults imex.Faults) {
		if err := imex.WriteFaults(filepath.Join(stateOf(i), imex.FaultsName), faults); err != nil {
			s.t.Fatal(err)
		}
	}
	victims := s.random.Perm(nodes)[:1+s.random.IntN(nodes-1)]
	for _, i := range victims {
		set(i, imex.Faults{Partitioned: []string{"*"}})
		s.t.Cleanup(func() { set(i, imex.Faults{}) })
	}
	s.form("c")
	s.end("a")
	s.assertChannels()
	time.Sleep(time.Duration(s.random.Int64N(int64(3 * time.Second)))) // the cut may last for any time
	s.form("d")
	for _, i := range victims {
		set(i, imex.Faults{})
	}
	s.settle()
	s.alive(memory)
	s.endAll()
}
