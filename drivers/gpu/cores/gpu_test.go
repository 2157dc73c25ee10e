//shows:vgpu-limits
package cores

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// process plays the library of a process: it launches kernels in its turns, and gives each back when they are done.
type process struct {
	gpu     *gpu
	client  *client
	answers chan uint32
	kernel  time.Duration
	ran     time.Duration
	far     time.Duration // what it needs to begin when it has its turn, and again to see that the GPU has done its kernels
	says    bool          // how long the GPU worked for it
	waited  time.Duration // for a turn, at most
}

func begin(g *gpu, m *member, kernel time.Duration) *process {
	p := &process{gpu: g, answers: make(chan uint32, 8), kernel: kernel}
	p.client = &client{send: func(kind uint32, _ time.Duration) { p.answers <- kind }}
	g.join(m, p.client)
	return p
}

// run launches until a time.
func (p *process) run(until time.Time) {
	for time.Now().Before(until) {
		asked := time.Now()
		p.gpu.want(p.client)
		if kind := <-p.answers; kind != grant {
			panic(fmt.Sprintf("answer %d to a wish", kind))
		}
		p.waited = max(p.waited, time.Since(asked))
		time.Sleep(p.far)
		before, worked := p.ran, time.Duration(0)
		for kind := grant; kind == grant; kind = <-p.answers {
			for began := time.Now(); time.Since(began) < turn && time.Now().Before(until); p.ran += p.kernel {
				time.Sleep(p.kernel)
			}
			if !time.Now().Before(until) {
				break
			}
			p.gpu.more(p.client)
		}
		time.Sleep(p.far)
		if p.says {
			worked = p.ran - before
		}
		p.gpu.done(p.client, worked)
	}
}

// together runs processes until a time, and returns when all are done.
func together(until time.Time, all ...*process) {
	var group sync.WaitGroup
	for _, p := range all {
		group.Go(func() { p.run(until) })
	}
	group.Wait()
}

// shares runs a process of each container for 30 s, and returns their percentages of that time.
func shares(t *testing.T, lend bool, kernel time.Duration, cores ...int) (percent []float64) {
	t.Helper()
	const long = 30 * time.Second
	synctest.Test(t, func(*testing.T) {
		g, until := &gpu{lend: lend}, time.Now().Add(long)
		var all []*process
		for _, c := range cores {
			all = append(all, begin(g, &member{cores: c}, kernel))
		}
		together(until, all...)
		for _, p := range all {
			percent = append(percent, 100*p.ran.Seconds()/long.Seconds())
		}
	})
	return percent
}

func TestPercentagesAreKeptWithinThreePoints(t *testing.T) {
	for _, test := range []struct {
		lend   bool
		kernel time.Duration
		cores  []int
		want   []float64
	}{
		{false, time.Millisecond, []int{10}, []float64{10}},
		{false, time.Millisecond, []int{25}, []float64{25}},
		{false, time.Millisecond, []int{50}, []float64{50}},
		{false, time.Millisecond, []int{75}, []float64{75}},
		{false, time.Millisecond, []int{100}, []float64{100}},
		{false, 300 * time.Millisecond, []int{25}, []float64{25}}, // a kernel that is longer than a turn
		{false, time.Millisecond, []int{10, 25, 50}, []float64{10, 25, 50}},
		{false, 7 * time.Millisecond, []int{50, 50}, []float64{50, 50}},
		{true, time.Millisecond, []int{50, 50}, []float64{50, 50}},
		{true, 90 * time.Millisecond, []int{50, 50}, []float64{50, 50}},
		{true, time.Millisecond, []int{25, 75}, []float64{25, 75}},
		{true, time.Millisecond, []int{10, 90}, []float64{10, 90}},
		{true, time.Millisecond, []int{25}, []float64{100}},        // nobody else wants it
		{true, time.Millisecond, []int{10, 30}, []float64{25, 75}}, // what is left is lent by the same proportion
		{true, 400 * time.Microsecond, []int{25, 25, 50}, []float64{25, 25, 50}},
	} {
		for i, got := range shares(t, test.lend, test.kernel, test.cores...) {
			if math.Abs(got-test.want[i]) > 3 {
				t.Errorf("%v, lent %t, kernels of %s: container %d had %.1f %%, want %.0f", test.cores, test.lend, test.kernel, i, got, test.want[i])
			}
		}
	}
}

// A process hears of its turn late, and sees late that the GPU has done its kernels. It is not charged for that where it says so.
func TestTheHandOverOfATurnIsNotCharged(t *testing.T) {
	for _, says := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g, until := &gpu{}, time.Now().Add(30*time.Second)
			p := begin(g, &member{cores: 75}, time.Millisecond)
			p.far, p.says = 300*time.Microsecond, says
			together(until, p)
			if got := 100 * p.ran.Seconds() / 30; says && math.Abs(got-75) > 0.5 || !says && got > 74 {
				t.Errorf("one with 75 %% that says what the GPU did (%t) had %.1f %%", says, got)
			}
		})
	}
}

// The processes of a container share its percentage: more processes do not have more.
func TestMoreProcessesHaveNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, until := &gpu{lend: true}, time.Now().Add(30*time.Second)
		crowd, single := &member{cores: 50}, &member{cores: 50}
		var many []*process
		for range 7 {
			many = append(many, begin(g, crowd, time.Millisecond))
		}
		one := begin(g, single, time.Millisecond)
		together(until, append(many, one)...)
		if got := 100 * one.ran.Seconds() / 30; math.Abs(got-50) > 3 {
			t.Errorf("one process beside seven of another container had %.1f %%, want 50", got)
		}
		for i, p := range many {
			if got := 100 * p.ran.Seconds() / 30; math.Abs(got-50.0/7) > 3 {
				t.Errorf("process %d of seven had %.1f %%, want 7", i, got)
			}
		}
	})
}

func TestOneThatKeepsTheGPUIsChargedAndStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, until := &gpu{lend: true}, time.Now().Add(30*time.Second)
		greedy, honest := begin(g, &member{cores: 50}, time.Millisecond), begin(g, &member{cores: 50}, time.Millisecond)
		greedy.gpu.want(greedy.client)
		if kind := <-greedy.answers; kind != grant {
			t.Fatalf("answer %d", kind)
		}
		together(until, honest)
		if got := 100 * honest.ran.Seconds() / 30; got < 95 {
			t.Errorf("beside one that keeps its turn, another had %.1f %%, want all but the first second", got)
		}
		// What it kept is its own use: it comes after the other until that had as much.
		if g.share(greedy.client.member); greedy.client.member.used < 29*time.Second {
			t.Errorf("it is charged %s for 30 s", greedy.client.member.used)
		}
		g.leave(greedy.client)
	})
}

// A process that dies in its turn, or while it waits, leaves the GPU to the others at once.
func TestTheDeadHaveNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gpu{lend: true}
		m := &member{cores: 50}
		dead, waits, last := begin(g, m, time.Millisecond), begin(g, m, time.Millisecond), begin(g, &member{cores: 50}, time.Millisecond)
		for _, p := range []*process{dead, waits, last} {
			g.want(p.client)
		}
		<-dead.answers
		g.leave(waits.client)
		g.leave(dead.client)
		select {
		case kind := <-last.answers:
			if kind != grant {
				t.Errorf("answer %d, want a turn", kind)
			}
		default:
			t.Error("the last one has no turn")
		}
		if len(waits.answers) != 0 || len(m.clients) != 0 {
			t.Error("one that is gone was given a turn, or counts")
		}
		g.leave(last.client)
	})
}

// A container cannot save up what it does not want, nor keep what it is owed by asking for nothing.
func TestWhatIsNotWantedIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gpu{lend: true}
		rests, works := begin(g, &member{cores: 50}, time.Millisecond), begin(g, &member{cores: 50}, time.Millisecond)
		var resting sync.WaitGroup
		resting.Go(func() {
			for range 300 {
				time.Sleep(100 * time.Millisecond)
				g.done(rests.client, 0) // it has no turn
			}
		})
		together(time.Now().Add(30*time.Second), works)
		resting.Wait()
		before := works.ran
		together(time.Now().Add(30*time.Second), works, rests)
		if got := 100 * (works.ran - before).Seconds() / 30; math.Abs(got-50) > 3 {
			t.Errorf("one that worked before had %.1f %% beside one that rested, want 50", got)
		}
	})
}

func TestAWishThatIsRepeatedIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gpu{lend: true}
		first, second := begin(g, &member{cores: 50}, time.Millisecond), begin(g, &member{cores: 50}, time.Millisecond)
		g.want(first.client)
		g.want(second.client)
		g.want(second.client)
		g.want(first.client)
		for name, got := range map[string][]uint32{"first": {<-first.answers, <-first.answers}, "second": {<-second.answers}} {
			if name == "first" && (got[0] != grant || got[1] != closed) || name == "second" && got[0] != wait {
				t.Errorf("%s: answers %v", name, got)
			}
		}
		g.leave(first.client)
		g.leave(second.client)
	})
}
