// Package program runs the subcommands of gpufabric and gpufabric-node.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/host"
)

// Host has a role's means of access to its machine; the zero value is the real machine.
type Host = host.Host

// Version is the commit or tag that the program was built from; the build sets it, and nothing else does.
var Version = "dev"

// Program is a name and its subcommands.
type Program struct {
	Name, Short string
	Commands    []func(Host) *cobra.Command
	// Confine, where it is set, limits what this process may do as the subcommand that its arguments begin with.
	Confine func(args ...string) error
}

// Main runs the process's arguments on the real machine until SIGTERM or SIGINT, and returns the exit status.
func (p Program) Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(Host{}.Logger(p.Name, 0)) // loggers other than a role's own also escape tenants' text
	if p.Confine != nil {
		if err := p.Confine(os.Args[1:]...); err != nil {
			klog.Background().Error(err, "The role continues without its own seccomp filter")
		}
	}
	if err := p.Run(ctx, Host{Called: os.Args[0]}, os.Args[1:]...); err != nil {
		return Status(os.Stderr, err)
	}
	return 0
}

// Run runs `NAME ARGS...` until it ends or ctx is cancelled. Being cancelled is a role's ordinary end and no error.
func (p Program) Run(ctx context.Context, host Host, args ...string) error {
	root := &cobra.Command{
		Use:           p.Name,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: p.called(host.Called)},
		Short:         p.Short,
		Version:       Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		// Each role has a logger of its own, with the verbosity of its flag -v, if it has one.
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			verbosity := 0
			if cmd.Flags().Lookup("v") != nil {
				verbosity, _ = cmd.Flags().GetInt("v")
			}
			cmd.SetContext(klog.NewContext(ctx, host.Logger(cmd.Name(), verbosity)))
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.SetArgs(args)
	root.SetOut(host.Out())
	root.SetErr(host.Err())
	for _, command := range p.Commands {
		added := command(host)
		if !added.HasSubCommands() {
			added.Args = FlagsOnly
		}
		root.AddCommand(added)
	}
	if err := root.ExecuteContext(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", p.called(host.Called), strings.Join(args[:min(1, len(args))], ""), err)
	}
	return nil
}

// called is the name of the program in its help and errors. kubectl finds kubectl-NAME on the PATH, and runs it for `kubectl NAME`.
func (p Program) called(path string) string {
	if filepath.Base(path) == "kubectl-"+p.Name {
		return "kubectl " + p.Name
	}
	return p.Name
}

// FlagsOnly refuses an argument that is not a flag. Most often it is the value of a boolean flag behind a space, which cobra would call an
// unknown command.
func FlagsOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("takes only flags, not %q; a boolean flag takes its value behind =, as in --flag=false; see %s --help", args,
			cmd.CommandPath())
	}
	return nil
}

// Status is the exit status of a program that ended with an error, which it prints unless the message is empty.
func Status(to io.Writer, err error) int {
	status := 1
	var own interface {
		error
		ExitStatus() int
	}
	if errors.As(err, &own) {
		status = own.ExitStatus()
	}
	if own == nil || own.Error() != "" {
		_, _ = fmt.Fprintln(host.Visible(to), err) // standard error is the last that can be written to
	}
	return status
}
