package dra

import (
	"context"
	"encoding/json"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/rdma/exclusive"
)

// PodNetworks moves devices into pods' networks.
type PodNetworks interface {
	// Ready returns nil where devices can be moved, else the obstacle and the remedy.
	Ready() error
	// Closed reports whether the node's devices are in exclusive mode. A pod with its own network namespace can then open only devices
	// that were moved there.
	Closed() bool
	// TakeFrom takes back the interfaces that a claim (namespace/name) gave to the pod with that UID.
	TakeFrom(ctx context.Context, claim, podUID string) error
}

// data is the part of a claim's record that a later process needs.
type data struct {
	Exclusive *exclusive.Grant `json:"exclusive,omitempty"`
}

// GrantOf returns the devices that a prepared claim moves into a pod's network; false: none.
func GrantOf(record claimstate.Record) (exclusive.Grant, bool) {
	var d data
	if len(record.Data) == 0 || json.Unmarshal(record.Data, &d) != nil || d.Exclusive == nil {
		return exclusive.Grant{}, false
	}
	return *d.Exclusive, true
}

// whole returns the HCA of a device that can move into a pod's network: moving a link moves all ports of its HCA.
func (k *Preparer) whole(d draplugin.AllocatedDevice, p Port) (exclusive.Device, error) {
	if d.ShareID != nil {
		return exclusive.Device{}, draplugin.Refuse("NotExclusive",
			"network: Exclusive needs a device that is given whole, and %s is shared: put it into a pool with exclusive devices (rdmaHcaMax 0 or "+
				"1 for each HCA)", d.Device)
	}
	for _, port := range p.HCA.Ports {
		if !slices.Contains(p.Ports, port.Number) {
			return exclusive.Device{}, draplugin.Refuse("NotExclusive",
				"network: Exclusive moves the whole of %s, and %s is without its port %d: put all ports into one pool", p.HCA.Name, d.Device,
				port.Number)
		}
	}
	for _, port := range p.HCA.Ports {
		for _, net := range port.Nets {
			if net.Bond != "" {
				return exclusive.Device{}, draplugin.Refuse("NotExclusive",
					"network: Exclusive moves the interfaces of %s, and %s is in %s: the kernel moves no bond to another network namespace", p.HCA.Name,
					net.Name, net.Bond)
			}
		}
	}
	return exclusive.Device{RDMA: p.HCA.Name, Nets: p.HCA.Nets()}, nil
}

// grant records in the claim's record and in its containers that the devices go to the pod.
func (k *Preparer) grant(claim *draplugin.Claim, devices []exclusive.Device, prepared *draplugin.Prepared) error {
	if err := k.pods.Ready(); err != nil {
		return draplugin.Refuse("NotExclusive", "network: Exclusive: %v", err)
	}
	pods := slices.DeleteFunc(slices.Clone(claim.Status.ReservedFor), func(c resourceapi.ResourceClaimConsumerReference) bool {
		return c.APIGroup != "" || c.Resource != "pods"
	})
	if len(pods) != 1 {
		return draplugin.Refuse("NotExclusive",
			"network: Exclusive gives the devices to one pod, and %d pods share the claim: give each pod a claim of its own (a "+
				"ResourceClaimTemplate does)", len(pods))
	}
	name := claim.Namespace + "/" + claim.Name
	prepared.Data = data{Exclusive: &exclusive.Grant{Claim: name, PodUID: string(pods[0].UID), Devices: devices}}
	for i := range prepared.Edits {
		prepared.Edits[i].Env = append(prepared.Edits[i].Env, exclusive.Environment(string(claim.UID), name))
	}
	return nil
}
