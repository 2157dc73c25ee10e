package imexd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/threads"
)

// fakeRunner makes daemons with the test's behaviour.
type fakeRunner struct {
	mu      sync.Mutex
	started []*fakeDaemon
	err     error
	reports []string // reason and message
}

func (r *fakeRunner) report(reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, reason+": "+message)
}

type fakeDaemon struct {
	mu       sync.Mutex
	state    imex.State
	silent   bool // it does not answer
	starving bool // it waits for a processor
	unasked  bool // so does its client
	asked    int
	nodes    map[int]imex.Node // its view of connections
	listed   int               // number of queries for them
	patience time.Duration
	reloads  []time.Time
	stalled  time.Duration // how long the next signal takes
	exited   chan struct{}
	err      error
	end      sync.Once
}

func (r *fakeRunner) Start(context.Context, imex.Spec) (imex.Daemon, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	daemon := &fakeDaemon{state: imex.Initializing, exited: make(chan struct{})}
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

func (d *fakeDaemon) Reload() error {
	d.mu.Lock()
	stalled := d.stalled
	d.reloads, d.stalled = append(d.reloads, time.Now()), 0
	d.mu.Unlock()
	time.Sleep(stalled)
	return nil
}

func (d *fakeDaemon) State(ctx context.Context) (imex.State, error) {
	d.mu.Lock()
	d.asked++
	silent, unasked, state := d.silent, d.unasked, d.state
	d.mu.Unlock()
	if silent {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		<-ctx.Done()
		if unasked {
			return imex.Unavailable, fmt.Errorf("nvidia-imex-ctl -q did not answer: %w", imex.ErrStarved)
		}
		return imex.Unavailable, errors.New("nvidia-imex-ctl -q did not answer")
	}
	return state, nil
}

func (d *fakeDaemon) Nodes(context.Context) (map[int]imex.Node, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listed++; d.silent {
		return nil, errors.New("nvidia-imex-ctl -N -j did not answer")
	}
	return d.nodes, nil
}

// Threads has one that has slept all the time, or waited for a processor.
func (d *fakeDaemon) Threads() (threads.Sample, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := threads.Thread{State: "S"}
	if d.starving {
		one.State = "R"
	}
	return threads.Sample{At: time.Now(), Threads: map[int]threads.Thread{1: one}}, nil
}

func (d *fakeDaemon) hang()                   { d.mu.Lock(); defer d.mu.Unlock(); d.silent = true }
func (d *fakeDaemon) answer()                 { d.mu.Lock(); defer d.mu.Unlock(); d.silent = false }
func (d *fakeDaemon) stall(by time.Duration)  { d.mu.Lock(); defer d.mu.Unlock(); d.stalled = by }
func (d *fakeDaemon) become(state imex.State) { d.mu.Lock(); defer d.mu.Unlock(); d.state = state }
func (d *fakeDaemon) Exited() <-chan struct{} { return d.exited }
func (d *fakeDaemon) Err() error              { return d.err }
func (d *fakeDaemon) Stop(patience time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.patience = patience
	d.end.Do(func() { close(d.exited) })
}
func (d *fakeDaemon) die(err error) { d.err = err; d.end.Do(func() { close(d.exited) }) }

func two() Group {
	return Group{Domain: "u", Clique: "c.1", Peers: []Peer{{Index: 1, Address: "10.0.0.2"}, {Index: 0, Address: "10.0.0.1"}}}
}

// supervised runs body beside a supervisor, in a bubble with its own clock.
func supervised(t *testing.T, body func(t *testing.T, s *Supervisor, r *fakeRunner)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		spec, err := imex.NewSpec(dir, filepath.Join(dir, "hosts"), "10.0.0.1", 50000, 50005)
		if err != nil {
			t.Fatal(err)
		}
		runner := &fakeRunner{}
		s := NewSupervisor(runner, spec, runner.report)
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

func TestSupervisorStartsWhenTheNodeHasItsIndex(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		if status, _ := s.Status(); status.Ready || !strings.Contains(status.Reason, "number this node") {
			t.Errorf("before: %+v", status)
		}
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		if status, _ := s.Status(); status.Ready || status.State != imex.Initializing || status.Peers != 2 {
			t.Errorf("while starting: %+v", status)
		}
		daemon.become(imex.Ready)
		began := time.Now()
		if status := s.AwaitReady(t.Context()); !status.Ready || time.Since(began) > 100*time.Millisecond {
			t.Errorf("ready after %s: %+v", time.Since(began), status)
		}
		hosts, err := os.ReadFile(s.spec.HostsFile)
		if err != nil || !strings.HasPrefix(string(hosts), hostsBegin+"10.0.0.1 "+two().peerName(0)+"\n10.0.0.2 "+two().peerName(1)+"\n") {
			t.Errorf("hosts (%v):\n%s", err, hosts)
		}
		nodes, err := os.ReadFile(s.spec.NodesFile)
		if err != nil || strings.Count(string(nodes), "\n") != 18 {
			t.Errorf("nodes (%v):\n%s", err, nodes)
		}
	})
}

func TestSupervisorAddsAPeerWithoutARestart(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		group := two()
		group.Peers = append(group.Peers, Peer{Index: 2, Address: "10.0.0.3"})
		s.Join(group)
		pass(time.Millisecond)
		if daemon := r.newest(t, 1); len(daemon.reloads) != 1 {
			t.Errorf("reloaded %d times", len(daemon.reloads))
		}
	})
}

func TestSupervisorRestartsForSettingsReadAtStart(t *testing.T) {
	for name, group := range map[string]Group{
		"a 19th node":                      {Domain: "u", Clique: "c.1", Peers: []Peer{{Index: 18, Address: "10.0.0.19"}}},
		"another clique":                   {Domain: "u", Clique: "c.2", Peers: two().Peers},
		"another index of its own":         {Domain: "u", Clique: "c.1", Own: 1, Peers: two().Peers},
		"more slots for all of its clique": {Domain: "u", Clique: "c.1", Slots: 36, Peers: two().Peers},
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

func TestSupervisorRestartsADeadDaemonWithItsCause(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		r.newest(t, 1).become(imex.Ready)
		pass(100 * time.Millisecond)
		r.newest(t, 1).die(errors.New("nvidia-imex ended: signal: killed"))
		pass(time.Millisecond)
		if status, _ := s.Status(); status.Ready || !strings.Contains(status.Reason, "signal: killed") || status.Restarts != 1 {
			t.Errorf("after its death: %+v", status)
		}
		pass(restartPause)
		r.newest(t, 2).become(imex.Ready)
		if status := s.AwaitReady(t.Context()); !status.Ready {
			t.Errorf("after the restart: %+v", status)
		}
	})
}

func TestSupervisorIsReadyWithoutFabric(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(Group{Peers: two().Peers})
		pass(time.Millisecond)
		if status, _ := s.Status(); !status.Ready {
			t.Errorf("%+v", status)
		}
		s.Join(two()) // its GPUs have joined a fabric later
		pass(100 * time.Millisecond)
		r.newest(t, 1)
	})
}

func TestSupervisorBacksOffWhenADaemonCannotStart(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		r.err = errors.New("no such file")
		s.Join(two())
		pass(time.Minute)
		if status, _ := s.Status(); status.Restarts < 8 || status.Restarts > 12 || !strings.Contains(status.Reason, "no such file") {
			t.Errorf("after a minute: %+v", status)
		}
	})
}

func TestSupervisorDelaysASecondSignal(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		for index := range 3 {
			group := two()
			group.Peers = append(group.Peers, Peer{Index: 2 + index, Address: "10.0.0.9"})
			s.Join(group)
			pass(time.Second)
		}
		pass(10 * time.Second)
		if len(daemon.reloads) != 2 || daemon.reloads[1].Sub(daemon.reloads[0]) <= 5*time.Second {
			t.Errorf("signalled at %v; want twice, more than 5 s apart: nvidia-imex ignores what comes sooner", daemon.reloads)
		}
	})
}

func TestSupervisorSignalsOnlyAfterTheFirstAnswer(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		synctest.Wait()
		daemon := r.newest(t, 1)
		daemon.become(imex.Unavailable)
		s.Join(Group{Domain: "u", Clique: "c.1", Peers: two().Peers[:1]})
		pass(time.Second)
		if len(daemon.reloads) != 0 {
			t.Error("SIGUSR1 ends a program that has not asked for it yet")
		}
		daemon.become(imex.InitGPU)
		pass(time.Second)
		if len(daemon.reloads) != 1 {
			t.Errorf("signalled %d times once it spoke, want once", len(daemon.reloads))
		}
	})
}

// The loop that counts is delayed for a minute, as on a node whose pods use all processors. The daemon had no processor either.
func TestSupervisorDoesNotTakeAStarvedDaemonForHung(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		daemon.become(imex.Ready)
		pass(time.Minute)
		daemon.hang()
		pass(1500 * time.Millisecond) // a query is on its way
		daemon.stall(time.Minute)
		s.Join(Group{Domain: "u", Clique: "c.1", Peers: append(two().Peers, Peer{Index: 2, Address: "10.0.0.9"})})
		pass(59 * time.Second)
		daemon.answer()
		pass(5 * time.Second)
		r.newest(t, 1)
		if status, _ := s.Status(); !status.Ready {
			t.Errorf("the daemon answers again, and the status is %+v", status)
		}
	})
}

func TestSupervisorReplacesAHungDaemonWithin15Seconds(t *testing.T) {
	for name, spoil := range map[string]func(*fakeDaemon){
		"it hangs":          func(d *fakeDaemon) { d.hang() },
		"it is UNAVAILABLE": func(d *fakeDaemon) { d.become(imex.Unavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
				s.Join(two())
				pass(100 * time.Millisecond)
				first := r.newest(t, 1)
				first.become(imex.Ready)
				pass(time.Minute)
				spoil(first)
				pass(6 * time.Second)
				if status, _ := s.Status(); status.Ready || status.Reason == "" {
					t.Errorf("after 6 s: %+v", status)
				}
				r.newest(t, 1)
				// In addition, the end of a hung daemon may take hungPatience.
				pass(9*time.Second - hungPatience)
				r.newest(t, 2).become(imex.Ready)
				if first.patience != hungPatience {
					t.Errorf("it got %s to end", first.patience)
				}
				if err := s.Alive(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Readiness that comes and goes with the node's load costs writes, and 288 nodes on two cores wrote nothing else.
func TestSupervisorToleratesOneMissedQuery(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		daemon.become(imex.Ready)
		pass(time.Minute)
		for range 10 {
			daemon.hang()
			pass(1100 * time.Millisecond) // one query has begun, and ends two seconds later without an answer
			daemon.answer()
			for range 40 {
				if status, _ := s.Status(); !status.Ready {
					t.Fatalf("beside one query without an answer: %+v", status)
				}
				pass(100 * time.Millisecond)
			}
		}
		r.newest(t, 1)
	})
}

func TestSupervisorKeepsADaemonThatAnswersNotReady(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		daemon.become(imex.WaitingForRecovery)
		pass(10 * time.Minute)
		r.newest(t, 1)
		if daemon.asked > 620 {
			t.Errorf("asked %d times in ten minutes; each is a process", daemon.asked)
		}
	})
}

func TestSupervisorQueriesAStartingDaemonSeldom(t *testing.T) {
	for _, takes := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
			s.Join(two())
			pass(takes)
			daemon := r.newest(t, 1)
			daemon.become(imex.Ready)
			began := time.Now()
			if status := s.AwaitReady(t.Context()); !status.Ready || time.Since(began) > takes/2 || daemon.asked > 12 {
				t.Errorf("ready after %s: noticed %s later, with %d questions", takes, time.Since(began), daemon.asked)
			}
		})
	}
}

func TestSupervisorEndsWithoutPrograms(t *testing.T) {
	dir := t.TempDir()
	spec, err := imex.NewSpec(dir, filepath.Join(dir, "hosts"), "10.0.0.1", 50000, 50005)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSupervisor(&imex.Process{}, spec, func(string, string) {})
	s.Join(two())
	if err := s.Run(t.Context()); !errors.Is(err, imex.ErrNoPrograms) {
		t.Errorf("error %v", err)
	}
}

func TestSlotsHaveDistinctAddresses(t *testing.T) {
	for _, bind := range []string{"10.0.0.1", "fd00::1"} {
		group := Group{Domain: "u", Clique: "c.1", Slots: 36, Peers: []Peer{{Index: 3, Address: bind}}}
		addresses := map[string]string{}
		for line := range strings.Lines(string(hostsWith(nil, group, bind))) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			address, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			if other, taken := addresses[address]; taken {
				t.Errorf("%s and %s have the address %s", name, other, address)
			}
			addresses[address] = name
		}
		if len(addresses) != 36 || addresses[bind] != group.peerName(3) {
			t.Errorf("%d of 36 names have an address, and %s is %s", len(addresses), bind, addresses[bind])
		}
	}
}

func TestDomainsAndCliquesHaveNamesOfTheirOwn(t *testing.T) {
	names := map[string]bool{}
	for _, group := range []Group{{Domain: "u", Clique: "c.1"}, {Domain: "u", Clique: "c.2"}, {Domain: "v", Clique: "c.1"}} {
		name := group.peerName(0)
		if names[name] || !strings.Contains(name, ".") {
			t.Errorf("%s, beside %v: want one of its own, with a dot", name, names)
		}
		names[name] = true
	}
}

func TestForeignLinesOfTheHostsFileStay(t *testing.T) {
	group := Group{Domain: "u", Clique: "c.1", Peers: []Peer{{Index: 0, Address: "10.0.0.1"}}}
	block := string(hostsWith(nil, group, "10.0.0.1"))
	for name, c := range map[string]struct{ old, want string }{
		"an empty file":              {"", block},
		"a file without our lines":   {"127.0.0.1 localhost\n", "127.0.0.1 localhost\n" + block},
		"a last line without an end": {"127.0.0.1 localhost", "127.0.0.1 localhost\n" + block},
		"older lines of ours":        {"a\n" + hostsBegin + "10.9.9.9 old\n" + hostsEnd + "b\n", "a\nb\n" + block},
		"a write that was cut short": {"a\n" + hostsBegin + "10.9.", "a\n" + block},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, string(hostsWith([]byte(c.old), group, "10.0.0.1"))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCommandsStayOnTheMachine(t *testing.T) {
	for address, want := range map[string]string{"10.0.0.1": "127.0.0.1", "127.3.0.9": "127.3.0.9", "fd00::1": "127.0.0.1"} {
		spec, err := imex.NewSpec("/d", "/h", address, 1, 2)
		if err != nil || spec.CommandAddress != want {
			t.Errorf("%s: commands at %s, %v; want %s", address, spec.CommandAddress, err, want)
		}
	}
	if _, err := imex.NewSpec("/d", "/h", "", 1, 2); err == nil || !strings.Contains(err.Error(), "POD_IP") {
		t.Errorf("no address: %v", err)
	}
}
