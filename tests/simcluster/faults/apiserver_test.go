//go:build faults

package faults

import (
	"time"
)

// disturbWatches makes what the drivers hear late, doubled and out of order.
func disturbWatches(s *scenario) {
	stop := shared.Proxy.DisturbWatches(s.seed)
	defer stop()
	s.start()
	s.settle()
	s.end()
}

// pauseAPIServer has the API server stand still while the domain forms: connections stay, and nobody answers.
func (s *scenario) pauseAPIServer(outage time.Duration) {
	restart, proof := s.maybeRestartPlugin()
	s.start()
	s.pause(2500 * time.Millisecond)
	server := shared.Plane.Process("kube-apiserver")
	if err := server.Pause(); err != nil {
		s.t.Fatal(err)
	}
	restart()
	time.Sleep(outage) // the fault itself
	if err := server.Resume(); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
	proof()
	s.end()
}

// killAPIServer kills the API server while the domain forms: connections break, and are refused until it is back.
func (s *scenario) killAPIServer(outage time.Duration) {
	restart, proof := s.maybeRestartPlugin()
	s.start()
	s.pause(2500 * time.Millisecond)
	shared.Plane.Process("kube-apiserver").Kill()
	restart()
	time.Sleep(outage) // the fault itself
	if err := shared.Plane.Restart(s.t.Context(), "kube-apiserver"); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
	proof()
	s.end()
}

// maybeRestartPlugin returns what kills a plugin, so that it starts without an API server, and what proves that it did; or does neither, as
// the seed has it.
func (s *scenario) maybeRestartPlugin() (restart, proof func()) {
	plugin := plugins()[s.random.IntN(len(plugins()))]
	if s.random.IntN(2) == 0 {
		return func() {}, func() {}
	}
	kill := s.n.PluginKiller(plugin, s.victim)
	return func() {
		s.t.Logf("the %s starts without an API server", plugin)
		if err := kill.Strike(); err != nil {
			s.t.Error(err)
		}
	}, kill.Prove
}
