// Simcluster runs a simulated cluster of GPU fabric nodes: a real control plane and nodes that are the kubelet's own code
// over fake hardware. It needs neither Docker nor root.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// defaultDir is short because unix sockets lie below it, whose paths may have 107 bytes.
const defaultDir = "/tmp/simcluster"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "simcluster",
		Short:         "Run a simulated cluster of GPU fabric nodes, without Docker or root",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var dir string
	root.PersistentFlags().StringVar(&dir, "dir", defaultDir, "the cluster's directory; at most 25 bytes, because of unix sockets below it")
	root.AddCommand(upCommand(&dir), downCommand(&dir), statusCommand(&dir), devicesCommand(&dir), nodesCommand(&dir), demoCommand(&dir),
		addCommand(&dir), runCommand(&dir), benchCommand(&dir),
		benchSchedulingCommand(&dir), benchControllerCommand(&dir), compareGPUCommand(), tortureCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "simcluster:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}
