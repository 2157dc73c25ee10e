// Package steps runs ordered work as a list of named steps and shows its progress to a person.
package steps

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Step is one step of the work; its name reads well in a table of contents.
type Step interface {
	Name() string
	Execute(ctx context.Context) error
}

// Timing is how long one step took.
type Timing struct {
	Name string
	Took time.Duration
}

// Printer prints steps, and other output between them, on separate lines. A step may run steps of its own on the same printer; they
// are indented below it. It is safe for concurrent writers, but steps run one after the other.
type Printer struct {
	mu    sync.Mutex
	w     io.Writer
	depth int
	open  bool // the last line has a step's name, but not yet its seconds
	part  bool // the last line has other output, but not yet its end
}

// NewPrinter returns a printer that writes to w.
func NewPrinter(w io.Writer) *Printer { return &Printer{w: w} }

// Run executes the steps in order until one fails, and returns the durations of those that ran.
func (p *Printer) Run(ctx context.Context, list ...Step) ([]Timing, error) {
	var timings []Timing
	for i, step := range list {
		label := fmt.Sprintf("[%d/%d] %s", i+1, len(list), step.Name())
		p.begin(label)
		started := time.Now()
		err := context.Cause(ctx)
		if err == nil {
			err = step.Execute(ctx)
		}
		took := time.Since(started)
		timings = append(timings, Timing{step.Name(), took})
		if err != nil {
			p.finish(label, fmt.Sprintf("failed after %.1f s", took.Seconds()))
			return timings, fmt.Errorf("%s: %w", step.Name(), err)
		}
		p.finish(label, fmt.Sprintf("%.1f s", took.Seconds()))
	}
	return timings, nil
}

// Write prints other output on separate lines, below the running step.
func (p *Printer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		p.close()
	}
	for line := range bytes.Lines(b) {
		indent := p.indent()
		if p.part {
			indent = "" // the rest of a line
		}
		if _, err := fmt.Fprint(p.w, indent, string(line)); err != nil {
			return 0, err
		}
		p.part = !bytes.HasSuffix(line, []byte("\n"))
	}
	return len(b), nil
}

func (p *Printer) begin(label string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.close()
	fmt.Fprint(p.w, p.indent(), label, " ... ")
	p.open = true
	p.depth++
}

func (p *Printer) finish(label, result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.depth--
	if p.open {
		fmt.Fprintln(p.w, result)
		p.open = false
		return
	}
	p.close()
	fmt.Fprint(p.w, p.indent(), label, ": ", result, "\n")
}

// close ends the last line if it is not empty.
func (p *Printer) close() {
	if p.open || p.part {
		fmt.Fprintln(p.w)
	}
	p.open, p.part = false, false
}

func (p *Printer) indent() string { return strings.Repeat("      ", p.depth) }
