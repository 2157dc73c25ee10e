//go:build faults

package bydemand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/apiproxy"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	controllerUser = "system:serviceaccount:" + fixture.System + ":gpufabric-controller"
	pluginUser     = "system:serviceaccount:" + fixture.System + ":gpufabric-gpu-plugin"
	lease          = "gpufabric-controller"
)

var miglayouts = schema.GroupVersionResource{ //nolint:gochecknoglobals // a constant
	Group: "gpufabric.io", Version: "v1alpha1", Resource: "miglayouts"}

// ordersLayout reports whether a write is the planner's, of a node's layout.
func ordersLayout(w apiproxy.Write) bool {
	return w.User == controllerUser && strings.Contains(w.Path, "/miglayouts") && !strings.HasSuffix(w.Path, "/status")
}

// reports reports whether a write is a gpu-plugin's report of a layout, or of what it publishes.
func reports(w apiproxy.Write) bool {
	return w.User == pluginUser && (strings.Contains(w.Path, "/miglayouts/") || strings.Contains(w.Path, "/resourceslices"))
}

// steps kills at the writes of one kind: before each, and after it.
type steps struct {
	of   func(apiproxy.Write) bool
	kill func(apiproxy.Write) error
	most int // kills

	mu     sync.Mutex
	writes int
	kills  int
}

// strike is called with each write, after: once it was applied. True cuts the connection.
func (k *steps) strike(w apiproxy.Write, after bool) bool {
	if !k.of(w) {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kills == k.most {
		return false
	}
	k.writes++
	if after != (k.kills%2 == 1) { // in turn before and after a write
		return false
	}
	if k.kill(w) != nil {
		return false // its program was killed before, and does not run yet
	}
	k.kills++
	return true
}

func (k *steps) tap() (stop func()) {
	return shared.Proxy.Tap(apiproxy.Tap{
		Before: func(w apiproxy.Write) bool { return k.strike(w, false) },
		After:  func(w apiproxy.Write) bool { return k.strike(w, true) },
	})
}

// leader is the controller that the lease names.
func leader(ctx context.Context) (string, error) {
	found, err := shared.Client.CoordinationV1().Leases(fixture.System).Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if found.Spec.HolderIdentity == nil || *found.Spec.HolderIdentity == "" {
		return "", errors.New("no controller has the lease")
	}
	return *found.Spec.HolderIdentity, nil
}

// awaitLeader waits until another controller than the named one has the lease.
func (s *scenario) awaitLeader(not string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	var now string
	var last error
	if err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if now, last = leader(ctx); last == nil && now == not {
			last = fmt.Errorf("%s still has the lease", not)
		}
		return last == nil, nil
	}); err != nil {
		s.t.Fatalf("wait for another controller: %v", errors.Join(last, err))
	}
	return now
}

// planner is the leading controller.
func (s *scenario) planner() *fixture.Killer {
	s.t.Helper()
	name := s.awaitLeader("")
	for _, k := range s.n.DeploymentKillers("controller") {
		if k.Pod() == name {
			return k
		}
	}
	s.t.Fatalf("no controller's pod is %s", name)
	return nil
}

// killPlannerAtEachStep kills the planner at its writes of the nodes' layouts: withdrawals, cuts, hiding and taking back.
func killPlannerAtEachStep(s *scenario) {
	planner := s.planner()
	k := &steps{of: ordersLayout, kill: func(apiproxy.Write) error { return planner.Strike() }, most: 12}
	stop := k.tap()
	defer stop()
	s.play(func(int) {})
	s.end()
	planner.Prove()
	s.t.Logf("the planner was killed at %d of its writes", k.kills)
}

// loseLease has the planner lose its lease from a random order on: the connection of that order and of its renewals is cut, and the other
// planner takes over.
func loseLease(s *scenario) {
	before := s.awaitLeader("")
	var mu sync.Mutex
	at, lost := 1+s.random.IntN(2), false
	stop := shared.Proxy.Tap(apiproxy.Tap{Before: func(w apiproxy.Write) bool {
		mu.Lock()
		defer mu.Unlock()
		if w.User == controllerUser && strings.Contains(w.Path, "/leases") {
			return lost && bytes.Contains(w.Body, []byte(before))
		}
		if lost || !ordersLayout(w) {
			return false
		}
		at--
		lost = at == 0
		return lost
	}, After: func(apiproxy.Write) bool { return false }})
	defer stop()
	s.play(func(int) {})
	mu.Lock()
	happened := lost
	mu.Unlock()
	if !happened {
		s.t.Errorf("planner %s gave fewer orders than expected, and kept its lease", before)
	} else {
		s.t.Logf("planner %s lost its lease, %s took over", before, s.awaitLeader(before))
	}
	s.end()
}

// plugins are the gpu-plugins of all nodes.
func (s *scenario) plugins() []*fixture.Killer {
	s.t.Helper()
	var all []*fixture.Killer
	for i := range nodes {
		all = append(all, s.n.PluginKiller("gpu-plugin", i))
	}
	return all
}

// killPluginsAtReports kills the gpu-plugin that is about to report, or that has reported and has no answer yet.
func killPluginsAtReports(s *scenario) {
	plugins := s.plugins()
	k := &steps{of: reports, most: 8, kill: func(w apiproxy.Write) error {
		for i, plugin := range plugins {
			if strings.Contains(w.Path, cluster.NodeName(i)) || bytes.Contains(w.Body, []byte(cluster.NodeName(i))) {
				return plugin.Strike()
			}
		}
		return errors.New("the write names no node")
	}}
	stop := k.tap()
	defer stop()
	s.play(func(int) {})
	s.end()
	s.prove(plugins...)
}

// prove checks the kills. One of the programs may have done nothing at which it could be killed.
func (s *scenario) prove(killers ...*fixture.Killer) {
	s.t.Helper()
	strikes := 0
	for _, k := range killers {
		if k.Strikes() > 0 {
			k.Prove()
		}
		strikes += k.Strikes()
	}
	if strikes == 0 {
		s.t.Error("nothing was killed")
	}
	s.t.Logf("%d kills", strikes)
}

// killPluginsInCuts kills a gpu-plugin when it changes its state files, in which it stores each step of a cut and of a claim.
func killPluginsInCuts(s *scenario) {
	plugins := s.plugins()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.t.Fatalf("watch the plugins' files: %v (this takes one of the user's inotify instances: see fs.inotify.max_user_instances)", err)
	}
	nodeOf := map[string]int{}
	for i := range nodes {
		dir := filepath.Join(cluster.NodeDir(shared.Dir, i), "r/var/lib/gpufabric/gpu-plugin")
		nodeOf[dir] = i
		if err := watcher.Add(dir); err != nil {
			s.t.Fatal(err)
		}
	}
	every := 2 + s.random.IntN(4)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		seen := 0
		for event := range watcher.Events {
			if seen++; seen%every == 0 && seen <= 10*every {
				_ = plugins[nodeOf[filepath.Dir(event.Name)]].Strike() // the proof reports whether it did
			}
		}
	}()
	s.play(func(int) {})
	_ = watcher.Close() // it only watched
	<-ended
	s.end()
	s.prove(plugins...)
}

// killAnyTime kills the planner and a gpu-plugin at random moments of each round.
func killAnyTime(s *scenario) {
	planner, plugins := s.planner(), s.plugins()
	s.play(func(int) {
		for range 3 {
			s.pause(1500 * time.Millisecond)
			if s.random.IntN(2) == 0 {
				planner.StrikeRunning()
			} else {
				plugins[s.random.IntN(nodes)].StrikeRunning()
			}
		}
	})
	s.end()
	s.prove(append(plugins, planner)...)
}

// silenceAndReboot cuts a node off from the API server while GPUs are cut, until it counts as lost, and boots it: its MIG instances are
// gone.
func silenceAndReboot(s *scenario) {
	at, victim := s.random.IntN(rounds), s.random.IntN(nodes)
	s.play(func(round int) {
		if round != at {
			return
		}
		s.pause(2500 * time.Millisecond)
		if err := shared.Fleet.Nodes()[victim].Silence(s.t.Context(), true); err != nil {
			s.t.Fatal(err)
		}
		reboot := sync.OnceFunc(func() { shared.Fleet.Reboot(victim) })
		defer reboot() // a scenario that fails must not leave the node silent for the next one
		s.n.AwaitReady(cluster.NodeName(victim), false)
		if err := os.Remove(filepath.Join(cluster.NodeDir(shared.Dir, victim), "f/state/rendered.json")); err != nil {
			s.t.Fatal(err)
		}
		reboot()
		s.n.AwaitReady(cluster.NodeName(victim), true)
	})
	s.end()
}

// failAPIServer has the API server stand still, or die and start again, while GPUs are cut.
func failAPIServer(s *scenario) {
	s.play(func(int) {
		s.pause(2500 * time.Millisecond)
		outage := time.Duration(s.random.Int64N(int64(6 * time.Second)))
		server := shared.Plane.Process("kube-apiserver")
		if s.random.IntN(2) == 0 {
			if err := server.Pause(); err != nil {
				s.t.Fatal(err)
			}
			time.Sleep(outage) // the fault itself
			if err := server.Resume(); err != nil {
				s.t.Fatal(err)
			}
			return
		}
		server.Kill()
		if err := shared.Plane.Restart(s.t.Context(), "kube-apiserver"); err != nil {
			s.t.Fatal(err)
		}
	})
	s.end()
}

// disturbWatches delays, repeats and reorders the drivers' watch events.
func disturbWatches(s *scenario) {
	stop := shared.Proxy.DisturbWatches(s.seed)
	defer stop()
	s.play(func(int) {})
	s.end()
}
