// Package plugin is the role rdma-plugin: it finds a node's RDMA devices, puts them into pools and gives them to pods.
package plugin

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/options"
	"gpufabric.io/drivers/rdma/config"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// Options are the settings of the role.
type Options struct {
	options.Node
	// ConfigFile is the config.json; a missing file counts as one without pools.
	ConfigFile string
	// DevicePlugin serves pools to the kubelet as extended resources.
	DevicePlugin bool
	// DevicePluginCDI gives containers of extended resources their device nodes by CDI.
	DevicePluginCDI bool
	// Slots is how many claims can share a device that is in no pool.
	Slots int
	// RuntimeSocket is the container runtime's NRI socket, which reports pods' network namespaces; empty: no device moves into one.
	RuntimeSocket string
	// VerbsEvents: the role also receives the events that the kernel sends to programs with an HCA open.
	VerbsEvents bool
	// Interfaces is how the interfaces of pools' devices are set up.
	Interfaces exclusive.Setup
	// OpenVerbs opens HCAs for that; nil: the real ones.
	OpenVerbs OpenVerbs
	// Links are the kernel's; nil: the real ones.
	Links exclusive.Links
	// Client reaches the API server for Dynamic Resource Allocation, as driver rdma.gpufabric.io; nil: it is not served.
	Client kubernetes.Interface
	// Pools are the RDMAPools; nil: there are only the file's pools.
	Pools Pools
}

// An interface's MTU in bytes: the minimum of IPv6 (RFC 8200), and the maximum of an IPoIB interface in connected mode.
const leastMTU, mostMTU = 1280, 65520

// mostSlots is the chart's maximum.
const mostSlots = 100_000

// Validate returns an error for every flag with an unusable value.
func (o *Options) Validate() error {
	var slots error
	if o.Client != nil && (o.Slots < 1 || o.Slots > mostSlots) {
		slots = fmt.Errorf("--slots %d: allowed are 1 to %d claims that share a device", o.Slots, mostSlots)
	}
	var mtu error
	if o.Interfaces.MTU != 0 && (o.Interfaces.MTU < leastMTU || o.Interfaces.MTU > mostMTU) {
		mtu = fmt.Errorf("--interfaces-mtu %d: allowed are 0 (leave it as it is) and %d to %d bytes", o.Interfaces.MTU, leastMTU, mostMTU)
	}
	return errors.Join(o.Node.Validate(), slots, mtu)
}

// deviceNodes is where the node's device nodes are, and their numbers.
func (o *Options) deviceNodes() inventory.DeviceNodes {
	return inventory.DeviceNodes{Dev: o.Dev(), Sysfs: o.SysfsRoot}
}

// Command is the role as a subcommand.
func Command(h host.Host) *cobra.Command {
	var o Options
	var serveDRA, readPools bool
	command := &cobra.Command{
		Use:   Role,
		Short: "Give RDMA devices to pods: shared or whole, by pools, with the health of their ports",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Node.Validate(); err != nil { // before it looks for an API server
				return err
			}
			if serveDRA || readPools {
				if err := o.connect(h, serveDRA, readPools); err != nil {
					return err
				}
			}
			o.Files = h.Watcher()
			return Run(cmd.Context(), o)
		},
	}
	o.Bind(command.Flags(), h.Env, Role)
	o.BindClaims(command.Flags())
	command.Flags().StringVar(&o.ConfigFile, "config", config.DefaultFile, "config.json of pools, reread when it changes")
	command.Flags().BoolVar(&o.DevicePlugin, "device-plugin", true, "serve pools to the kubelet as extended resources")
	command.Flags().BoolVar(&o.DevicePluginCDI, "device-plugin-cdi", false,
		"give containers of extended resources their device nodes by CDI (the runtime must have CDI on)")
	command.Flags().BoolVar(&serveDRA, "dra", true, "publish devices under Dynamic Resource Allocation")
	command.Flags().StringVar(&o.RuntimeSocket, "nri-socket", "",
		"the container runtime's NRI socket, for claims with network: Exclusive, whose devices move into the pod's network namespace (needs "+
			"CAP_NET_ADMIN and CAP_SYS_ADMIN in the node's network); empty: such claims are refused")
	command.Flags().BoolVar(&o.VerbsEvents, "verbs-events", false,
		"receive events of ports from the HCAs themselves too (async events of /dev/infiniband/uverbsN, "+
			"which the plugin then holds open and needs "+
			"access to); without it, or where a driver refuses, rtnetlink and a reading every 400 ms do")
	command.Flags().BoolVar(&o.Interfaces.Up, "interfaces-up", false,
		"bring the interfaces of pools' devices up, each when it comes (needs CAP_NET_ADMIN in the node's network)")
	command.Flags().IntVar(&o.Interfaces.MTU, "interfaces-mtu", 0,
		"MTU of the interfaces of pools' devices in bytes, set when they come (needs CAP_NET_ADMIN in the node's network); 0: leave it as it is")
	command.Flags().BoolVar(&readPools, "rdma-pools", true, "serve the RDMAPools that select this node, besides the file's pools")
	command.Flags().IntVar(&o.Slots, "slots", defaultSlots, "claims that can share a device that is in no pool")
	return command
}

// defaultSlots is how many claims can share a device that is in no pool.
const defaultSlots = 64

// connect makes the clients for the API server.
func (o *Options) connect(h host.Host, serveDRA, readPools bool) error {
	reach, err := h.Kubernetes()
	if err != nil {
		return fmt.Errorf("%w (with --dra=false --rdma-pools=false no API server is needed)", err)
	}
	client, err := host.Client(reach, Role)
	if err != nil {
		return err
	}
	if serveDRA {
		o.Client = client
	}
	if readPools {
		pools, err := pool.NewClient(host.Tune(reach, Role), client, o.NodeName)
		if err != nil {
			return err
		}
		o.Pools = pools
	}
	return nil
}
