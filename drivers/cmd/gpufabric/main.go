// Command gpufabric runs one role of the GPU fabric; `gpufabric help` lists them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(program.Host{}.Logger("gpufabric", 0)) // loggers other than a role's own also escape tenants' text
	if err := program.Confine(os.Args[1:]...); err != nil {
		klog.Background().Error(err, "The role continues without its own seccomp filter")
	}
	if err := program.Run(ctx, program.Host{Called: os.Args[0]}, os.Args[1:]...); err != nil {
		stop()
		os.Exit(program.Status(os.Stderr, err)) //nolint:gocritic // stop was called
	}
}
