//go:build faults

package cliques

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/apiproxy"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	controllerUser = "system:serviceaccount:" + fixture.System + ":gpufabric-controller"
	lease          = "gpufabric-controller"
	// steps is about how many writes a controller makes for the scenario's domains.
	steps = 12
)

// strike is a fault of the leading controller, at one of its writes for the scenario.
type strike struct {
	namespace, leader string
	at                int          // at which of its writes
	then              func() error // is called once, at that write

	mu     sync.Mutex
	writes int
	struck bool
	err    error
}

// before is called with each write before the API server gets it; true cuts the connection.
func (k *strike) before(w apiproxy.Write) bool {
	if w.User != controllerUser {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if strings.Contains(w.Path, "/leases") {
		return k.struck && bytes.Contains(w.Body, []byte(k.leader))
	}
	if k.struck || strings.HasSuffix(w.Path, "/events") ||
		!strings.Contains(w.Path, "/"+k.namespace+"/") && !bytes.Contains(w.Body, []byte(k.namespace)) {
		return false
	}
	if k.writes++; k.writes < k.at {
		return false
	}
	k.struck, k.err = true, k.then()
	return true
}

// leader is the controller that the lease names.
func leader(ctx context.Context) (string, error) {
	found, err := shared.Client.CoordinationV1().Leases(fixture.System).Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if found.Spec.HolderIdentity == nil || *found.Spec.HolderIdentity == "" {
		return "", errors.New("nobody holds the lease")
	}
	return *found.Spec.HolderIdentity, nil
}

// awaitLeader waits until another controller than the named one holds the lease.
func (s *scenario) awaitLeader(not string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	var now string
	var last error
	if err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if now, last = leader(ctx); last == nil && now == not {
			last = fmt.Errorf("%s still holds the lease", not)
		}
		return last == nil, nil
	}); err != nil {
		s.t.Fatalf("wait for another controller: %v", errors.Join(last, err))
	}
	return now
}

// change makes the other controller take over while domains come and go: from a random write on, the leader cannot renew its
// lease.
func (s *scenario) change(then func(leader string) error) {
	s.t.Helper()
	before := s.awaitLeader("")
	k := &strike{namespace: s.n.Name, leader: before, at: 1 + s.random.IntN(steps), then: func() error { return then(before) }}
	stop := shared.Proxy.Tap(apiproxy.Tap{Before: k.before, After: func(apiproxy.Write) bool { return false }})
	defer stop()
	s.form("a")
	s.form("b")
	// As many domains as it takes to reach that write.
	for i := 0; ; i++ {
		k.mu.Lock()
		struck, err := k.struck, k.err
		k.mu.Unlock()
		if err != nil {
			s.t.Fatalf("strike controller %s: %v", before, err)
		}
		if struck {
			break
		}
		name := fmt.Sprintf("c%d", i)
		s.form(name)
		s.settle()
		s.end(name)
	}
	s.form("d")
	after := s.awaitLeader(before)
	s.t.Logf("controller %s was struck at its write %d, %s took over", before, k.at, after)
	s.settle()
	stop()
	s.form("e")
	s.settle()
	s.endAll()
}

func loseLease(s *scenario) { s.change(func(string) error { return nil }) }

// killAtStep also kills the leader. When its container starts again, the other controller leads.
func killAtStep(s *scenario) {
	controllers := s.n.DeploymentKillers("controller")
	if len(controllers) != 2 {
		s.t.Fatalf("there are %d controllers, not two", len(controllers))
	}
	s.change(func(leader string) error {
		for _, k := range controllers {
			if k.Pod() == leader {
				return k.Strike()
			}
		}
		return fmt.Errorf("none of the controllers' pods is %s", leader)
	})
	for _, k := range controllers {
		if k.Strikes() > 0 {
			k.Prove()
		}
	}
}
