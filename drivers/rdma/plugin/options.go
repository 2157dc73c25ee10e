// Package plugin is the role rdma-plugin: it finds a node's RDMA devices, puts them into pools and hands them to pods.
package plugin

import (
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"gpufabric.io/drivers/node/options"
	"gpufabric.io/drivers/program/host"
	"gpufabric.io/drivers/rdma/config"
)

// Driver is the DRA driver's name.
const Driver = "rdma.gpufabric.io"

// Options are what the role is started with.
type Options struct {
	options.Node
	// ConfigFile is the config.json; a file that is not there is one without pools.
	ConfigFile string
	// DevicePlugin serves pools to the kubelet as extended resources, DRA as devices of the driver rdma.gpufabric.io.
	DevicePlugin, DRA bool
	// RESTConfig says how to reach the API server; nil: RDMAPools and DRA are not served.
	RESTConfig func() (*rest.Config, error)
	// Clock is time; nil: the real one.
	Clock clock.WithTicker
}

// Command is the role as a subcommand.
func Command(h host.Host) *cobra.Command {
	o := Options{RESTConfig: h.Kubernetes}
	command := &cobra.Command{
		Use:   "rdma-plugin",
		Short: "Hand RDMA devices to pods: shared or whole, by pools, with the health of their ports",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return Run(cmd.Context(), o) },
	}
	o.Bind(command.Flags(), h.Env, "rdma-plugin")
	command.Flags().StringVar(&o.ConfigFile, "config", config.DefaultFile, "config.json of pools, reread when it changes")
	command.Flags().BoolVar(&o.DevicePlugin, "device-plugin", true, "serve pools to the kubelet as extended resources")
	command.Flags().BoolVar(&o.DRA, "dra", true, "publish devices under Dynamic Resource Allocation")
	return command
}
