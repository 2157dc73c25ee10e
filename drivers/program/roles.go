package program

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/computedomain/daemon"
	domains "gpufabric.io/drivers/computedomain/plugin"
	"gpufabric.io/drivers/controllers"
	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/fabric/console"
	"gpufabric.io/drivers/fabric/topology"
	gpuexplain "gpufabric.io/drivers/gpu/explain"
	"gpufabric.io/drivers/gpu/mpskeeper"
	gpu "gpufabric.io/drivers/gpu/plugin"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/program/footprint"
	rdmaexplain "gpufabric.io/drivers/rdma/explain"
	rdma "gpufabric.io/drivers/rdma/plugin"
	"gpufabric.io/drivers/uninstall"
	vgpubench "gpufabric.io/drivers/vgpu/bench"
	vgpu "gpufabric.io/drivers/vgpu/plugin"
	"gpufabric.io/drivers/webhook"
)

// roles are the program's subcommands, one a line.
func roles() []func(host.Host) *cobra.Command {
	return []func(host.Host) *cobra.Command{
		controllers.Command,
		domains.Command,
		daemon.Command,
		gpu.Command,
		mpskeeper.Command,
		gpu.DrainCommand,
		gpu.UndrainCommand,
		rdma.Command,
		vgpu.Command,
		vgpu.MonitorCommand,
		vgpubench.Command,
		webhook.Command,
		doctor.Command,
		explainCommand,
		topology.Command,
		console.Command,
		uninstall.Command,
	}
}

// explainCommand is `gpufabric explain`, whose subcommands say why things are as they are.
func explainCommand(h host.Host) *cobra.Command {
	command := &cobra.Command{
		Use:   "explain",
		Short: "Say why devices are offered as they are, and what a claim waits for",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("say what: gpufabric explain gpu, or gpufabric explain rdma")
			}
			return fmt.Errorf("%q cannot be explained: gpufabric explain gpu and gpufabric explain rdma are what there is", args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil }, // Args refuses every call without a subcommand.
	}
	for _, subject := range []*cobra.Command{gpuexplain.Command(h), rdmaexplain.Command(h)} {
		subject.Args = flagsOnly
		command.AddCommand(subject)
	}
	return command
}

// Look is how often the process of `gpufabric ARGS...` should look at its resident memory (see footprint.Keep).
func Look(args ...string) time.Duration {
	// An HCA's ports come and go without a pod that waits, on nodes that have nothing else to do for hours.
	if len(args) > 0 && args[0] == rdma.Role {
		return footprint.Promptly
	}
	return footprint.Unhurriedly
}
