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
)

// runMPSControl is nvidia-cuda-mps-control: -d runs the daemon in the background, -f in the foreground, and without either commands are
// read from standard input.
func runMPSControl(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("nvidia-cuda-mps-control", flag.ContinueOnError)
	flags.SetOutput(stderr)
	background := flags.Bool("d", false, "start the control daemon in the background")
	foreground := flags.Bool("f", false, "start the control daemon in the foreground")
	if err := flags.Parse(args); err != nil {
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

func startInBackground() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, "-f") //nolint:noctx // it is to outlive this process
	cmd.Args[0] = "nvidia-cuda-mps-control"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the control daemon: %w", err)
	}
	return cmd.Process.Release()
}

func runMPSDaemon(ctx context.Context, pipe string) (err error) {
	exe, err := os.Executable()
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
	d := mps.Daemon{Pipe: pipe, Server: filepath.Join(filepath.Dir(exe), "nvidia-cuda-mps-server"), Log: slog.New(slog.NewTextHandler(log, nil))}
	return d.Run(ctx)
}
