package imexd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeRunner makes daemons that are whatever the test says.
type fakeRunner struct {
	mu      sync.Mutex
	started []*fakeDaemon
	err     error
}

type fakeDaemon struct {
	mu      sync.Mutex
	state   State
	reloads int
	exited  chan struct{}
	err     error
	end     sync.Once
}

func (r *fakeRunner) Start(context.Context, Spec) (Daemon, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	daemon := &fakeDaemon{state: Initializing, exited: make(chan struct{})}
	r.started = append(r.started, daemon)
	return daemon, nil
}

func (r *fakeRunner) newest(t *testing.T, count int) *fakeDaemon {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.started) != count {
		t.Fatalf("%d daemons were started, want %d", len(r.started), count)
	}
	return r.started[count-1]
}

func (d *fakeDaemon) Reload() error { d.mu.Lock(); defer d.mu.Unlock(); d.reloads++; return nil }
func (d *fakeDaemon) State(context.Context) (State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state, nil
}
func (d *fakeDaemon) become(state State)      { d.mu.Lock(); defer d.mu.Unlock(); d.state = state }
func (d *fakeDaemon) Exited() <-chan struct{} { return d.exited }
func (d *fakeDaemon) Err() error              { return d.err }
func (d *fakeDaemon) Stop()                   { d.end.Do(func() { close(d.exited) }) }
func (d *fakeDaemon) die(err error)           { d.err = err; d.end.Do(func() { close(d.exited) }) }

func two() Group {
	return Group{Clique: "c.1", Peers: []Peer{{Index: 1, Address: "10.0.0.2"}, {Index: 0, Address: "10.0.0.1"}}}
}

// supervised runs body beside a supervisor, in a bubble with a clock of its own.
func supervised(t *testing.T, body func(t *testing.T, s *Supervisor, r *fakeRunner)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		spec, err := NewSpec(dir, filepath.Join(dir, "hosts"), "10.0.0.1", 50000, 50005)
		if err != nil {
			t.Fatal(err)
		}
		runner := &fakeRunner{}
		s := NewSupervisor(runner, spec, func(string, string) {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		body(t, s, runner)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, path := range []string{spec.ConfigFile, spec.NodesFile} {
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("%s is left behind", path)
			}
		}
	})
}

func pass(duration time.Duration) { time.Sleep(duration); synctest.Wait() }

func TestADaemonStartsOnceTheNodeHasItsNumber(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		if status, _ := s.Status(); status.Ready || !strings.Contains(status.Reason, "number this node") {
			t.Errorf("before: %+v", status)
		}
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		if status, _ := s.Status(); status.Ready || status.State != Initializing || status.Peers != 2 {
			t.Errorf("while starting: %+v", status)
		}
		daemon.become(Ready)
		began := time.Now()
		if status := s.AwaitReady(t.Context()); !status.Ready || time.Since(began) > startingInterval {
			t.Errorf("ready after %s: %+v", time.Since(began), status)
		}
		hosts, err := os.ReadFile(s.spec.HostsFile)
		if want := hostsBegin + "10.0.0.1 compute-domain-daemon-0000\n10.0.0.2 compute-domain-daemon-0001\n" + hostsEnd; err != nil || string(hosts) != want {
			t.Errorf("hosts (%v):\n%s", err, hosts)
		}
		nodes, err := os.ReadFile(s.spec.NodesFile)
		if err != nil || strings.Count(string(nodes), "\n") != 18 {
			t.Errorf("nodes (%v):\n%s", err, nodes)
		}
	})
}

func TestANewPeerIsLookedUpWithoutARestart(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		group := two()
		group.Peers = append(group.Peers, Peer{Index: 2, Address: "10.0.0.3"})
		s.Join(group)
		pass(time.Millisecond)
		if daemon := r.newest(t, 1); daemon.reloads != 1 {
			t.Errorf("reloaded %d times", daemon.reloads)
		}
	})
}

func TestWhatADaemonReadsOnlyAtItsStartMakesANewOne(t *testing.T) {
	for name, group := range map[string]Group{
		"a 19th node":    {Clique: "c.1", Peers: []Peer{{Index: 18, Address: "10.0.0.19"}}},
		"another clique": {Clique: "c.2", Peers: two().Peers},
	} {
		t.Run(name, func(t *testing.T) {
			supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
				s.Join(two())
				pass(100 * time.Millisecond)
				first := r.newest(t, 1)
				s.Join(group)
				pass(100 * time.Millisecond)
				r.newest(t, 2)
				select {
				case <-first.Exited():
				default:
					t.Error("the first daemon still runs")
				}
			})
		})
	}
}

func TestADaemonThatDiesIsStartedAgainAndSaysWhy(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		r.newest(t, 1).become(Ready)
		pass(100 * time.Millisecond)
		r.newest(t, 1).die(errors.New("nvidia-imex ended: signal: killed"))
		pass(time.Millisecond)
		if status, _ := s.Status(); status.Ready || !strings.Contains(status.Reason, "signal: killed") || status.Restarts != 1 {
			t.Errorf("after its death: %+v", status)
		}
		pass(restartPause)
		r.newest(t, 2).become(Ready)
		if status := s.AwaitReady(t.Context()); !status.Ready {
			t.Errorf("after the restart: %+v", status)
		}
	})
}

func TestANodeWithoutFabricIsReadyWithoutADaemon(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(Group{Peers: two().Peers})
		pass(time.Millisecond)
		if status, _ := s.Status(); !status.Ready {
			t.Errorf("%+v", status)
		}
		s.Join(two()) // its GPUs have joined a fabric after all
		pass(100 * time.Millisecond)
		r.newest(t, 1)
	})
}

func TestADaemonThatCannotStartIsTriedLessAndLessOften(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		r.err = errors.New("no such file")
		s.Join(two())
		pass(time.Minute)
		if status, _ := s.Status(); status.Restarts < 8 || status.Restarts > 12 || !strings.Contains(status.Reason, "no such file") {
			t.Errorf("after a minute: %+v", status)
		}
	})
}

func TestForeignLinesOfTheHostsFileStay(t *testing.T) {
	peers := []Peer{{Index: 0, Address: "10.0.0.1"}}
	block := hostsBegin + "10.0.0.1 compute-domain-daemon-0000\n" + hostsEnd
	for name, c := range map[string]struct{ old, want string }{
		"an empty file":              {"", block},
		"a file without our lines":   {"127.0.0.1 localhost\n", "127.0.0.1 localhost\n" + block},
		"a last line without an end": {"127.0.0.1 localhost", "127.0.0.1 localhost\n" + block},
		"older lines of ours":        {"a\n" + hostsBegin + "10.9.9.9 old\n" + hostsEnd + "b\n", "a\nb\n" + block},
		"a write that was cut short": {"a\n" + hostsBegin + "10.9.", "a\n" + block},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, string(hostsWith([]byte(c.old), peers))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCommandsStayOnTheMachine(t *testing.T) {
	for address, want := range map[string]string{"10.0.0.1": "127.0.0.1", "127.3.0.9": "127.3.0.9", "fd00::1": "127.0.0.1"} {
		spec, err := NewSpec("/d", "/h", address, 1, 2)
		if err != nil || spec.CommandAddress != want {
			t.Errorf("%s: commands at %s, %v; want %s", address, spec.CommandAddress, err, want)
		}
	}
	if _, err := NewSpec("/d", "/h", "", 1, 2); err == nil || !strings.Contains(err.Error(), "POD_IP") {
		t.Errorf("no address: %v", err)
	}
}
