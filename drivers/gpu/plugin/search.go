package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/go-logr/logr"

	"gpufabric.io/drivers/gpu/edits"
)

// search finds what containers need of the node: at once, in the background, and again for a claim that comes when something was not found
// or has changed.
type search struct {
	look func() (*edits.Set, error)
	// running counts the looks under way.
	running *sync.WaitGroup

	mu   sync.Mutex
	last *finding
}

// finding is what one look finds, once done is closed.
type finding struct {
	// number counts the looks.
	number int
	done   chan struct{}
	set    *edits.Set
	err    error
}

// newSearch starts to look.
func newSearch(running *sync.WaitGroup, look func() (*edits.Set, error)) *search {
	s := &search{look: look, running: running}
	s.last = s.start(0)
	return s
}

func (s *search) start(number int) *finding {
	f := &finding{number: number, done: make(chan struct{})}
	s.running.Go(func() {
		defer close(f.done)
		f.set, f.err = s.look()
	})
	return f
}

// again says whether a look has ended whose result does not stand any more.
func (f *finding) again() bool {
	select {
	case <-f.done:
		return f.err != nil || f.set.Outdated()
	default:
		return false
	}
}

// begun is the number of the last look.
func (s *search) begun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.number
}

// newest is the last look, or another where that one's result does not stand.
func (s *search) newest() *finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.again() {
		s.last = s.start(s.last.number + 1)
	}
	return s.last
}

// get waits for a look whose result stands. One that was under way when the claim came may have seen a file that was gone by then, so its
// result is checked; that of a look that began later is taken as it is. Claims that come together wait for the same one.
func (s *search) get(ctx context.Context) (*edits.Set, error) {
	came := s.begun()
	for {
		f := s.newest()
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the driver's files to be found: %w", context.Cause(ctx))
		}
		if f.number > came || !f.again() {
			return f.set, f.err
		}
	}
}

// tellLacking reports what containers go without, once for as long as it is the same.
func (r *reader) tellLacking(logger logr.Logger, problems []error) {
	var words []string
	for _, problem := range problems {
		words = append(words, problem.Error())
	}
	message := strings.Join(words, "; ")
	if before := r.lacking.Swap(&message); before != nil && *before == message {
		return
	}
	if message == "" {
		return
	}
	logger.Info("Containers go without something", "reason", message)
	r.events.Report("DriverIncomplete", message+"; it is looked for again with each claim")
}
