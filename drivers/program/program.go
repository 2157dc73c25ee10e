// Package program is `gpufabric`: a subcommand per role.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/host"
)

// Host has a role's means of access to its machine; the zero value is the real machine.
type Host = host.Host

// Version is the commit or tag that the program was built from; the build sets it, and nothing else does.
var Version = "dev"

// Run runs `gpufabric ARGS...` until it ends or ctx is cancelled. Being cancelled is a role's ordinary end and no error.
func Run(ctx context.Context, host Host, args ...string) error {
	root := &cobra.Command{
		Use:           "gpufabric",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name(host.Called)},
		Short:         "GPU fabric for Kubernetes: NVLink compute domains, RDMA pools and GPU slices",
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
	for _, command := range roles() {
		role := command(host)
		if !role.HasSubCommands() {
			role.Args = flagsOnly
		}
		root.AddCommand(role)
	}
	if err := root.ExecuteContext(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", name(host.Called), strings.Join(args[:min(1, len(args))], ""), err)
	}
	return nil
}

// plugin is the name under which kubectl finds the program on the PATH, and runs it for `kubectl gpufabric`.
const plugin = "kubectl-gpufabric"

// name is the name under which a person ran the program.
func name(called string) string {
	if filepath.Base(called) == plugin {
		return "kubectl gpufabric"
	}
	return "gpufabric"
}

// flagsOnly refuses what is no flag. Most often it is the value of a boolean flag behind a space, which cobra would call an unknown
// command.
func flagsOnly(cmd *cobra.Command, args []string) error {
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
