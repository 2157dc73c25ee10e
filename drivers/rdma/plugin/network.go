package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/runtimehook"
	"gpufabric.io/drivers/node/store"
	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/exclusive"
)

// podNetworks moves claimed devices into pods' networks, when a container runtime announces a network.
type podNetworks struct {
	socket string
	mover  *exclusive.Mover
	hook   *exclusive.Hook
	// unreadable are the unreadable records of devices in pods.
	unreadable []store.Unreadable
}

var _ dra.PodNetworks = &podNetworks{}

// newPodNetworks makes podNetworks; records returns the prepared claims.
func newPodNetworks(o Options) (*podNetworks, error) {
	mover, unreadable, err := exclusive.NewMover(filepath.Join(o.StateDir, "pod-networks"), o.links(), atomicfile.Writer{})
	if err != nil {
		return nil, err
	}
	return &podNetworks{socket: o.RuntimeSocket, mover: mover, unreadable: unreadable,
		hook: &exclusive.Hook{Mover: mover, Nodes: o.deviceNodes().NRI}}, nil
}

// links are the kernel's.
func (o *Options) links() exclusive.Links {
	if o.Links != nil {
		return o.Links
	}
	return exclusive.Netlink{Sysfs: o.SysfsRoot}
}

// Ready implements dra.PodNetworks.
func (n *podNetworks) Ready() error {
	if n.socket == "" {
		return errors.New("this node's plugin is not notified of pods' networks: start it with --nri-socket (the chart's rdma.nriSocket)")
	}
	exclusively, err := n.mover.Exclusive()
	if err != nil {
		return err
	}
	if !exclusively {
		return errors.New("this node's RDMA devices are in every network namespace: set the mode with \"rdma system set netns exclusive\", or " +
			"the module option ib_core.netns_mode=0, before any pod runs")
	}
	if !n.hook.Connected() {
		return fmt.Errorf("the container runtime does not answer on its NRI socket %s: is NRI enabled in containerd (on by default since 2.0)?",
			n.socket)
	}
	return nil
}

// Closed implements dra.PodNetworks.
func (n *podNetworks) Closed() bool {
	exclusively, err := n.mover.Exclusive()
	return exclusively && err == nil // A kernel without RDMA has no mode.
}

// TakeFrom implements dra.PodNetworks.
func (n *podNetworks) TakeFrom(ctx context.Context, claim, podUID string) error {
	return n.mover.TakeFrom(ctx, claim, podUID)
}

// run is connected to the container runtime until ctx ends. served has the claims whose devices it moves.
func (n *podNetworks) run(ctx context.Context, served *draplugin.Plugin, events record.EventRecorder) error {
	n.hook.Events = events
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
