package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"gpufabric.io/drivers/hardware/driver"
)

// limit is for all steps together. A call into the driver cannot be interrupted, so a step that hangs ends the program shortly after.
const (
	limit = 9 * time.Minute
	grace = 30 * time.Second
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == clientWord {
		os.Exit(client(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the program: 0 where no step failed, 1 where one did, 2 where it was called wrongly.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	flags := flag.NewFlagSet("gpufabric-firstday", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("driver-root", "/", "where the driver's files are: / or a driver container's /run/nvidia/driver")
	dev := flags.String("dev", "/dev", "the directory with the driver's device nodes, where the driver root has none of its own")
	proc := flags.String("proc", "/proc", "where the kernel's proc is")
	sys := flags.String("sys", "/sys", "where the kernel's sysfs is")
	standIn := flags.String("stand-in", filepath.Join(filepath.Dir(self), "../fakes/build/lib/libcuda.so.1"),
		"this project's stand-in for libcuda, as 'make fakes' builds it")
	readOnly := flags.Bool("read-only", false, "leave out the steps that change a GPU's time slice or MIG mode and restore it")
	out := flags.String("out", "", "a directory to write the recorded profile and nvidia-smi's answers to; empty: nothing is written")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "gpufabric-firstday: %q: only flags are taken; see -h\n", flags.Args())
		return 2
	}
	search := driver.Search{Roots: []driver.Place{driver.Here(*root)}, Dev: driver.Here(*dev), ProcRoot: *proc}
	m := &machine{search: search, at: search.Locate(), proc: *proc, sys: *sys, standIn: *standIn, out: *out, self: self}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	report := newReport(stdout)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		all(ctx, m, *readOnly, report)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
		select {
		case <-finished:
		case <-time.After(grace):
			report.hung(context.Cause(ctx))
			return 1
		}
	}
	return report.close()
}

// all runs the steps in their order, each whatever became of those before.
func all(ctx context.Context, m *machine, readOnly bool, report *report) {
	defer m.close()
	for _, s := range steps() {
		if err := ctx.Err(); err != nil {
			report.add(s.name, refused(fmt.Errorf("not begun: %w", err)))
			continue
		}
		if readOnly && s.changes {
			report.add(s.name, missing("left out by -read-only: it changes a setting of a GPU"))
			continue
		}
		report.begin(s.name)
		within, cancel := context.WithTimeout(ctx, s.limit)
		result := s.run(within, m)
		if err := within.Err(); errors.Is(err, context.DeadlineExceeded) && result.state == failed {
			result.text = fmt.Sprintf("after %s: %s", s.limit, result.text)
		}
		cancel()
		report.add(s.name, result)
	}
}
