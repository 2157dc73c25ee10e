package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/runtimehook"
	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/exclusive"
)

// podNetworks moves claimed devices into pods' networks, where a container runtime tells of them.
type podNetworks struct {
	socket string
	mover  *exclusive.Mover
	hook   *exclusive.Hook
}

var _ dra.PodNetworks = &podNetworks{}

// newPodNetworks makes it; records are the prepared claims.
func newPodNetworks(o Options) (*podNetworks, error) {
	mover, err := exclusive.NewMover(filepath.Join(o.StateDir, "pod-networks"), o.links(), atomicfile.Writer{})
	if err != nil {
		return nil, err
	}
	return &podNetworks{socket: o.RuntimeSocket, mover: mover, hook: &exclusive.Hook{Mover: mover, Nodes: o.deviceNodes().NRI}}, nil
}

// links are the kernel's.
func (o *Options) links() exclusive.Links {
	if o.Links != nil {
		return o.Links
	}
	return exclusive.Netlink{Sysfs: o.SysfsRoot}
}

// notOpened says what a pod with a network of its own meets on a node in exclusive mode: rdma_dev_access_netns of the kernel lets it open only what is in
// its network namespace, where units of device plugins and shared claims do not go.
const notOpened = "the node's RDMA devices are in exclusive mode: a pod with a network of its own cannot open what it is given here; " +
	"use claims with network: Exclusive, or host networking, or set the mode back with \"rdma system set netns shared\""

// Ready implements dra.PodNetworks.
func (n *podNetworks) Ready() error {
	if n.socket == "" {
		return errors.New("this node's plugin does not hear of pods' networks: start it with --nri-socket (the chart's rdma.nriSocket)")
	}
	exclusively, err := n.mover.Exclusive()
	if err != nil {
		return err
	}
	if !exclusively {
		return errors.New("this node's RDMA devices are in every network namespace: set the mode with \"rdma system set netns exclusive\", or the module option ib_core.netns_mode=0, before any pod runs")
	}
	if !n.hook.Connected() {
		return fmt.Errorf("the container runtime does not answer on its NRI socket %s: is NRI enabled in containerd (on by default since 2.0)?", n.socket)
	}
	return nil
}

// TakeFrom implements dra.PodNetworks.
func (n *podNetworks) TakeFrom(claim, podUID string) error { return n.mover.TakeFrom(claim, podUID) }

// run follows the container runtime until ctx ends. served holds the claims whose devices it moves.
func (n *podNetworks) run(ctx context.Context, served *draplugin.Plugin) error {
	n.hook.Grants = func(podUID string) []exclusive.Grant {
		var grants []exclusive.Grant
		for _, record := range served.Records() {
			if grant, ok := dra.GrantOf(record); ok && grant.PodUID == podUID {
				grants = append(grants, grant)
			}
		}
		return grants
	}
	return runtimehook.Run(ctx, runtimehook.Settings{
		Socket: n.socket, Name: "gpufabric-rdma", Index: "30", Without: "no RDMA device goes into a pod's network",
	}, n.hook)
}
