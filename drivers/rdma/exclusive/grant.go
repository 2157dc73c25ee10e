// Package exclusive gives RDMA devices to one pod's network namespace at a time, and takes them back.
//
// The kernel's RDMA subsystem has two modes (rdma-system(8)): shared, in which every network namespace sees every RDMA device, and
// exclusive, in which a device is in one namespace. In exclusive mode a pod can open a device only once its link has been moved to
// the pod, together with the network interfaces that have its addresses. The container runtime reports through NRI when a pod's
// namespace exists and when it is about to go.
//
// A move is recorded before it happens, in a file for each pod sandbox, so that a plugin that died at any point can take everything
// back. A namespace that ends with hardware in it returns the hardware by itself, but to the machine's first namespace.
package exclusive

import (
	"fmt"
	"strings"
)

// NotOpened describes the problem of a pod with its own network namespace on a node in exclusive mode. The kernel's
// rdma_dev_access_netns lets it open only devices in its network namespace, and units of device plugins and shared claims are not
// moved there.
const NotOpened = "the node's RDMA devices are in exclusive mode: a pod with a network of its own cannot open what it is given here; " +
	"use claims with network: Exclusive, or host networking, or set the mode back with \"rdma system set netns shared\""

// ReasonNotOpened is the reason of the Event on such a pod.
const ReasonNotOpened = "RDMADeviceNotInPodNetwork"

// Device is an RDMA device with all of its network interfaces, by the names that they have on the node.
type Device struct {
	RDMA string   `json:"rdma"`
	Nets []string `json:"nets,omitempty"`
}

// Grant has the devices of one claim for one pod.
type Grant struct {
	// Claim is for people: "default/train-nic".
	Claim string `json:"claim"`
	// PodUID is the one pod that may have the devices.
	PodUID  string   `json:"podUID"`
	Devices []Device `json:"devices"`
}

// variable is set in every container that uses a claim. It distinguishes a container whose pod lacks the devices from one whose pod
// has them.
const variable = "GPUFABRIC_RDMA_EXCLUSIVE_"

// Environment is the variable that marks the containers of a claim: its name holds the claim's UID, its value the claim's name for
// people.
func Environment(claimUID, claim string) string {
	return variable + strings.ReplaceAll(claimUID, "-", "_") + "=" + claim
}

// claimOf parses such a variable.
func claimOf(entry string) (uid, claim string, ok bool) {
	rest, ok := strings.CutPrefix(entry, variable)
	if !ok {
		return "", "", false
	}
	uid, claim, ok = strings.Cut(rest, "=")
	return strings.ReplaceAll(uid, "_", "-"), claim, ok
}

func (d Device) String() string {
	if len(d.Nets) == 0 {
		return d.RDMA
	}
	return fmt.Sprintf("%s with %s", d.RDMA, strings.Join(d.Nets, ", "))
}
