package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

const (
	// endPatience is from SIGTERM to SIGKILL: go test and make end their children in it.
	endPatience = 10 * time.Second
	// lowest is the niceness of a part that is Low.
	lowest = 19
)

// Runner runs parts.
type Runner struct {
	Dir      string        // the checkout
	Logs     string        // gets a file NAME.log for each part
	Out      io.Writer     // begin and end of each part, a line each
	Parallel int           // so many parts at a time
	Pulse    time.Duration // so often Out gets the last line of each part that runs
	Free     func() error  // is called before each part begins; nil: always enough
}

// Run runs the parts, in their order where After allows it, and returns a result for each. A part that fails stops no other. Each result
// is also given to ended as soon as it is there, before another part begins.
func (r *Runner) Run(ctx context.Context, parts []Part, ended func(Result) error) ([]Result, error) {
	if err := check(parts); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.Logs, 0o755); err != nil {
		return nil, err
	}
	waiting, running, done := slices.Clone(parts), map[string]time.Time{}, map[string]bool{}
	over := make(chan Result, len(parts))
	pulse := time.NewTicker(r.Pulse)
	defer pulse.Stop()
	var results []Result
	var reporting error
	for len(results) < len(parts) {
		for len(running) < r.Parallel {
			next := slices.IndexFunc(waiting, func(p Part) bool {
				return !slices.ContainsFunc(p.After, func(name string) bool { return !done[name] })
			})
			if next < 0 {
				break
			}
			part := waiting[next]
			waiting = slices.Delete(waiting, next, next+1)
			running[part.Name] = time.Now()
			fmt.Fprintf(r.Out, "=== %s: %s\n", part.Name, part.Command)
			go func() { over <- r.run(ctx, part) }()
		}
		select {
		case result := <-over:
			delete(running, result.Part)
			done[result.Part] = true
			results = append(results, result)
			fmt.Fprintln(r.Out, result)
			reporting = errors.Join(reporting, ended(result))
		case now := <-pulse.C:
			for _, part := range parts {
				if began, ok := running[part.Name]; ok {
					fmt.Fprintf(r.Out, "%s, %.0f s: %s\n", part.Name, now.Sub(began).Seconds(), last(r.log(part.Name), 1))
				}
			}
		}
	}
	return results, reporting
}

// check reports parts that cannot be run in any order.
func check(parts []Part) error {
	seen := map[string]bool{}
	for _, part := range parts {
		for _, name := range part.After {
			if !seen[name] {
				return fmt.Errorf("part %s begins after %s, which is not a part before it", part.Name, name)
			}
		}
		if seen[part.Name] {
			return fmt.Errorf("two parts have the name %s", part.Name)
		}
		seen[part.Name] = true
	}
	return nil
}

func (r *Runner) log(part string) string { return filepath.Join(r.Logs, part+".log") }

// run runs one part to its end or its limit.
func (r *Runner) run(ctx context.Context, part Part) Result {
	result := Result{Part: part.Name, Began: time.Now()}
	err := r.execute(ctx, part)
	result.Took = time.Since(result.Began)
	if err != nil {
		result.Failure = err.Error()
	}
	return result
}

func (r *Runner) execute(ctx context.Context, part Part) error {
	if ctx.Err() != nil {
		return errors.New("not begun: the suite was interrupted")
	}
	if r.Free != nil {
		if err := r.Free(); err != nil {
			return fmt.Errorf("not begun: %w", err)
		}
	}
	for _, program := range part.Needs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("not begun: it needs %s, which is not on the PATH; %s", program, remedy(program))
		}
	}
	log, err := os.Create(r.log(part.Name))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // its writer is another process
	limited, cancel := context.WithTimeout(ctx, part.Limit)
	defer cancel()
	cmd := exec.Command("bash", "-c", part.Command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.Dir, log, log
	// A session of its own: one signal reaches all of its processes, and where the kernel schedules by session (sched_autogroup_enabled)
	// niceness counts within one alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	if part.Low {
		lower(cmd.Process.Pid)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-limited.Done():
		end(cmd.Process.Pid, ended)
		reason := fmt.Sprintf("ended at its limit of %s", part.Limit)
		if ctx.Err() != nil {
			reason = "interrupted"
		}
		return fmt.Errorf("%s; its last lines: %s", reason, last(r.log(part.Name), 3))
	}
	if err != nil {
		return fmt.Errorf("%w; its last lines: %s", err, last(r.log(part.Name), 3))
	}
	return nil
}

// lower gives a session the lowest priority. Without the right to, or on a kernel without autogroups, it runs as the others do.
func lower(session int) {
	_ = syscall.Setpriority(syscall.PRIO_PGRP, session, lowest)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", session), []byte(fmt.Sprint(lowest)), 0o644)
}

// end ends a process group and returns when its leader has ended.
func end(group int, ended <-chan error) {
	_ = syscall.Kill(-group, syscall.SIGTERM) // fails only for a group without processes
	select {
	case <-ended:
		_ = syscall.Kill(-group, syscall.SIGKILL) // processes that the leader has left behind
		return
	case <-time.After(endPatience):
	}
	_ = syscall.Kill(-group, syscall.SIGKILL)
	select {
	case <-ended:
	case <-time.After(endPatience): // a process in the kernel's hands, such as on a filesystem that hangs
	}
}
