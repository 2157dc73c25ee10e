//go:build faults

package faults

import (
	"path/filepath"
	"sync/atomic"
)

// plugins are the programs on a node that prepare claims.
func plugins() []string { return []string{"compute-domain-plugin", "gpu-plugin"} }

func (s *scenario) killPlugins() {
	s.t.Helper()
	for _, plugin := range plugins() {
		s.n.KillPlugin(plugin, s.victim)
	}
}

func killBeforePrepare(s *scenario) {
	s.killPlugins()
	s.start()
	s.settle()
	s.end()
}

func killDuringPrepare(s *scenario) {
	// A claim's preparation makes a temporary file, its content and a rename.
	const changes = 4
	struck := s.killAtWrites(changes)
	s.start()
	s.settle()
	struck()
	s.end()
}

func killAfterPrepare(s *scenario) {
	s.start()
	s.settle()
	s.killPlugins()
	s.holdNobodyTwice()
	s.end()
}

func killDuringUnprepare(s *scenario) {
	s.start()
	s.settle()
	// A claim's end is a removal, and each plugin has two claims at least.
	const changes = 2
	struck := s.killAtWrites(changes)
	s.end()
	struck()
}

// killAtWrites kills each plugin of the victim when it changes its files for the nth time, n being the seed's and at most the
// given number: between the steps of what it does for a claim, each of which is on disk before the next begins. The returned
// function holds that it did.
func (s *scenario) killAtWrites(most int) (struck func()) {
	s.t.Helper()
	var stops []func()
	killed := make([]atomic.Bool, len(plugins()))
	for at, plugin := range plugins() {
		kill := s.n.PluginKiller(plugin, s.victim)
		nth, seen := s.random.IntN(most), 0
		stop, err := files.of(filepath.Join(nodeDir(s.victim), "r/var/lib/gpufabric", plugin), func() {
			if seen == nth {
				killed[at].Store(kill() == nil)
			}
			seen++
		})
		if err != nil {
			s.t.Fatal(err)
		}
		stops = append(stops, stop)
	}
	return func() {
		s.t.Helper()
		for at, plugin := range plugins() {
			stops[at]()
			if !killed[at].Load() {
				s.t.Errorf("the %s was not killed: it did not change its files often enough", plugin)
			}
		}
	}
}
