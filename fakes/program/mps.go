package program

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"gpufabric.io/fakes/mps"
	"gpufabric.io/fakes/state"
)

// runMPSControl is nvidia-cuda-mps-control: -d runs the daemon in the background, -f in the foreground, and without either commands are
// read from standard input.
func runMPSControl(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("nvidia-cuda-mps-control", flag.ContinueOnError)
	background := flags.Bool("d", false, "start the control daemon in the background")
	foreground := flags.Bool("f", false, "start the control daemon in the foreground")
	if done, err := parse(flags, args, stdout); done || err != nil {
		return err
	}
	pipe := cmp.Or(os.Getenv(mps.PipeVariable), mps.DefaultPipe)
	switch {
	case *background:
		return startInBackground()
	case *foreground:
		return runMPSDaemon(ctx, pipe)
	}
	return mps.Send(ctx, pipe, os.Stdin, stdout)
}

// startedVariable gives a background daemon the descriptor on which to report the result of its start: listening, or an error.
const (
	startedVariable = "FAKEFABRIC_MPS_STARTED"
	listening       = "listening"
)

// startInBackground returns once the daemon listens, since scripts talk to it in their next line, or with the reason why it does
// not.
func startInBackground() error {
	exe, err := state.Executable()
	if err != nil {
		return err
	}
	reported, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = reported.Close() }()                                   // only read from
	cmd := exec.Command(exe, "-f")                                            //nolint:noctx // it is to outlive this process
	cmd.Args[0] = filepath.Join(filepath.Dir(exe), "nvidia-cuda-mps-control") // the program chooses its role by this name
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{tell}
	cmd.Env = append(os.Environ(), startedVariable+"=3") // the first after the standard three
	err = cmd.Start()
	_ = tell.Close() // the daemon has its own
	if err != nil {
		return fmt.Errorf("start the control daemon: %w", err)
	}
	said, err := io.ReadAll(reported)
	if err == nil && string(said) != listening {
		err = fmt.Errorf("start the control daemon: %s", cmp.Or(string(said), "it ended before it listened; see control.log"))
	}
	return errors.Join(err, cmd.Process.Release())
}

// starter returns the pipe to startInBackground for the result of the start; nil without one.
func starter() *os.File {
	if os.Getenv(startedVariable) == "" {
		return nil
	}
	_ = os.Unsetenv(startedVariable) // it is not for the server
	return os.NewFile(3, "starter")
}

func runMPSDaemon(ctx context.Context, pipe string) (err error) {
	waiting := starter()
	defer func() {
		if waiting != nil && err != nil {
			_, _ = fmt.Fprint(waiting, err) // it is closed if it listened before
		}
	}()
	exe, err := state.Executable()
	if err != nil {
		return err
	}
	dir := cmp.Or(os.Getenv(mps.LogVariable), mps.DefaultLog)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("%s: %w", mps.LogVariable, err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "control.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", mps.LogVariable, err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	d := mps.Daemon{Pipe: pipe, Server: filepath.Join(filepath.Dir(exe), "nvidia-cuda-mps-server"),
		Log: slog.New(slog.NewTextHandler(log, nil))}
	if waiting != nil {
		d.Listening = func() {
			_, _ = io.WriteString(waiting, listening) // the starter may be gone
			_ = waiting.Close()
		}
	}
	return d.Run(ctx)
}

// runMPSServer waits until it is ended. Like the server of 580.159.04 it names its threads first, and ends where /proc does not let it.
func runMPSServer(ctx context.Context) error {
	if err := os.WriteFile("/proc/self/comm", []byte("mps-server"), 0); err != nil {
		return fmt.Errorf("driver initialization failed with: OS call failed or operation not supported on this OS (%w)", err)
	}
	<-ctx.Done()
	return nil
}
