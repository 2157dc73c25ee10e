// Command harness manages the kind cluster of demos and end-to-end tests. `harness help` lists its commands.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "harness",
		Short:         "Work the kind cluster that demos and end-to-end tests run in",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(kindCommand())
	return root.ExecuteContext(ctx)
}
