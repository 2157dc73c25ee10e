// Command gpufabric runs one role of the GPU fabric; `gpufabric help` lists them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"gpufabric.io/drivers/program"
	"gpufabric.io/drivers/program/footprint"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go footprint.Keep(ctx, program.Look(os.Args[1:]...))
	if err := program.Run(ctx, program.Host{}, os.Args[1:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}
