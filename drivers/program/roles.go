package program

import (
	"github.com/spf13/cobra"

	"gpufabric.io/drivers/computedomain/daemon"
	domains "gpufabric.io/drivers/computedomain/plugin"
	"gpufabric.io/drivers/controllers"
	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/doctor/migrate"
	"gpufabric.io/drivers/fabric/console"
	"gpufabric.io/drivers/fabric/migplan"
	"gpufabric.io/drivers/fabric/nodetemplate"
	"gpufabric.io/drivers/fabric/topology"
	gpuexplain "gpufabric.io/drivers/gpu/explain"
	"gpufabric.io/drivers/gpu/mpskeeper"
	gpu "gpufabric.io/drivers/gpu/plugin"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/host"
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
		draplugin.ReleaseCommand,
		rdma.Command,
		vgpu.Command,
		vgpu.MonitorCommand,
		vgpubench.Command,
		webhook.Command,
		doctorCommand,
		topology.Command,
		migplan.Command,
		migrate.Command,
		nodetemplate.Command,
		console.Command,
		uninstall.Command,
	}
}

// doctorCommand is `gpufabric doctor`, with the answers that need a driver's knowledge of its devices: the forms of GPUs, and the
// pools of RDMA devices.
func doctorCommand(h host.Host) *cobra.Command {
	command := doctor.Command(h)
	for _, subject := range []*cobra.Command{gpuexplain.Command(h), rdmaexplain.Command(h)} {
		subject.Args = flagsOnly
		command.AddCommand(subject)
	}
	return command
}
