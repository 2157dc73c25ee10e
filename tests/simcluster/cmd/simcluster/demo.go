package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/demo"
	"gpufabric.io/tests/simcluster/fabric"
)

func demoCommand(dir *string) *cobra.Command {
	flags := upFlags{nodes: demo.Nodes, machines: cluster.Machines{Profile: demo.Profile}}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a compute domain form over a rack, from nothing, with Terraform and the chart",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := demo.Demo{Dir: *dir, Out: cmd.OutOrStdout()}
			d.Up = func(ctx context.Context) error {
				if err := up(ctx, *dir, flags, func(string, ...any) {}); err != nil {
					return err
				}
				return logTo(filepath.Join(*dir, "logs", "demo.log"))
			}
			return d.Run(cmd.Context())
		},
	}
	flags.bindMode(cmd, fabric.AsProcesses)
	return cmd
}

// logTo has the Kubernetes libraries log to a file: a watch that ends is news between the lines of the demo otherwise. The file stays open
// until the process ends.
func logTo(path string) error {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the demo's log: %w", err)
	}
	klog.SetLoggerWithOptions(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log))), klog.ContextualLogger(true))
	return nil
}
