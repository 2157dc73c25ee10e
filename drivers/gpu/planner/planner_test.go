package planner_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/planner"
)

func unbounded() []planner.Limits {
	return slices.Repeat([]planner.Limits{{Max: 64}}, 4)
}

// The goals are those of docs/scheduling.md: as many slices in use as with counters, of which the scheduler would see every placement.
func TestPlannerKeepsAsManySlicesInUseAsCountersOnTheSameTrace(t *testing.T) {
	for _, test := range []struct {
		name    string
		wanted  mix
		load    float64
		length  time.Duration
		changes float64 // an hour, at most
	}{
		{"80 %", steady, 0.80, 2 * time.Hour, 300},
		{"95 %", steady, 0.95, 2 * time.Hour, 500},
		{"a mix that jumps, 80 %", jumping, 0.80, 150 * time.Minute, 700},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pods := trace(1, test.wanted, test.load, test.length)
			ideal := (&cluster{scheduler: &counters{}}).run(pods, test.length)
			p := newPlanned(unbounded())
			got := p.run(pods, test.length)
			describe := func(r result) string {
				text := fmt.Sprintf("%.3f in use, %.0f changes an hour, %d aborted, %.1f %% needed a cut; waits p95/p99", r.used, r.changes, r.aborted,
					100*r.needed)
				for s := range 4 {
					text += fmt.Sprintf(" %s %.0f/%.0f s", h100().Shapes[s].Name, r.wait(s, .95).Seconds(), r.wait(s, .99).Seconds())
				}
				return text
			}
			t.Logf("counters: %s", describe(ideal))
			t.Logf("planner:  %s", describe(got))
			for _, w := range p.wrong {
				t.Error(w)
			}
			if got.used < 0.98*ideal.used {
				t.Errorf("%.4f of the slices are in use, with counters %.4f; want at least 0.98 of that", got.used, ideal.used)
			}
			if got.needed > 0.02 {
				t.Errorf("%.3f of the pods needed a cut; want at most 0.02", got.needed)
			}
			if got.changes > test.changes {
				t.Errorf("%.0f changes an hour; want at most %.0f", got.changes, test.changes)
			}
		})
	}
}

// gpus are empty GPUs, each whole, of one node.
func gpus(model *planner.Model, n int) []planner.GPU {
	var out []planner.GPU
	for i := range n {
		out = append(out, planner.GPU{ID: id(i), Node: "n", Model: model, Devices: []planner.Device{{Shape: len(model.Shapes) - 1}}})
	}
	return out
}

func now() time.Time { return time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC) }

func waiting(namespace string, shape, n int, age time.Duration) []planner.Waiting {
	return slices.Repeat([]planner.Waiting{{Namespace: namespace, Shape: shape, Since: now().Add(-age)}}, n)
}

func devicesOf(orders []planner.Order, shape int) int {
	n := 0
	for _, o := range orders {
		for _, d := range o.Layout {
			if d.Shape == shape && !d.Busy {
				n++
			}
		}
	}
	return n
}

func TestPlannerServesANamespaceWhenAnotherRequestsEverything(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 12), Limits: make([]planner.Limits, 4),
		Waiting: slices.Concat(waiting("greedy", 0, 10_000, time.Hour), waiting("modest", 2, 1, time.Second))}
	orders := planner.New(planner.Options{}).Plan(s)
	if devicesOf(orders, 2) == 0 {
		t.Errorf("the namespace with one pod gets nothing: %+v", orders)
	}
	cut := 0
	for _, o := range orders {
		if o.Namespace == "greedy" {
			cut++
		}
	}
	if cut > 8 {
		t.Errorf("%d GPUs are cut for one namespace at a time; want at most 8", cut)
	}
}

// Whole GPUs are not free for minutes, and their pods came first.
func TestPlannerCutsForSmallPodsWhenLargeOnesOfTheirNamespaceFitNowhere(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 2), Limits: make([]planner.Limits, 4),
		Waiting: slices.Concat(waiting("a", whole, 20, 30*time.Second), waiting("a", 0, 1, time.Second))}
	s.GPUs[0].Devices[0].Busy = true
	s.GPUs[1].Devices = []planner.Device{{Shape: 2, Start: 0, Busy: true}, {Shape: 2, Start: 4}}
	if orders := planner.New(planner.Options{}).Plan(s); len(orders) != 1 || devicesOf(orders, 0) == 0 || orders[0].Namespace != "a" {
		t.Errorf("%+v", orders)
	}
}

func TestPlannerCutsForOthersWhenANamespaceHasAllItsCuts(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 20), Limits: make([]planner.Limits, 4),
		Waiting: slices.Concat(waiting("greedy", whole, 40, time.Minute), waiting("greedy", 0, 80, time.Minute), waiting("modest", whole, 1, 0))}
	for i := range s.GPUs {
		s.GPUs[i].Devices = []planner.Device{{Shape: 2, Start: 0}, {Shape: 2, Start: 4}}
	}
	cuts := map[string]int{}
	for _, o := range planner.New(planner.Options{}).Plan(s) {
		cuts[o.Namespace]++
	}
	if cuts["greedy"] != 8 || cuts["modest"] != 1 {
		t.Errorf("GPUs are cut for namespaces %v; want 8 and 1", cuts)
	}
}

func TestPlannerDoesNotCutWhenPodsDoNotWait(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 4), Limits: unbounded()}
	if orders := planner.New(planner.Options{}).Plan(s); len(orders) != 0 {
		t.Errorf("orders without a pod or a reserve: %+v", orders)
	}
}

func TestPlannerKeepsReserveWhenAdministratorWantsOne(t *testing.T) {
	limits := make([]planner.Limits, 4)
	limits[1] = planner.Limits{Min: 3, Max: 3}
	orders := planner.New(planner.Options{}).Plan(planner.State{Now: now(), GPUs: gpus(h100(), 4), Limits: limits})
	if got := devicesOf(orders, 1); got < 3 {
		t.Errorf("%d devices are cut for a reserve of 3: %+v", got, orders)
	}
	if len(orders) != 1 || orders[0].Reason == "" {
		t.Errorf("want one order with a reason, got %+v", orders)
	}
}

func TestPlannerObeysCeilingWhenMoreArePending(t *testing.T) {
	limits := make([]planner.Limits, 4)
	limits[2].Ceiling = 2
	s := planner.State{Now: now(), GPUs: gpus(h100(), 4), Limits: limits, Waiting: waiting("a", 2, 6, time.Hour)}
	if got := devicesOf(planner.New(planner.Options{}).Plan(s), 2); got != 2 {
		t.Errorf("%d devices of a shape with a ceiling of 2", got)
	}
}

func TestPlannerIgnoresPinnedAndChangingGPUs(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 2), Limits: make([]planner.Limits, 4), Waiting: waiting("a", 0, 3, time.Hour)}
	s.GPUs[0].Pinned = true
	s.GPUs[1].Changing = []planner.Device{{Shape: 1}}
	if orders := planner.New(planner.Options{}).Plan(s); len(orders) != 0 {
		t.Errorf("%+v", orders)
	}
}

func TestPlannerRecutsTheFreePartWhenAnInstanceIsInUse(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 1), Limits: make([]planner.Limits, 4), Waiting: waiting("a", 2, 1, time.Second)}
	s.GPUs[0].Devices = []planner.Device{{Shape: 0, Start: 0, Busy: true}, {Shape: 0, Start: 1}, {Shape: 1, Start: 2}, {Shape: 0, Start: 4},
		{Shape: 1, Start: 5}}
	orders := planner.New(planner.Options{}).Plan(s)
	if len(orders) != 1 || devicesOf(orders, 2) != 1 || !slices.Contains(orders[0].Layout, planner.Device{Shape: 0, Start: 0, Busy: true}) {
		t.Fatalf("%+v", orders)
	}
	if !slices.Contains(orders[0].Layout, planner.Device{Shape: 2, Start: 4}) {
		t.Errorf("the large shape does not lie at slice 4: %+v", orders[0].Layout)
	}
}

func TestPlannerHidesAGPUWhenAWholePodHasWaitedForLong(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 2), Limits: make([]planner.Limits, 4), Waiting: waiting("a", whole, 1, 2*time.Minute)}
	s.GPUs[0].Devices = []planner.Device{{Shape: 2, Start: 0, Busy: true}, {Shape: 2, Start: 4, Busy: true}}
	s.GPUs[1].Devices = []planner.Device{{Shape: 2, Start: 0, Busy: true}, {Shape: 2, Start: 4}}
	p := planner.New(planner.Options{})
	orders := p.Plan(s)
	if len(orders) != 1 || orders[0].GPU != id(1) || len(orders[0].Hide) != 1 {
		t.Fatalf("%+v", orders)
	}
	// The last instance ends: the GPU becomes whole, also by the orders of a planner that has just begun.
	s.GPUs[1].Devices = []planner.Device{{Shape: 2, Start: 0, Hidden: true}, {Shape: 2, Start: 4, Hidden: true}}
	for name, p := range map[string]*planner.Planner{"the same": p, "another": planner.New(planner.Options{})} {
		if orders := p.Plan(s); len(orders) != 1 || devicesOf(orders, whole) != 1 {
			t.Errorf("%s planner: %+v", name, orders)
		}
	}
}

func TestPlannerIgnoresPodsWhenTheirShapeDoesNotExist(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 1), Limits: make([]planner.Limits, 4),
		Waiting: []planner.Waiting{{Shape: 9, Namespace: "a"}, {Shape: -1, Namespace: "a"}}}
	if orders := planner.New(planner.Options{}).Plan(s); len(orders) != 0 {
		t.Errorf("%+v", orders)
	}
}

// BenchmarkPlan decides for 1,008 nodes of eight GPUs, where a pod waits that no GPU has room for: the longest search.
func BenchmarkPlan(b *testing.B) {
	s := planner.State{Now: now(), Limits: unbounded(), Waiting: waiting("a", whole, 100, time.Minute)}
	model := h100()
	for i := range 8064 {
		s.GPUs = append(s.GPUs, planner.GPU{ID: fmt.Sprint(i), Model: model, Devices: []planner.Device{
			{Shape: 0, Start: 0, Busy: true}, {Shape: 0, Start: 1, Busy: i%2 == 0}, {Shape: 1, Start: 2, Busy: i%3 == 0},
			{Shape: 2, Start: 4, Busy: i%5 > 0}}})
	}
	p := planner.New(planner.Options{})
	for b.Loop() {
		p.Plan(s)
	}
}

// step carries out orders at once: every cut succeeds, and no pod takes a device.
func step(s *planner.State, orders []planner.Order) (cuts int) {
	for _, o := range orders {
		at := slices.IndexFunc(s.GPUs, func(g planner.GPU) bool { return g.ID == o.GPU })
		if o.Layout != nil {
			s.GPUs[at].Devices, s.GPUs[at].Changed = o.Layout, s.Now
			cuts++
		}
	}
	return cuts
}

// Seven pods of the smallest shape and one whole pod each outweigh the other, and none of them is ever placed.
func TestPlannerCutsLessAndLessWhenPodsExcludeEachOtherForEver(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 1), Limits: make([]planner.Limits, 4),
		Waiting: slices.Concat(waiting("a", 0, 7, time.Minute), waiting("b", whole, 1, time.Minute))}
	p := planner.New(planner.Options{})
	var hours [6]int
	last := ""
	for i := range hours {
		for range 7200 {
			s.Now = s.Now.Add(500 * time.Millisecond)
			orders := p.Plan(s)
			for _, o := range orders {
				last = o.Reason
			}
			hours[i] += step(&s, orders)
		}
	}
	if !strings.Contains(last, "so it rests for 1h0m0s unless a pod takes one of its new devices") {
		t.Errorf("the reason of the last order is %q", last)
	}
	t.Logf("cuts in each hour: %v", hours)
	if hours[0] > 12 || hours[5] > 2 {
		t.Errorf("the GPU was cut %v times in each hour", hours)
	}
	// A pod that gets its device ends the pause.
	s.GPUs[0].Devices = []planner.Device{{Shape: 0, Start: 0, Busy: true}, {Shape: 0, Start: 1}}
	s.Waiting = waiting("a", 2, 1, time.Second)
	p.Plan(planner.State{Now: s.Now, Limits: s.Limits, GPUs: []planner.GPU{{ID: s.GPUs[0].ID, Model: s.GPUs[0].Model,
		Devices: []planner.Device{{Shape: whole, Busy: true}}}}})
	if cuts := step(&s, p.Plan(s)); cuts != 1 {
		t.Errorf("%d cuts after devices were in use, want 1", cuts)
	}
}

func TestPlannerServesHigherPriorityFirstWhenBothWait(t *testing.T) {
	for name, test := range map[string]struct {
		devices  []planner.Device
		low      []planner.Waiting
		shape, n int // that pods of a high priority want
		want     int
	}{
		"and the others would fill the GPU":          {[]planner.Device{{Shape: whole}}, waiting("a", 0, 7, time.Hour), 2, 2, 2},
		"and the free GPU is what another waits for": {[]planner.Device{{Shape: whole}}, waiting("a", whole, 1, time.Hour), 0, 1, 1},
		"and what they want is free in the other's way": {[]planner.Device{{Shape: 2, Start: 0}, {Shape: 2, Start: 4, Busy: true}},
			waiting("a", whole, 1, time.Hour), 2, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := planner.State{Now: now(), GPUs: gpus(h100(), 1), Limits: make([]planner.Limits, 4)}
			s.GPUs[0].Devices = test.devices
			s.Waiting = waiting("b", test.shape, test.n, time.Second)
			for i := range s.Waiting {
				s.Waiting[i].Priority = 1000
			}
			s.Waiting = append(s.Waiting, test.low...)
			orders := planner.New(planner.Options{}).Plan(s)
			if got := devicesOf(orders, test.shape); got < test.want || test.want == 0 && len(orders) > 0 {
				t.Errorf("%d devices for pods of a higher priority, want %d: %+v", got, test.want, orders)
			}
		})
	}
}

func TestPlannerCutsOneGPUWhenDevicesMustBeOfOne(t *testing.T) {
	two := planner.Waiting{Shape: 0, Beside: []int{0}, Since: now(), Namespace: "a"}
	busy := planner.Device{Shape: 2, Start: 0, Busy: true}
	one := []planner.Device{busy, {Shape: 0, Start: 4}}
	for name, test := range map[string]struct {
		gpus    [][]planner.Device
		waiting []planner.Waiting
		want    []string // GPUs that get an order
	}{
		"and each GPU has one": {[][]planner.Device{one, one}, []planner.Waiting{two}, []string{id(0)}},
		"and one GPU has both": {[][]planner.Device{one, {busy, {Shape: 0, Start: 4}, {Shape: 0, Start: 5}}}, []planner.Waiting{two}, nil},
		"and one GPU has both for one of two pods": {[][]planner.Device{{busy, {Shape: 0, Start: 4}, {Shape: 0, Start: 5}}, one},
			[]planner.Waiting{two, two}, []string{id(1)}},
		"and one GPU has enough for two pods": {[][]planner.Device{{{Shape: 0, Start: 3, Busy: true}, {Shape: 0, Start: 4},
			{Shape: 0, Start: 5}, {Shape: 0, Start: 1}, {Shape: 0, Start: 2}}, one}, []planner.Waiting{two, two}, nil},
		"and one GPU hides them": {[][]planner.Device{one, {busy, {Shape: 0, Start: 4, Hidden: true}, {Shape: 0, Start: 5, Hidden: true}}},
			[]planner.Waiting{two}, []string{id(1)}},
		"and others want what is free": {[][]planner.Device{one, {busy, {Shape: 0, Start: 4}, {Shape: 0, Start: 5}}},
			[]planner.Waiting{two, {Shape: 0, Namespace: "b"}, {Shape: 0, Namespace: "b"}}, []string{id(0)}},
		"and no GPU can have them":   {[][]planner.Device{{{Shape: whole}}}, []planner.Waiting{{Shape: 2, Beside: []int{2, 2}}}, nil},
		"and there is no such shape": {[][]planner.Device{one}, []planner.Waiting{{Shape: 0, Beside: []int{9}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := planner.State{Now: now(), GPUs: gpus(h100(), len(test.gpus)), Limits: make([]planner.Limits, 4), Waiting: test.waiting}
			for i := range test.gpus {
				s.GPUs[i].Devices = test.gpus[i]
			}
			var got []string
			for _, o := range planner.New(planner.Options{}).Plan(s) {
				got = append(got, o.GPU)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("orders for %v, want %v", got, test.want)
			}
		})
	}
}

func TestPlannerHidesIdleGPUsThatAreCutAndNotWholeOnes(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 8), Limits: make([]planner.Limits, 4)}
	for i := range 4 {
		s.GPUs[i].Devices = nil
		for start := range 7 {
			s.GPUs[i].Devices = append(s.GPUs[i].Devices, planner.Device{Shape: 0, Start: start})
		}
	}
	hidden := map[string]int{}
	for _, o := range planner.New(planner.Options{}).Plan(s) {
		if o.Layout != nil || o.Show != nil {
			t.Errorf("want devices hidden alone: %+v", o)
		}
		hidden[o.GPU] += len(o.Hide)
	}
	// Two of the 28 stay beyond a reserve of none, and GPUs are hidden as a whole.
	if len(hidden) != 3 {
		t.Errorf("free devices of %d GPUs are hidden, want 3: %v", len(hidden), hidden)
	}
	for i := range s.GPUs {
		if n := hidden[s.GPUs[i].ID]; n != 0 && (n != 7 || i >= 4) {
			t.Errorf("%d of the %d devices of GPU %d are hidden", n, len(s.GPUs[i].Devices), i)
		}
	}
}

// Pods of two shapes come in turn to one GPU, and each ends before the planner is called again.
func TestPlannerDoesNotCountACutAsFailedWhenItsPodEnded(t *testing.T) {
	s := planner.State{Now: now(), GPUs: gpus(h100(), 1), Limits: make([]planner.Limits, 4)}
	p := planner.New(planner.Options{})
	for i := range 10 {
		shape := []int{0, whole}[i%2]
		s.Now = s.Now.Add(time.Second)
		s.Waiting = waiting("a", shape, 1, time.Second)
		orders := p.Plan(s)
		if len(orders) != 1 || devicesOf(orders, shape) == 0 || strings.Contains(orders[0].Reason, "rests") {
			t.Fatalf("pod %d of shape %d: %+v", i, shape, orders)
		}
		step(&s, orders)
		for k := range s.GPUs[0].Devices {
			s.GPUs[0].Devices[k].Taken = s.GPUs[0].Devices[k].Shape == shape
		}
		s.Now, s.Waiting = s.Now.Add(time.Second), nil
		step(&s, p.Plan(s))
		for k := range s.GPUs[0].Devices {
			s.GPUs[0].Devices[k].Taken = false
		}
	}
}

// An API server that is away keeps the caller from writing its orders, and a claim that takes a device before it is withdrawn ends a cut. A
// pause for cuts that were never made would outlast both.
func TestPlannerDoesNotCountACutAsFailedWhenItWasNotMade(t *testing.T) {
	for name, changing := range map[string]int{"its order was not written": 0, "it was taken back": 3} {
		t.Run(name, func(t *testing.T) {
			s := planner.State{Now: now(), GPUs: gpus(h100(), 1), Limits: make([]planner.Limits, 4), Waiting: waiting("a", 0, 1, time.Minute)}
			p := planner.New(planner.Options{})
			for i := range 100 {
				s.Now = s.Now.Add(500 * time.Millisecond)
				orders := p.Plan(s)
				if len(orders) != 1 || devicesOf(orders, 0) == 0 || strings.Contains(orders[0].Reason, "rests") {
					t.Fatalf("order %d: %+v", i, orders)
				}
				for range changing {
					s.Now = s.Now.Add(500 * time.Millisecond)
					s.GPUs[0].Changing = orders[0].Layout
					p.Plan(s)
				}
				s.GPUs[0].Changing = nil
			}
		})
	}
}
