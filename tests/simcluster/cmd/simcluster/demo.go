package main

import (
	"context"

	"github.com/spf13/cobra"

	"gpufabric.io/tests/simcluster/demo"
	"gpufabric.io/tests/simcluster/fabric"
)

func demoCommand(dir *string) *cobra.Command {
	flags := upFlags{nodes: demo.Nodes, profile: demo.Profile}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a compute domain form over a rack, from nothing, with Terraform and the chart",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := demo.Demo{Dir: *dir, Out: cmd.OutOrStdout()}
			d.Up = func(ctx context.Context) error {
				return up(ctx, *dir, flags, func(string, ...any) {})
			}
			return d.Run(cmd.Context())
		},
	}
	flags.bindMode(cmd, fabric.AsProcesses)
	return cmd
}
