// Package process runs the programs of a simulated cluster. Every program has the cluster's directory in its environment. So
// the processes that a crash leaves behind can be found and ended without any record.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// MarkerEnv names the environment variable that holds the cluster's directory in each of its processes.
const MarkerEnv = "SIMCLUSTER_DIR"

// Spec describes what to run.
type Spec struct {
	// Name is the process's name in errors and of its log file, NAME.log in LogDir.
	Name string
	// ClusterDir is written into the environment as MarkerEnv.
	ClusterDir string
	LogDir     string
	// Path and Args are the program and its arguments, without the program's name.
	Path string
	Args []string
	// Env is added to the caller's environment.
	Env []string
	// Inherit are open files that the process holds until it ends.
	Inherit []*os.File
	// Detach lets the process outlive the caller; otherwise the kernel kills it when the caller dies, however it dies.
	Detach bool
}

// Process is a running program.
type Process struct {
	spec    Spec
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the program has ended
	err     error         // how it ended; read after exited is closed
	stopped atomic.Bool
}

// Start runs the program with its output appended to its log file.
func Start(spec Spec) (*Process, error) {
	if err := os.MkdirAll(spec.LogDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the log directory of %s: %w", spec.Name, err)
	}
	log, err := os.OpenFile(filepath.Join(spec.LogDir, spec.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", spec.Name, err)
	}
	defer log.Close() //nolint:errcheck // the child holds its own descriptor
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = spec.Inherit
	cmd.Env = append(append(os.Environ(), spec.Env...), MarkerEnv+"="+spec.ClusterDir)
	// A separate process group: Ctrl-C at the terminal then reaches only this process, which ends the programs in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !spec.Detach {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the program
		p.err = cmd.Wait()
		close(p.exited)
	}()
	p.awaitEnvironment()
	return p, nil
}

// awaitEnvironment returns once Find can see the process, or it has ended. The kernel closes the pipe through which os/exec learns
// of the exec before it has laid out the new environment (begin_new_exec in fs/exec.c, then create_elf_tables in fs/binfmt_elf.c),
// and /proc shows none meanwhile. There is no event for it. It takes microseconds, unless the machine is short of processors.
func (p *Process) awaitEnvironment() {
	for {
		if environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Pid()), "environ")); err != nil || len(environment) > 0 {
			return
		}
		select {
		case <-p.exited:
			return
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed when the program has ended, for whatever reason.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err reports how a program ended unexpectedly, with the end of its log. It is nil while the program runs and after Stop.
func (p *Process) Err() error {
	select {
	case <-p.exited:
	default:
		return nil
	}
	if p.stopped.Load() {
		return nil
	}
	return fmt.Errorf("%s ended (%s); its log %s ends:\n%s", p.spec.Name, p.cmd.ProcessState, p.LogFile(), p.logTail())
}

// LogFile is the path of the program's log.
func (p *Process) LogFile() string { return filepath.Join(p.spec.LogDir, p.spec.Name+".log") }

// Kill ends the program as a crash would, and waits for its end.
func (p *Process) Kill() {
	p.stopped.Store(true)
	_ = p.cmd.Process.Kill() // fails only if it has already ended
	<-p.exited
}

// Stop asks the program to end and kills it when it has not within grace.
func (p *Process) Stop(grace time.Duration) {
	p.stopped.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has already ended
	select {
	case <-p.exited:
	case <-time.After(grace):
		p.Kill()
	}
}

// Pause stops the program's execution (SIGSTOP) until Resume: a server that neither answers nor closes its connections.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused program.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Await calls ready every interval until it returns nil, the program ends or ctx is done.
func (p *Process) Await(ctx context.Context, interval time.Duration, ready func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return p.Err()
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready: %w (last: %w)\nits log %s ends:\n%s", p.spec.Name, context.Cause(ctx), err, p.LogFile(),
				p.logTail())
		case <-ticker.C:
		}
	}
}

func (p *Process) logTail() string {
	const size = 1500
	f, err := os.Open(p.LogFile())
	if err != nil {
		return err.Error()
	}
	defer f.Close() //nolint:errcheck // read only
	if info, err := f.Stat(); err == nil && info.Size() > size {
		_, _ = f.Seek(-size, io.SeekEnd) // a longer tail where it fails
	}
	tail, err := io.ReadAll(f)
	return string(bytes.TrimSpace(tail)) + errorText(err)
}

func errorText(err error) string {
	if err == nil || errors.Is(err, io.EOF) {
		return ""
	}
	return " (" + err.Error() + ")"
}
