// Package program is the command line: fakefabric's subcommands, and the tools of a node's driver root.
package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// Main runs the program under the name it was started by and gives the exit status.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return Run(ctx, filepath.Base(args[0]), args[1:], os.Stdout, os.Stderr)
}

// Run runs one command with its arguments: name is fakefabric or one of tree.Tools.
func Run(ctx context.Context, name string, args []string, stdout, stderr io.Writer) int {
	var err error
	switch name {
	case "nvidia-smi":
		err = runSMI(args, stdout)
	case "nvidia-imex":
		err = runIMEX(ctx, args, stderr)
	case "nvidia-imex-ctl":
		err = runIMEXControl(ctx, args, stdout)
	case "nvidia-cuda-mps-control":
		err = runMPSControl(ctx, args, stdout, stderr)
	case "nvidia-cuda-mps-server":
		<-ctx.Done() // a server of the MPS stand-in waits until it is told to end
	default:
		err = runFakefabric(ctx, args, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

func runFakefabric(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use:           "fakefabric",
		Short:         "Makes GPU fabric nodes that are not there: NVML, sysfs, procfs, /dev, InfiniBand and IMEX from one profile",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	//nolint:contextcheck // each command takes its context from cobra
	root.AddCommand(renderCommand(), profilesCommand(), validateCommand(), injectCommand(), playCommand(), traceCommand(), recordCommand(), compareCommand(), schemaCommand(), agentCommand())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return fmt.Errorf("%w; see %s --help", err, c.CommandPath()) })
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// wants takes one argument, or more where more is true; the error says what they are.
func wants(more bool, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 || len(args) > 1 && !more {
			return fmt.Errorf("%s takes %s; got %q", c.CommandPath(), what, args)
		}
		return nil
	}
}
