package sharing

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/node/filewatch"
)

const (
	// control is the driver's program that is both the daemon and its client.
	control = "nvidia-cuda-mps-control"
	// quitSeconds is how long the daemon's servers may take to end on request, before the daemon ends them.
	quitSeconds = 5
	// quitPatience is how long the daemon may take for that, before it is killed.
	quitPatience = (quitSeconds + 3) * time.Second
	// multiUserFlag makes clients of several users share one server.
	multiUserFlag = "-multiuser-server"
	// lookPause is the time between two looks for the daemon's socket where the kernel has no inotify instance left to report it. A
	// pod waits, so this is more frequent than for other files.
	lookPause = 50 * time.Millisecond
)

// daemon is one control daemon that is kept running.
type daemon struct {
	directory directory
	programs  programs.Runner
	settings  Settings
	files     *filewatch.Watcher
	failed    func() // called when it ended unexpectedly
	stop      context.CancelFunc
	ended     chan struct{} // closed when the daemon has no keeper any more
	settled   chan struct{} // closed when it was set up, or when that failed
	requested Moment        // the last request for it; MPS.mu guards it

	mu  sync.Mutex
	err error // before settled is closed: why its last run ended; after that: why the setup failed
}

func (d *daemon) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *daemon) noted() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *daemon) isSettled() bool {
	select {
	case <-d.settled:
		return true
	default:
		return false
	}
}

// supervise keeps the daemon running until ctx ends.
func (d *daemon) supervise(ctx context.Context) {
	defer close(d.ended)
	log := klog.FromContext(ctx)
	settled := false
	for ctx.Err() == nil {
		began := time.Now()
		err := d.run(ctx, func(err error) {
			if settled {
				if err != nil {
					log.Error(err, "MPS control daemon started again, but not set up")
				}
				return
			}
			settled = true
			d.note(err)
			close(d.settled)
		})
		if ctx.Err() == nil {
			d.failed()
			log.Error(err, "MPS control daemon ended; its clients' work is lost")
			if !settled {
				d.note(err)
			}
		}
		select { // at once where it had run for long: without a daemon a client runs without MPS and its limits
		case <-time.After(restartPause - time.Since(began)):
		case <-ctx.Done():
		}
	}
}

// run runs the daemon in the foreground, and calls settled once it was set up, or when that failed.
func (d *daemon) run(ctx context.Context, settled func(error)) error {
	if err := d.quitOld(ctx); err != nil {
		return err
	}
	if err := d.directory.prepare(); err != nil {
		return err
	}
	args := []string{"-f"}
	if d.settings.multiUser() {
		args = append(args, multiUserFlag)
	}
	var out tail
	cmd, err := d.command(context.WithoutCancel(ctx), args...)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, d.settings.defaults()...)
	cmd.Stdout, cmd.Stderr = &out, &out
	// Its servers belong to its process group, and end with it. (Where it has its own PID namespace, the kernel ends them in any
	// case.)
	cmd.SysProcAttr.Setpgid = true
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return programs.Explain(err)
	}
	over := make(chan error, 1)
	go func() { over <- wait(cmd) }()
	// Start waiting only now, so that the socket is this daemon's.
	living, dead := context.WithCancel(ctx)
	setUp := make(chan error, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() { setUp <- d.await(living) })
	defer waiting.Wait()
	defer dead()
	for {
		select {
		case err := <-over:
			return last(err, out.String())
		case err := <-setUp:
			if ctx.Err() == nil {
				settled(err)
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	// Send it quit first: a control daemon that is killed leaves its server running.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitPatience)
	defer cancel()
	_, _ = d.send(asking, quit()) // a daemon that does not answer is killed
	select {
	case err := <-over:
		return err
	case <-asking.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return <-over
	}
}

// wait waits for a daemon that leads a process group, and ends the rest of the group: a server that went on would hold the GPU, and
// the next daemon could not have it.
func wait(cmd *exec.Cmd) error {
	// End the group before waiting for its leader: until then no other process can get its number.
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break // any other error is cmd.Wait's to report
		}
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // mostly it is alone
	return cmd.Wait()
}

func quit() string { return fmt.Sprintf("quit -t %d", quitSeconds) }

// last is why a daemon ended by itself, with its last output.
func last(err error, output string) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	// In the foreground a daemon begins with a banner, and ends with the reason.
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return fmt.Errorf("%w: %s", err, lines[len(lines)-1])
}

// quitOld ends a daemon of an earlier run that may still exist.
func (d *daemon) quitOld(ctx context.Context) error {
	if d.directory.check() != nil {
		return nil // the socket is no daemon's, and goes when the directory is emptied
	}
	asking, cancel := context.WithTimeout(ctx, quitPatience)
	defer cancel()
	_, _ = d.send(asking, quit()) // mostly no daemon listens
	return ctx.Err()
}

// await waits until the daemon's control socket exists, then sets the daemon up.
func (d *daemon) await(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes := d.files.Entries(ctx, d.directory.path("pipe"))
	for {
		err := d.directory.check()
		if err == nil {
			return d.configure(ctx)
		}
		if !errors.Is(err, errNoDaemon) {
			return err
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return fmt.Errorf("wait for the MPS control daemon to make %s: %w", d.directory.control(), context.Cause(ctx))
		}
	}
}

// configure sets the claim's limits in the daemon.
func (d *daemon) configure(ctx context.Context) error {
	for _, c := range d.settings.commands() {
		if _, err := d.send(ctx, c.set); err != nil {
			return err
		}
		answer, err := d.send(ctx, c.get)
		if err != nil {
			return err
		}
		if !c.taken(answer) {
			return fmt.Errorf("the MPS control daemon rejected %q: %s answers %q (a percentage is above 0 and up to 100, a limit of memory "+
				"at least 1Mi)", c.set, c.get, answer)
		}
	}
	return nil
}

// send sends one command to the daemon and returns the first line of its answer.
func (d *daemon) send(ctx context.Context, command string) (string, error) {
	var out tail
	cmd, err := d.command(ctx)
	if err != nil {
		return "", err
	}
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("send the MPS control daemon %q: %w: %s", command, programs.Explain(err), firstLine(out.String()))
	}
	return firstLine(out.String()), nil
}

// command is the control program in the daemon's root.
func (d *daemon) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	share := programs.Share{
		Mountpoint: d.directory.path("root"), Nodes: d.settings.nodes(), Directories: []string{d.directory.path("pipe"), d.directory.path("log")},
		Shm: d.directory.path("shm"), Unprivileged: true, Apart: true,
	}
	cmd, err := d.programs.Command(ctx, share, control, args...)
	if err != nil {
		return nil, err
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.Env = append(cmd.Env, d.settings.environment(d.directory.path("pipe"), d.directory.path("log"))...)
	return cmd, nil
}
