package imexd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// stopPatience is how long nvidia-imex may take to end on SIGTERM.
	stopPatience = 5 * time.Second
	// queryTimeout bounds one nvidia-imex-ctl.
	queryTimeout = 5 * time.Second
)

// Process runs nvidia-imex as a child process.
type Process struct {
	// DriverRoot holds usr/bin/nvidia-imex and usr/bin/nvidia-imex-ctl.
	DriverRoot string
	// Output gets what the daemon prints; nil: nothing.
	Output io.Writer
}

var _ Runner = (*Process)(nil)

// Start implements Runner.
func (p *Process) Start(_ context.Context, spec Spec) (Daemon, error) {
	path := filepath.Join(p.DriverRoot, "usr/bin/nvidia-imex")
	child := &child{
		control: filepath.Join(p.DriverRoot, "usr/bin/nvidia-imex-ctl"), config: spec.ConfigFile,
		command: exec.Command(path, "-c", spec.ConfigFile), exited: make(chan struct{}),
	}
	child.command.Stdout, child.command.Stderr = p.Output, p.Output
	// A supervisor that is killed takes the daemon with it.
	child.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go child.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s (is --driver-root right?): %w", path, err)
	}
	return child, nil
}

// child is a running nvidia-imex.
type child struct {
	control, config string
	command         *exec.Cmd
	stopped         atomic.Bool
	exited          chan struct{}
	err             error // set before exited is closed
}

// run starts the child and waits for its end, on one thread: the kernel takes the end of the thread that made a child for the
// death of its parent.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.command.Start()
	started <- err
	if err != nil {
		return
	}
	err = c.command.Wait()
	if !c.stopped.Load() {
		if err == nil {
			err = errors.New("exit status 0")
		}
		c.err = fmt.Errorf("nvidia-imex ended: %w", err)
	}
	close(c.exited)
}

// Reload implements Daemon.
func (c *child) Reload() error {
	if err := c.command.Process.Signal(syscall.SIGUSR1); err != nil {
		return fmt.Errorf("signal nvidia-imex: %w", err)
	}
	return nil
}

// State implements Daemon.
func (c *child) State(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, c.control, "-c", c.config, "-q")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return Unavailable, fmt.Errorf("%s -q: %w: %s", c.control, err, bytes.TrimSpace(stderr.Bytes()))
	}
	// Exactly one word; anything else is no state.
	state := State(strings.TrimSuffix(string(out), "\n"))
	switch state {
	case Initializing, StartingAuthServer, WaitingForPeers, WaitingForRecovery, InitGPU, Ready, ShuttingDown, Unavailable:
		return state, nil
	default:
		return Unavailable, fmt.Errorf("%s -q answered %.100q, which is no state", c.control, out)
	}
}

// Exited implements Daemon.
func (c *child) Exited() <-chan struct{} { return c.exited }

// Err implements Daemon.
func (c *child) Err() error {
	select {
	case <-c.exited:
		return c.err
	default:
		return nil
	}
}

// Stop implements Daemon.
func (c *child) Stop() {
	c.stopped.Store(true)
	// Both fail only where the process is gone already.
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(stopPatience):
		_ = c.command.Process.Kill()
		<-c.exited
	}
}
