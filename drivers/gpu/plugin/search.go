package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/go-logr/logr"

	"gpufabric.io/drivers/gpu/edits"
)

// search looks for the files and devices of the node that containers need: at once, in the background, and again for a later claim if one
// was missing or has changed.
type search struct {
	look func() (*edits.Set, error)
	// running counts the searches that run.
	running *sync.WaitGroup

	mu   sync.Mutex
	last *finding
}

// finding is the result of one search, once done is closed.
type finding struct {
	// number counts the searches.
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

// again reports whether a search has ended whose result is outdated.
func (f *finding) again() bool {
	select {
	case <-f.done:
		return f.err != nil || f.set.Outdated()
	default:
		return false
	}
}

// begun is the number of the last search.
func (s *search) begun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.number
}

// newest is the last search, or a new one where that result is outdated.
func (s *search) newest() *finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.again() {
		s.last = s.start(s.last.number + 1)
	}
	return s.last
}

// get waits for a valid result. A search that was running when the claim came may have seen a file that has gone since, so its
// result is checked. The result of a later search is used as it is. Claims that come together wait for the same search.
func (s *search) get(ctx context.Context) (*edits.Set, error) {
	came := s.begun()
	for {
		f := s.newest()
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the driver's files to be found: %w", context.Cause(ctx))
		}
		if f.number > came || !f.again() {
			return f.set, f.err
		}
	}
}

// reportLacking reports the files that containers lack, once until the list changes.
func (r *reader) reportLacking(logger logr.Logger, problems []error) {
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
	logger.Info("Containers lack files or device nodes of the driver", "reason", message)
	r.events.Report("DriverIncomplete", message+"; it is looked for again with each claim")
}
