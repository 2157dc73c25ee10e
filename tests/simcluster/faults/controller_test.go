//go:build faults

package faults

import (
	"bytes"
	"errors"
	"strings"
	"sync"

	"gpufabric.io/tests/simcluster/apiproxy"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/simnode"
)

const controllerUser = "system:serviceaccount:" + fixture.System + ":gpufabric-controller"

// fewestSteps are the controller's writes for any domain: its finalizer, two templates, the DaemonSet, the status; the end of the
// templates, of the DaemonSet, and of the finalizer.
const fewestSteps = 9

// killControllerAtEachStep kills the controller twice at each of its writes for the domain: before the request is sent, and
// when it was executed and the controller has not got the answer.
func killControllerAtEachStep(s *scenario) {
	controller := s.n.ControllerKiller()
	steps := &steps{namespace: s.n.Name, kill: controller.Strike, seen: map[string]int{}}
	stop := shared.Proxy.Tap(apiproxy.Tap{
		Before: func(w apiproxy.Write) bool { return steps.strike(w, 0) },
		After:  func(w apiproxy.Write) bool { return steps.strike(w, 1) },
	})
	defer stop()
	s.start()
	steps.domain(s.uid)
	s.settle()
	s.end()
	controller.Prove()
	done := steps.list()
	s.t.Logf("the controller was killed before and after each of %d writes:\n%s", len(done), strings.Join(done, "\n"))
	if len(done) < fewestSteps {
		s.t.Errorf("the controller was killed at %d of its writes, want at least %d", len(done), fewestSteps)
	}
}

// steps are the controller's writes for one domain.
type steps struct {
	namespace string
	kill      func() error

	mu   sync.Mutex
	uid  string
	seen map[string]int // a write to how often the controller was killed at it
	done []string
}

func (s *steps) domain(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uid = uid
}

// strike kills the controller at a write of the domain if it was killed there exactly this many times before.
func (s *steps) strike(w apiproxy.Write, times int) bool {
	if w.User != controllerUser || strings.HasSuffix(w.Path, "/events") {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.Contains(w.Path, "/"+s.namespace+"/") && !bytes.Contains(w.Body, []byte(s.namespace)) &&
		(s.uid == "" || !strings.Contains(w.Path, s.uid)) {
		return false
	}
	key := w.Method + " " + w.Path
	if bytes.Contains(w.Body, []byte(`"finalizers":null`)) {
		key += " (removes the finalizer)"
	}
	if s.seen[key] != times {
		return false
	}
	if err := s.kill(); err != nil {
		// The program that sent this request was killed at another write meanwhile. None of its requests pass, and this step is
		// still to come.
		return errors.Is(err, simnode.ErrNotRunning)
	}
	s.seen[key]++
	if times == 1 {
		s.done = append(s.done, key)
	}
	return true
}

func (s *steps) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}
