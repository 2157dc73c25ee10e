package health

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

func TestTrackerDebouncesFlappingPort(t *testing.T) {
	const bad, good = "down", ""
	at := func(ms int, reading string, want Phase) func(*testing.T, *tracker, time.Time) {
		return func(t *testing.T, tr *tracker, start time.Time) {
			t.Helper()
			tr.observe(start.Add(time.Duration(ms)*time.Millisecond), reading)
			if tr.phase != want {
				t.Errorf("after %d ms: %s, want %s", ms, tr.phase, want)
			}
		}
	}
	up := int(UpAfter / time.Millisecond)
	for _, test := range []struct {
		name  string
		steps []func(*testing.T, *tracker, time.Time)
	}{
		{"a port that is up at the start is up at once", []func(*testing.T, *tracker, time.Time){at(0, good, Up)}},
		{"a port that is down at the start is down at once", []func(*testing.T, *tracker, time.Time){at(0, bad, Down)}},
		{"a blip does not count", []func(*testing.T, *tracker, time.Time){at(0, good, Up), at(100, bad, Failing), at(200, good, Up),
			at(400, bad, Failing)}},
		{"bad for long enough is down", []func(*testing.T, *tracker, time.Time){at(0, good, Up), at(100, bad, Failing), at(200, bad, Failing),
			at(260, bad, Down)}},
		{"good for long enough is up", []func(*testing.T, *tracker, time.Time){at(0, bad, Down), at(100, good, Recovering),
			at(1000, good, Recovering), at(100+up, good, Up)}},
		{"a flapping port stays down", []func(*testing.T, *tracker, time.Time){at(0, bad, Down), at(100, good, Recovering), at(up, bad, Down),
			at(up+100, good, Recovering), at(2*up, good, Recovering)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := &tracker{phase: Unknown}
			start := time.Now()
			for _, step := range test.steps {
				step(t, tr, start)
			}
		})
	}
}

func TestPhasesThatMayBeGivenToPods(t *testing.T) {
	for phase, want := range map[Phase]bool{Unknown: false, Up: true, Failing: true, Down: false, Recovering: false} {
		if phase.Healthy() != want {
			t.Errorf("%s: %v", phase, !want)
		}
	}
}

// ports is a set of ports whose readings a test sets.
type ports struct {
	mu    sync.Mutex
	bad   map[string]string
	hang  map[string]chan struct{}
	reads map[string]int
}

func (p *ports) read(port Port) string {
	p.mu.Lock()
	p.reads[port.Device]++
	hang := p.hang[port.Device]
	p.mu.Unlock()
	if hang != nil {
		<-hang
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bad[port.Device]
}

func (p *ports) set(device, bad string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad[device] = bad
}

// watch runs a watcher of the devices in a bubble of synthetic time.
func watch(t *testing.T, p *ports, devices ...string) *Watcher {
	t.Helper()
	p.bad, p.reads = map[string]string{}, map[string]int{}
	w := newWatcher(p.read, clock.RealClock{}) // In the bubble the real clock is the synthetic one.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	var list []Port
	for _, d := range devices {
		list = append(list, Port{Device: d, Path: "devices/" + d, Number: 1})
	}
	w.Set(list)
	return w
}

func TestWatcherReportsADeadPortWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &ports{}
		w := watch(t, p, "a", "b")
		w.Known(t.Context())
		key := Key{"a", 1}
		p.set("a", "dead")
		begin := time.Now()
		for w.State(key).Phase != Down {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begin); took > Period+confirmPeriod+DownAfter {
			t.Errorf("down after %v", took)
		}
		if s := w.State(key); s.Reason != "dead" || w.State(Key{"b", 1}).Phase != Up {
			t.Errorf("a is %+v, b is %+v", s, w.State(Key{"b", 1}))
		}
		p.set("a", "")
		begin = time.Now()
		for w.State(key).Phase != Up {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begin); took < UpAfter || took > UpAfter+2*Period {
			t.Errorf("up after %v", took)
		}
	})
}

func TestWatcherMarksOnlyThePortWhoseReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := &ports{hang: map[string]chan struct{}{"b": release}}
		w := watch(t, p, "a", "b", "c")
		w.Known(t.Context())
		time.Sleep(5 * time.Second)
		for device, want := range map[string]Phase{"a": Up, "b": Down, "c": Up} {
			if s := w.State(Key{device, 1}); s.Phase != want {
				t.Errorf("%s is %+v", device, s)
			}
		}
		p.mu.Lock()
		if p.reads["b"] != 1 || p.reads["a"] < 10 {
			t.Errorf("reads: %v; a port that hangs is not asked again, the others are", p.reads)
		}
		delete(p.hang, "b")
		p.mu.Unlock()
		close(release)
		time.Sleep(UpAfter + 2*time.Second)
		if s := w.State(Key{"b", 1}); s.Phase != Up {
			t.Errorf("after the firmware answers again b is %+v", s)
		}
	})
}

// A port that carried traffic when its firmware stopped answering is not read again, so no second reading would ever confirm that
// it is bad.
func TestWatcherReportsAPortWhoseReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, release := &ports{hang: map[string]chan struct{}{}}, make(chan struct{})
		w := watch(t, p, "a", "b")
		w.Known(t.Context())
		p.mu.Lock()
		p.hang["a"] = release
		p.mu.Unlock()
		time.Sleep(Period + readTimeout + time.Millisecond)
		if s := w.State(Key{"a", 1}); s.Phase != Down || !strings.Contains(s.Reason, "hang") {
			t.Errorf("a is %+v", s)
		}
		if s := w.State(Key{"b", 1}); s.Phase != Up {
			t.Errorf("b is %+v", s)
		}
		p.mu.Lock()
		delete(p.hang, "a")
		p.mu.Unlock()
		close(release)
		time.Sleep(UpAfter + time.Second)
		if s := w.State(Key{"a", 1}); s.Phase != Up {
			t.Errorf("after the firmware answers again a is %+v", s)
		}
	})
}

// seldom is the clock of a process that rarely gets the processor: then everything that it waits for has happened.
type seldom struct {
	clock.RealClock
	every time.Duration
}

func (s seldom) turn(d time.Duration) time.Duration {
	now := time.Now()
	return now.Add(d + s.every - 1).Truncate(s.every).Sub(now)
}

func (s seldom) NewTimer(d time.Duration) clock.Timer { return s.RealClock.NewTimer(s.turn(d)) }

func TestWatcherToleratesAStarvedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := seldom{every: 700 * time.Millisecond}
		w := newWatcher(func(Port) string { time.Sleep(at.turn(time.Millisecond)); return "" }, at)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		defer func() { cancel(); <-done; time.Sleep(2 * at.every) }() // a read may continue after the watcher has ended
		w.Set([]Port{{Device: "a", Path: "devices/a", Number: 1}})
		w.Known(t.Context())
		for range 200 {
			if s := w.State(Key{"a", 1}); s.Phase != Up {
				t.Fatalf("a, which answers whenever it is asked, is %+v", s)
			}
			<-time.After(at.every)
		}
	})
}

func TestWatcherReadsChangingPortsMoreOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &ports{}
		w := watch(t, p, "a", "b")
		w.Known(t.Context())
		p.set("a", "dead")
		for w.State(Key{"a", 1}).Phase != Down {
			time.Sleep(time.Millisecond)
		}
		p.set("a", "")
		p.mu.Lock()
		p.reads = map[string]int{}
		p.mu.Unlock()
		time.Sleep(2 * time.Second) // a is recovering
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.reads["a"] < 12 || p.reads["b"] > 6 {
			t.Errorf("reads in 2 s: %v", p.reads)
		}
	})
}

func TestSetKeepsStateOfKnownPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &ports{}
		w := watch(t, p, "a")
		p.set("a", "dead")
		w.Known(t.Context())
		before := w.State(Key{"a", 1})
		w.Set([]Port{{Device: "a", Path: "devices/a", Number: 1}, {Device: "b", Path: "devices/b", Number: 1}})
		if after := w.State(Key{"a", 1}); after != before {
			t.Errorf("a was %+v and is %+v", before, after)
		}
		w.Known(t.Context())
		if s := w.State(Key{"b", 1}); s.Phase != Up {
			t.Errorf("b is %+v", s)
		}
		w.Set(nil)
		if s := w.State(Key{"a", 1}); s.Phase != Unknown {
			t.Errorf("a port that is not watched is %+v", s)
		}
	})
}

func TestChangesAreSignalledOncePerChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &ports{}
		w := watch(t, p, "a")
		w.Known(t.Context())
		synctest.Wait()
		<-w.Changed() // the first reading
		select {
		case <-w.Changed():
			t.Error("a signal without a change")
		case <-time.After(10 * time.Second):
		}
		p.set("a", "dead")
		begin := time.Now()
		<-w.Changed()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("signalled after %v", took)
		}
	})
}

func TestKeysAreWrittenAsNCCLWritesThem(t *testing.T) {
	keys := []string{Key{"mlx5_0", 1}.String(), Port{Device: "mlx5_1", Number: 2}.Key().String()}
	if !slices.Equal(keys, []string{"mlx5_0:1", "mlx5_1:2"}) {
		t.Errorf("got %v", keys)
	}
}
