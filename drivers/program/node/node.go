// Package node is the program gpufabric-node: the roles that run on every node, without the clients of people's commands and controllers.
package node

import (
	"github.com/spf13/cobra"

	"gpufabric.io/drivers/computedomain/daemon"
	domains "gpufabric.io/drivers/computedomain/plugin"
	"gpufabric.io/drivers/gpu/mpskeeper"
	gpu "gpufabric.io/drivers/gpu/plugin"
	"gpufabric.io/drivers/program"
	rdma "gpufabric.io/drivers/rdma/plugin"
	vgpu "gpufabric.io/drivers/vgpu/plugin"
)

// Name is the program's.
const Name = "gpufabric-node"

// Program is gpufabric-node, its roles one a line.
func Program() program.Program {
	return program.Program{
		Name:    Name,
		Confine: Confine,
		Short:   "The node's roles of gpufabric, the GPU fabric for Kubernetes",
		Commands: []func(program.Host) *cobra.Command{
			domains.Command,
			daemon.Command,
			gpu.Command,
			mpskeeper.Command,
			rdma.Command,
			vgpu.Command,
			vgpu.MonitorCommand,
		},
	}
}
