package imex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gpufabric.io/drivers/hardware/threads"
)

// Programs are NVIDIA's programs in the daemon's container.
type Programs struct {
	// Daemon and Control are nvidia-imex and nvidia-imex-ctl.
	Daemon, Control string
	// Loader is the dynamic linker that starts them with the libraries beside it, and with none of the image's; empty: they need no
	// loader.
	Loader string
}

// command is the command line of a program.
func (p Programs) command(program string, args ...string) []string {
	if p.Loader == "" {
		return append([]string{program}, args...)
	}
	return append([]string{p.Loader, "--inhibit-cache", "--library-path", filepath.Dir(p.Loader), program}, args...)
}

// Process runs nvidia-imex as a child process.
type Process struct {
	Programs Programs
	// Output receives the daemon's output; nil: discarded.
	Output io.Writer
}

var _ Runner = (*Process)(nil)

// ErrNoPrograms means that this container lacks nvidia-imex, though it needs it.
var ErrNoPrograms = errors.New("this container was made without nvidia-imex: the node's driver was not there yet, or its fabric not joined")

// Start implements Runner.
func (p *Process) Start(_ context.Context, spec Spec) (Daemon, error) {
	if p.Programs.Daemon == "" || p.Programs.Control == "" {
		return nil, ErrNoPrograms
	}
	words := p.Programs.command(p.Programs.Daemon, "-c", spec.ConfigFile)
	child := &child{
		control: p.Programs.command(p.Programs.Control, "-c", spec.ConfigFile),
		command: exec.Command(words[0], words[1:]...), exited: make(chan struct{}),
	}
	child.command.Stdout, child.command.Stderr = p.Output, p.Output
	// A killed supervisor takes the daemon with it.
	child.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go child.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s (from the node's driver root): %w", strings.Join(words, " "), err)
	}
	return child, nil
}

// child is a running nvidia-imex.
type child struct {
	control []string
	command *exec.Cmd
	stopped atomic.Bool

	asking sync.Mutex // one query of the state at a time
	// limit is how long the next query of the state may take, and last the state of the daemon's threads when the last one was not answered.
	limit time.Duration
	last  threads.Sample

	exited chan struct{}
	err    error // set before exited is closed
}

// run starts the child and waits for its end on one thread. The kernel treats the end of the thread that made a child as the death
// of its parent.
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

// State implements Daemon. On a node where the daemon or the querying program is starved, a query that always ends after the same time
// might never be answered, so each that is doubles the limit of the next.
func (c *child) State(ctx context.Context) (State, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	limit := max(c.limit, queryTimeout)
	state, err := queryState(ctx, Run, append(slices.Clone(c.control), "-q"), limit)
	before := c.last
	if c.limit, c.last = queryTimeout, (threads.Sample{}); err == nil {
		return state, nil
	}
	if now, gone := c.Threads(); gone == nil {
		c.last = now
	}
	if errors.Is(err, ErrStarved) || threads.Lacked(before, c.last) != threads.Nothing {
		c.limit = min(2*limit, starvedTimeout)
	}
	return state, err
}

// Threads implements Daemon.
func (c *child) Threads() (threads.Sample, error) {
	if c.command == nil || c.command.Process == nil {
		return threads.Sample{}, errors.New("nvidia-imex has not started")
	}
	return threads.FS{}.Read(c.command.Process.Pid)
}

// Nodes implements Daemon.
func (c *child) Nodes(ctx context.Context) (map[int]Node, error) {
	return queryNodes(ctx, Run, append(slices.Clone(c.control), "-N", "-j"))
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
func (c *child) Stop(patience time.Duration) {
	c.stopped.Store(true)
	// Both fail only where the process is already gone.
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(patience):
		_ = c.command.Process.Kill()
		<-c.exited
	}
}
