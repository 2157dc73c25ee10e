// Package cluster is the program gpufabric: people's commands, and the roles that run once in a cluster.
package cluster

import (
	"github.com/spf13/cobra"

	"gpufabric.io/drivers/controllers"
	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/doctor/migrate"
	"gpufabric.io/drivers/fabric/console"
	"gpufabric.io/drivers/fabric/migplan"
	"gpufabric.io/drivers/fabric/nodetemplate"
	"gpufabric.io/drivers/fabric/topology"
	gpuexplain "gpufabric.io/drivers/gpu/explain"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/program"
	rdmaexplain "gpufabric.io/drivers/rdma/explain"
	"gpufabric.io/drivers/uninstall"
	vgpubench "gpufabric.io/drivers/vgpu/bench"
	"gpufabric.io/drivers/webhook"
)

// Name is the program's.
const Name = "gpufabric"

// Program is gpufabric, its subcommands one a line.
func Program() program.Program {
	return program.Program{
		Name:  Name,
		Short: "GPU fabric for Kubernetes: NVLink compute domains, RDMA pools and GPU slices",
		Commands: []func(program.Host) *cobra.Command{
			doctorCommand,
			topology.Command,
			console.Command,
			migplan.Command,
			migrate.Command,
			nodetemplate.Command,
			vgpubench.Command,
			drain.Command,
			drain.UndrainCommand,
			draplugin.ReleaseCommand,
			controllers.Command,
			webhook.Command,
			uninstall.Command,
		},
	}
}

// doctorCommand is `gpufabric doctor`, with the answers that need a driver's knowledge of its devices: the forms of GPUs, and the
// pools of RDMA devices.
func doctorCommand(h program.Host) *cobra.Command {
	command := doctor.Command(h)
	for _, subject := range []*cobra.Command{gpuexplain.Command(h), rdmaexplain.Command(h)} {
		subject.Args = program.FlagsOnly
		command.AddCommand(subject)
	}
	return command
}
