//go:build faults

package faults

import (
	"path/filepath"

	"gpufabric.io/tests/simcluster/fixture"
)

// plugins are the programs on a node that prepare claims.
func plugins() []string { return []string{"compute-domain-plugin", "gpu-plugin", "rdma-plugin"} }

// killPlugins kills the victim's plugins. The returned function proves that each of them was killed and started again.
func (s *scenario) killPlugins() (proof func()) {
	s.t.Helper()
	var killers []*fixture.Killer
	for _, plugin := range plugins() {
		killer := s.n.PluginKiller(plugin, s.victim)
		killer.StrikeRunning()
		killers = append(killers, killer)
	}
	return func() {
		s.t.Helper()
		for _, killer := range killers {
			killer.Prove()
		}
	}
}

func killBeforePrepare(s *scenario) {
	proof := s.killPlugins()
	s.start()
	s.settle()
	proof()
	s.end()
}

func killDuringPrepare(s *scenario) {
	// A claim's preparation makes a temporary file, its content and a rename.
	const changes = 4
	proof := s.killAtWrites(changes)
	s.start()
	s.settle()
	proof()
	s.end()
}

func killAfterPrepare(s *scenario) {
	s.start()
	s.settle()
	proof := s.killPlugins()
	s.assertNoTwoHolders()
	proof()
	s.assertNoTwoHolders()
	s.end()
}

func killDuringUnprepare(s *scenario) {
	s.start()
	s.settle()
	// A claim's end is a removal, and each plugin has two claims at least.
	const changes = 2
	proof := s.killAtWrites(changes)
	s.end()
	proof()
}

// killAtWrites kills each plugin of the victim when it changes its files for the nth time. n is random, and at most the given
// number. So the kill comes between two steps of a claim, each of which is on disk before the next one begins. The returned
// function proves the kills.
func (s *scenario) killAtWrites(most int) (proof func()) {
	s.t.Helper()
	var stops []func()
	var killers []*fixture.Killer
	for _, plugin := range plugins() {
		killer := s.n.PluginKiller(plugin, s.victim)
		nth, seen := s.random.IntN(most), 0
		stop, err := files.of(filepath.Join(nodeDir(s.victim), "r/var/lib/gpufabric", plugin), func() {
			if seen == nth {
				_ = killer.Strike() // the proof reports whether it did
			}
			seen++
		})
		if err != nil {
			s.t.Fatal(err)
		}
		stops, killers = append(stops, stop), append(killers, killer)
	}
	return func() {
		s.t.Helper()
		for at, killer := range killers {
			stops[at]()
			killer.Prove()
		}
	}
}
