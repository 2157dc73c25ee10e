// Package program is the command line: fakefabric's subcommands, and the tools of a node's driver root.
package program

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

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/smi"
)

// Main runs the program under the name by which it was started and returns the exit status.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return Run(ctx, filepath.Base(args[0]), args[1:], os.Stdout, os.Stderr)
}

// Run runs one command with its arguments: name is fakefabric or one of tree.Tools.
func Run(ctx context.Context, name string, args []string, stdout, stderr io.Writer) int {
	var err error
	out := &output{to: stdout}
	switch name {
	case "nvidia-smi":
		err = runSMI(ctx, args, out)
	case "nvidia-imex":
		err = runIMEX(ctx, args, out, stderr)
	case "nvidia-imex-ctl":
		err = runIMEXControl(ctx, args, out)
	case "nvidia-cuda-mps-control":
		err = runMPSControl(ctx, args, out)
	case "nvidia-cuda-mps-server":
		err = runMPSServer(ctx)
	default:
		err = runFakefabric(ctx, args, out, stderr)
	}
	switch {
	case err == nil:
		err = out.failed
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		err = errors.New("interrupted")
	}
	var status smi.StatusError
	switch {
	case errors.As(err, &status):
		return int(status)
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// output stores a failed write, so that a command whose answer is lost fails: a full disk, a closed pipe.
type output struct {
	to     io.Writer
	failed error
}

// Write implements io.Writer.
func (o *output) Write(text []byte) (int, error) {
	n, err := o.to.Write(text)
	if err != nil && o.failed == nil {
		o.failed = err
	}
	return n, err
}

// parse reads the flags of one of the driver root's tools. With -h it prints them on stdout, and the tool ends.
func parse(flags *flag.FlagSet, args []string, stdout io.Writer) (done bool, err error) {
	flags.SetOutput(io.Discard) // it would report a mistake, which the caller does
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stdout)
		flags.Usage()
		return true, nil
	case err != nil:
		return false, fmt.Errorf("%w; see %s -h", err, flags.Name())
	}
	return false, nil
}

func runFakefabric(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use:           "fakefabric",
		Short:         "Makes GPU fabric nodes that are not there: NVML, sysfs, procfs, /dev, InfiniBand and IMEX from one profile",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	//nolint:contextcheck // each command takes its context from cobra
	root.AddCommand(renderCommand(), profilesCommand(), validateCommand(), injectCommand(), playCommand(), traceCommand(), recordCommand(),
		compareCommand(), schemaCommand(), agentCommand(), ibnetdiscoverCommand(),
		elsewhereCommand("objects", "Print Nodes and ResourceSlices of a profile, for clusters of API objects", "fakefabric-objects"),
		elsewhereCommand("torture", "Do to the kubelet plugin of a DRA driver what clusters do", "simcluster", "torture"))
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return fmt.Errorf("%w; see %s --help", err, c.CommandPath()) })
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// wants takes one argument, or more where more is true; the error describes them.
func wants(more bool, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 || len(args) > 1 && !more {
			return fmt.Errorf("%s takes %s, not %d arguments; see %s --help", c.Name(), what, len(args), c.CommandPath())
		}
		return nil
	}
}

// flagsOnly refuses arguments that are no flags, which cobra would call an unknown command.
func flagsOnly(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes only flags, not %q; see %s --help", c.Name(), args[0], c.CommandPath())
	}
	return nil
}
