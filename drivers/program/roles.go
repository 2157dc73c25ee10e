package program

import (
	"github.com/spf13/cobra"

	"gpufabric.io/drivers/computedomain/controller"
	"gpufabric.io/drivers/computedomain/daemon"
	"gpufabric.io/drivers/computedomain/nodeplugin"
	gpuobjects "gpufabric.io/drivers/gpu/controller"
	gpu "gpufabric.io/drivers/gpu/nodeplugin"
	"gpufabric.io/drivers/program/host"
	rdmapools "gpufabric.io/drivers/rdma/controller"
	"gpufabric.io/drivers/rdma/explain"
	rdma "gpufabric.io/drivers/rdma/plugin"
	"gpufabric.io/drivers/rdma/policy"
	"gpufabric.io/drivers/uninstall"
	vgpu "gpufabric.io/drivers/vgpu/nodeplugin"
	"gpufabric.io/drivers/webhook"
)

// roles are the program's subcommands, one a line.
func roles() []func(host.Host) *cobra.Command {
	return []func(host.Host) *cobra.Command{
		func(h host.Host) *cobra.Command {
			return controller.Command(h, gpuobjects.Add, rdmapools.Add, policy.Adder(policy.FromEnvironment(h.Env)))
		},
		nodeplugin.Command,
		daemon.Command,
		gpu.Command,
		rdma.Command,
		vgpu.Command,
		vgpu.MonitorCommand,
		webhook.Command,
		explain.Command,
		uninstall.Command,
	}
}
