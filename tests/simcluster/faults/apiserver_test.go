//go:build faults

package faults

import (
	"time"
)

// disturbWatches delays, repeats and reorders the drivers' watch events.
func disturbWatches(s *scenario) {
	stop := shared.Proxy.DisturbWatches(s.seed)
	defer stop()
	s.start()
	s.settle()
	s.end()
}

// pauseAPIServer pauses the API server while the domain forms: connections stay open, and get no answers.
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

// killAPIServer kills the API server while the domain forms: connections break, and new ones are refused until it is back.
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

// maybeRestartPlugin returns a function that kills a plugin, so that it starts without an API server, and one that proves this.
// Depending on the seed, both do nothing.
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
