//shows:vgpu-limits
package cores

import (
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/gpu/limiter"
)

// takes wants a turn, and says whether it was given one before a time.
func (p *process) takes(until time.Time) bool {
	p.gpu.want(p.client)
	for {
		select {
		case kind := <-p.answers:
			if kind == grant {
				return true
			}
		case <-time.After(time.Until(until)):
			return false
		}
	}
}

// A container that keeps the GPU longer than its turns is charged for that, whether it says so or not: an honest one with the same
// percentage has half of the time, and waits for one turn at most.
func TestOneThatKeepsItsTurnsHasNoMoreThanItsShare(t *testing.T) {
	const long = 30 * time.Second
	for name, attack := range map[string]func(g *gpu, m *member, until time.Time) []*process{
		//attack:cores-late A tenant says a second late that its turn on the GPU is over, each time
		"late": func(g *gpu, m *member, until time.Time) []*process {
			p := begin(g, m, time.Millisecond)
			for p.takes(until) {
				time.Sleep(time.Second)
				g.done(p.client, 0)
			}
			return []*process{p}
		},
		//attack:cores-silent A tenant's processes never give a turn back, as with the library's thread ended, and others of them ask
		"silent": func(g *gpu, m *member, until time.Time) (all []*process) {
			for all = append(all, begin(g, m, time.Millisecond)); all[len(all)-1].takes(until); {
				all = append(all, begin(g, m, time.Millisecond))
			}
			return all
		},
		"a silent crowd": func(g *gpu, m *member, until time.Time) (all []*process) {
			var waits sync.WaitGroup
			for range 100 {
				p := begin(g, m, time.Millisecond)
				all = append(all, p)
				waits.Go(func() { p.takes(until) })
			}
			waits.Wait()
			return all
		},
		//attack:cores-lie A tenant says that the GPU did almost nothing for it in its turns
		"a lie": func(g *gpu, m *member, until time.Time) []*process {
			p := begin(g, m, time.Millisecond)
			for p.takes(until) {
				for range 20 {
					time.Sleep(p.kernel)
				}
				p.ran += turn
				g.done(p.client, 1)
			}
			return []*process{p}
		},
		//attack:cores-reconnect A tenant's process ends in each of its turns on the GPU, and another one takes its place
		"another process for each turn": func(g *gpu, m *member, until time.Time) []*process {
			p := begin(g, m, time.Millisecond)
			for p.takes(until) {
				time.Sleep(time.Second)
				g.leave(p.client)
				p = begin(g, m, time.Millisecond)
			}
			return []*process{p}
		},
	} {
		for _, lend := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lent %t", name, lend), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g, until := &gpu{lend: lend}, time.Now().Add(long)
					honest := begin(g, &member{cores: 50}, time.Millisecond)
					var left []*process
					var both sync.WaitGroup
					both.Go(func() { left = attack(g, &member{cores: 50}, until) })
					time.Sleep(time.Millisecond) // the attacker comes first
					both.Go(func() { honest.run(until) })
					both.Wait()
					if got := 100 * honest.ran.Seconds() / long.Seconds(); got < 47 {
						t.Errorf("the honest container had %.1f %%, want 50", got)
					}
					if most := turn + patience + 2*time.Millisecond; lend && honest.waited > most {
						t.Errorf("it waited %s for a turn, want %s at most", honest.waited, most)
					}
					for _, p := range left {
						if got := 100 * p.ran.Seconds() / long.Seconds(); got > 53 {
							t.Errorf("the attacker had %.1f %%, want 50", got)
						}
						g.leave(p.client)
					}
				})
			})
		}
	}
}

// What a container says that the GPU did for it is believed up to a part of its turn, however often it says so and whatever it says.
func TestALieAboutATurnGainsLittle(t *testing.T) {
	for _, worked := range []time.Duration{1, -1, time.Hour, math.MinInt64, math.MaxInt64} {
		synctest.Test(t, func(t *testing.T) {
			g, until := &gpu{}, time.Now().Add(30*time.Second)
			p := begin(g, &member{cores: 75}, time.Millisecond)
			for p.takes(until) {
				time.Sleep(turn)
				p.ran += turn
				for range 100 {
					g.done(p.client, worked)
				}
			}
			if got := 100 * p.ran.Seconds() / 30; got > 78 || got < 74 {
				t.Errorf("one with 75 %% that says it worked for %s had %.1f %%", worked, got)
			}
			g.leave(p.client)
		})
	}
}

func TestAContainerIsServedAtItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := pace{every: time.Millisecond, burst: 100}, time.Now()
		for range 100 {
			p.step()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a burst took %s", took)
		}
		for range 10_000 {
			p.step()
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("10,000 more took %s, want 10 s", took)
		}
		time.Sleep(time.Hour)
		began = time.Now()
		for range 200 {
			p.step()
		}
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("after a rest, 200 took %s: no more than a burst is saved up", took)
		}
	})
}

// The tenant's connections are bounded, and what is read of them in a second. Another container on the GPU has its turns meanwhile.
//
//attack:cores-connections A tenant opens 10,000 connections to the arbiter of turns, so that no other container gets one
//attack:cores-flood A tenant sends the arbiter of turns questions without end, and gives back no turn
func TestAFloodFromOneContainerKeepsNoOtherFromItsTurns(t *testing.T) {
	const all = 10_000
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Cur < 4*mostClients {
		t.Skipf("skipped: this process may have %d files (%v), and the test has %d", files.Cur, err, 4*mostClients)
	}
	a := opened(t)
	const neighbour = "other-uid_main"
	if err := a.Open(neighbour, []limiter.Limit{{UUID: uuid, Cores: 50}}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	link := filepath.Join(t.TempDir(), "turns")
	if err := os.Symlink(a.Path(name), link); err != nil {
		t.Fatal(err)
	}
	var served []dialled
	for i := range all {
		d := dialAt(t, link)
		if i < mostClients {
			d.say(hello, uuid)
			d.say(want, "")
			served = append(served, d)
			continue
		}
		if kind, _ := d.hear(); kind != 0 {
			t.Fatalf("connection %d is answered %d, where %d are allowed", i, kind, mostClients)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var ends atomic.Bool
	var answers atomic.Int64
	var flood sync.WaitGroup
	for _, d := range served[1:9] {
		flood.Go(func() {
			for !ends.Load() {
				d.say(want, "")
				d.hear()
				answers.Add(1)
			}
		})
	}
	other := filepath.Join(t.TempDir(), "turns")
	if err := os.Symlink(a.Path(neighbour), other); err != nil {
		t.Fatal(err)
	}
	victim := dialAt(t, other)
	victim.say(hello, uuid)
	const turns = 3 // for each, the flood keeps one of its own to the end
	for range turns {
		victim.say(want, "")
		for kind := wait; kind != grant; {
			if kind, _ = victim.hear(); kind == 0 {
				t.Fatal("the neighbour's connection was closed")
			}
		}
		victim.say(done, "")
	}
	ends.Store(true)
	flood.Wait()
	// A question has one answer, besides the turn that it asks for.
	if most := int64(mostClients) + int64(time.Since(began)/packetEvery) + int64(len(served)); answers.Load() > most {
		t.Errorf("%d questions were answered, want %d at most", answers.Load(), most)
	}
	t.Logf("attacker sees: %d of %d connections, and %d answers in %s, while another container had %d turns", len(served), all,
		answers.Load(), time.Since(began), turns)
}

// dialAt connects to the socket in a directory.
func dialAt(t *testing.T, directory string) dialled {
	t.Helper()
	connection, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(directory, socket)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	if err := connection.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return dialled{connection, t}
}
