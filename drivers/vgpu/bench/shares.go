package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"gpufabric.io/drivers/gpu/limiter"
)

const (
	// warm is the time that processes work before the measurement: a container without earlier work has saved up some time.
	warm = time.Second
	// grace is the extra time of processes to start, compile and wait for their slots.
	grace = time.Minute
)

// shares are the measurements of cores.
type shares struct {
	// absent is the reason why nothing was measured.
	absent error
	// seconds is the time of each measurement, kernel that of one kernel.
	seconds uint
	kernel  time.Duration
	// again is the work of a process without a limit at the end, in percent of that at the beginning.
	again float64
	rows  []kept
	// loads are the machine's load averages at the beginning and at the end (processes that run or wait for a processor); 0: unknown.
	loads [2]float64
}

// Together are processes that use the GPU at the same time.
type Together struct {
	// Lend lets them use GPU time that others leave.
	Lend bool
	// Graph launches the kernels in graphs.
	Graph bool
	// Cores are their percentages.
	Cores []int
}

func (t Together) String() string {
	var parts []string
	for _, c := range t.Cores {
		parts = append(parts, fmt.Sprintf("%d %%", c))
	}
	text := strings.Join(parts, " beside ")
	if t.Graph {
		text += ", by graphs"
	}
	if !t.Lend {
		text += ", nothing lent"
	}
	return text
}

// everything are the default measurements. A competitor has the remaining percentage, and idle time is lent, as by default: both always
// work, so there is none.
func everything() []Together {
	return []Together{
		{Cores: []int{10}}, {Cores: []int{25}}, {Cores: []int{50}}, {Cores: []int{75}},
		{Lend: true, Cores: []int{10, 90}}, {Lend: true, Cores: []int{25, 75}}, {Lend: true, Cores: []int{50, 50}},
		{Lend: true, Graph: true, Cores: []int{50, 50}},
	}
}

// kept is a process's measured part beside its percentage.
type kept struct {
	of    Together
	which int // of them
	// had is in percent of an unlimited process's work, charged in percent of the time.
	had, charged float64
}

// off is the distance from the percentage, in points.
func (k kept) off() float64 { return k.had - float64(k.of.Cores[k.which]) }

// shares measures cores.
func (o *Options) shares(ctx context.Context, r *Result) error {
	r.cores.seconds = o.Seconds
	switch {
	case o.Seconds == 0:
		r.cores.absent = fmt.Errorf("%w: --seconds is 0", errAbsent)
		return nil
	case r.others > 0 && !o.InUse:
		r.cores.absent = fmt.Errorf("%w: %d other processes use GPU %s, and would be slowed down and measured too: choose an unused GPU by "+
			"--gpu, or allow it by --in-use", errAbsent, r.others, r.gpu)
		return nil
	}
	r.cores.loads[0] = o.load()
	defer func() { r.cores.loads[1] = o.load() }()
	base, rounds, err := o.unlimited(ctx, r.gpu, 0)
	if err != nil {
		return err
	}
	r.cores.kernel = time.Duration(base.Nanoseconds / float64(base.Kernels))
	for _, t := range o.Together {
		if t.Graph && r.ways[0].rounds[0].Graph == 0 {
			continue // the driver has none
		}
		got, err := o.kept(ctx, r, t, rounds)
		if errors.Is(err, errAbsent) {
			r.cores.absent = err
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		r.cores.rows = append(r.cores.rows, got...)
	}
	again, _, err := o.unlimited(ctx, r.gpu, rounds)
	if err != nil {
		return err
	}
	r.cores.again = percent(again, r.cores.kernel)
	return nil
}

// load is the machine's load average of the last minute.
func (o *Options) load() (load float64) {
	text, _ := os.ReadFile(o.LoadAverage)        // for the reader only
	_, _ = fmt.Sscanf(string(text), "%g", &load) // as above
	return load
}

// percent returns work in percent of that of a process without a limit.
func percent(did report, kernel time.Duration) float64 {
	return 100 * float64(did.Kernels) * float64(kernel) / did.Nanoseconds
}

// unlimited measures a process without a limit. It also returns the rounds of a kernel, which it calibrates if they are 0.
func (o *Options) unlimited(ctx context.Context, gpu string, rounds uint) (report, uint, error) {
	o.progress(fmt.Sprintf("Measuring a process without a limit of cores for %d s", o.Seconds))
	w := &busy{process: o.process(ctx, gpu), order: o.order(rounds, false), charged: func() time.Duration { return 0 }}
	err := o.work(ctx, []*busy{w})
	return w.did, w.rounds, err
}

func (o *Options) order(rounds uint, graph bool) order {
	return order{CUDA: o.CUDA, Spin: &spin{Rounds: rounds, Seconds: float64(o.Seconds), Warm: warm.Seconds(), Graph: graph}}
}

// kept measures processes with limits.
func (o *Options) kept(ctx context.Context, r *Result, t Together, rounds uint) (out []kept, err error) {
	o.progress(fmt.Sprintf("Measuring %s for %d s", t, o.Seconds))
	places, err := o.seats(t.Lend)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, places.end()) }()
	defer removeEmpty(missing(stages()...))
	var workers []*busy
	for i, c := range t.Cores {
		name := fmt.Sprintf("%d", i)
		w := &busy{process: o.process(ctx, r.gpu), order: o.order(rounds, t.Graph)}
		limit := limiter.Limit{UUID: r.gpu, Cores: c}
		if w.order.Seats, err = places.open(name, limit); err != nil {
			return nil, err
		}
		if err := o.preload(w.process, &w.order, limit); err != nil {
			return nil, err
		}
		w.charged = func() time.Duration { return places.Charged(name, r.gpu) }
		workers = append(workers, w)
	}
	if err := o.work(ctx, workers); err != nil {
		return nil, err
	}
	for i, w := range workers {
		if w.used == 0 {
			return nil, fmt.Errorf("the process of %d %% was charged nothing, so nothing limited it: %s was not loaded into it, or has no seat "+
				"by %v", t.Cores[i], o.Library, w.order.Seats)
		}
		out = append(out, kept{of: t, which: i, had: percent(w.did, r.cores.kernel), charged: 100 * float64(w.used) / w.did.Nanoseconds})
	}
	return out, nil
}

// busy is a worker that keeps the GPU busy, with its result.
type busy struct {
	process *exec.Cmd
	order   order
	charged func() time.Duration // until now

	rounds uint
	did    report
	used   time.Duration // charged while it did that
}

// work runs workers at the same time. They begin together, and end after all were measured.
func (o *Options) work(ctx context.Context, workers []*busy) error {
	limit := time.Duration(o.Seconds)*time.Second + warm + grace
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("processes did not end within %s", limit))
	defer cancel()
	ready, measured := newMeeting(len(workers)), newMeeting(len(workers))
	errs := make([]error, len(workers))
	var running sync.WaitGroup
	for i, w := range workers {
		running.Go(func() {
			if errs[i] = w.run(ctx, ready, measured); errs[i] != nil {
				cancel() // the others wait for it
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err // the others ended because of it
		}
	}
	return errors.Join(errs...)
}

// meeting is a barrier for a number of goroutines.
type meeting struct {
	mu      sync.Mutex
	missing int
	all     chan struct{}
}

func newMeeting(of int) *meeting { return &meeting{missing: of, all: make(chan struct{})} }

// wait waits until all have arrived.
func (m *meeting) wait(ctx context.Context) error {
	m.mu.Lock()
	if m.missing--; m.missing == 0 {
		close(m.all)
	}
	m.mu.Unlock()
	select {
	case <-m.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run runs a worker.
func (w *busy) run(ctx context.Context, ready, measured *meeting) error {
	return converse(ctx, w.process, func(in io.WriteCloser, reports *json.Decoder) error {
		orders := json.NewEncoder(in)
		if err := orders.Encode(w.order); err != nil {
			return err
		}
		var began report
		if err := reports.Decode(&began); err != nil {
			return fmt.Errorf("wait until a process can begin: %w", err)
		}
		w.rounds = began.Rounds
		if err := ready.wait(ctx); err != nil {
			return err
		}
		if err := orders.Encode(true); err != nil {
			return err
		}
		if err := reports.Decode(&began); err != nil {
			return fmt.Errorf("wait until a process is warm: %w", err)
		}
		used := w.charged()
		if err := reports.Decode(&w.did); err != nil {
			return fmt.Errorf("read the report of a process: %w", err)
		}
		w.used = w.charged() - used
		return measured.wait(ctx)
	})
}
