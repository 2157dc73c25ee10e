// Package program is `gpufabric`: a subcommand per role.
package program

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/program/host"
)

// Host is what a role may ask of the machine it runs on; the zero value is the real machine.
type Host = host.Host

// Run runs `gpufabric ARGS...` until it ends or ctx is cancelled. Being cancelled is a role's ordinary end and no error.
func Run(ctx context.Context, host Host, args ...string) error {
	root := &cobra.Command{
		Use:           "gpufabric",
		Short:         "GPU fabric for Kubernetes: NVLink compute domains, RDMA pools and GPU slices",
		SilenceUsage:  true,
		SilenceErrors: true,
		// Each role has a logger of its own, as verbose as its flag -v says where it has one.
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			verbosity := 0
			if cmd.Flags().Lookup("v") != nil {
				verbosity, _ = cmd.Flags().GetInt("v")
			}
			cmd.SetContext(klog.NewContext(ctx, host.Logger(cmd.Name(), verbosity)))
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetArgs(args)
	root.SetOut(host.Out())
	root.SetErr(host.Err())
	for _, command := range roles() {
		root.AddCommand(command(host))
	}
	if err := root.ExecuteContext(ctx); err != nil {
		return fmt.Errorf("gpufabric %s: %w", strings.Join(args[:min(1, len(args))], ""), err)
	}
	return nil
}
