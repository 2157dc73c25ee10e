package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// state is the result of a step.
type state string

const (
	ok           state = "ok"
	failed       state = "failed"
	notPermitted state = "not permitted"
	// absent: this machine lacks what the step needs.
	absent state = "not here"
)

// result is a step's outcome: a sentence, and details below it.
type result struct {
	state state
	text  string
	more  []string
}

func fine(format string, args ...any) result {
	return result{state: ok, text: fmt.Sprintf(format, args...)}
}

func missing(format string, args ...any) result {
	return result{state: absent, text: fmt.Sprintf(format, args...)}
}

// refused is the result of an error: not permitted where the kernel or the driver reports that.
func refused(err error) result {
	text := strings.Join(strings.Fields(err.Error()), " ")
	lower := strings.ToLower(text)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, nvml.ERROR_NO_PERMISSION) || strings.Contains(lower, "insufficient permissions") ||
		strings.Contains(lower, "permission denied") || strings.Contains(lower, "operation not permitted") {
		return result{state: notPermitted, text: text}
	}
	return result{state: failed, text: text}
}

// report prints results as they come.
type report struct {
	mu      sync.Mutex // a report is notified of a hanging step while that step runs
	out     io.Writer
	counts  map[state]int
	started time.Time
	step    string
	begun   time.Time
}

func newReport(out io.Writer) *report {
	return &report{out: out, counts: map[state]int{}, started: time.Now()}
}

func (r *report) begin(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step, r.begun = step, time.Now()
}

func (r *report) add(step string, result result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[result.state]++
	var took string
	if r.step == step {
		took = fmt.Sprintf(" (%.1f s)", time.Since(r.begun).Seconds())
	}
	fmt.Fprintf(r.out, "%-13s %-12s %s%s\n", result.state, step, result.text, took)
	for _, line := range result.more {
		fmt.Fprintf(r.out, "%-13s %-12s   %s\n", "", "", line)
	}
}

// hung reports a step that does not return.
func (r *report) hung(why error) {
	r.mu.Lock()
	step := r.step
	r.mu.Unlock()
	r.add(step, result{state: failed, text: fmt.Sprintf("it does not come back from the driver (%v), and what it changed may stand", why)})
	_ = r.close()
}

// close prints the summary and returns the exit status.
func (r *report) close() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%d ok, %d failed, %d not permitted, %d not here; %.0f s\n", r.counts[ok], r.counts[failed], r.counts[notPermitted],
		r.counts[absent],
		time.Since(r.started).Seconds())
	if r.counts[failed] > 0 {
		return 1
	}
	return 0
}
