//go:build faults

package shares

import (
	"strings"
	"sync"

	"gpufabric.io/tests/simcluster/apiproxy"
)

// killBetweenReserveAndBind kills the scheduler twice at the binding of a pod for which it has chosen and booked a share:
// before the API server gets the binding, and when it was accepted and the scheduler has not got the answer.
func killBetweenReserveAndBind(s *scenario) {
	killer := s.n.DeploymentKillers("scheduler")[0]
	var before, after sync.Once
	binding := func(once *sync.Once, pod string) func(apiproxy.Write) bool {
		return func(w apiproxy.Write) (cut bool) {
			if w.User == account("scheduler") && strings.HasSuffix(w.Path, "/namespaces/"+s.n.Name+"/pods/"+pod+"/binding") {
				once.Do(func() { cut = killer.Strike() == nil })
			}
			return cut
		}
	}
	stop := writes.add(apiproxy.Tap{Before: binding(&before, "pod-0"), After: binding(&after, "pod-1")})
	defer stop()
	s.fill()
	s.waits("late")
	if killer.Strikes() != 2 {
		s.t.Errorf("the scheduler was killed %d times at its bindings, want twice", killer.Strikes())
	}
	prove(s.t, killer)
	s.n.DeletePod("pod-2")
	s.served("late")
	s.end()
}
