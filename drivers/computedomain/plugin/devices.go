package plugin

import (
	"os"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/nvml"
)

// deviceNodes gives numbers rather than host paths, so that no device file need exist on the host.
func deviceNodes(devices []imex.Device) []*specs.DeviceNode {
	mode := os.FileMode(0o666)
	nodes := make([]*specs.DeviceNode, 0, len(devices))
	for _, device := range devices {
		nodes = append(nodes, &specs.DeviceNode{Path: device.Path, Type: "c", Major: device.Major, Minor: device.Minor, FileMode: &mode,
			Permissions: "rw"})
	}
	return nodes
}

// devicesOf are the devices of a node with this fabric. A shared channel represents all channels of the node: any number of claims
// may have it, and each gets the number that its domain has. unready is the value of a taint where the daemon that serves the channel is
// not ready. holders are the domains that have all of the channels; none: some are free.
func devicesOf(f fabric, shared bool, unready string, holders []types.UID) []resourceapi.Device {
	channel := device(computedomain.ChannelDevice, computedomain.TypeChannel, f)
	if shared {
		count := int64(f.channelCount())
		channel.AllowMultipleAllocations = &shared
		channel.Attributes[computedomain.AttributeChannels] = resourceapi.DeviceAttribute{IntValue: &count}
		if len(holders) > 0 {
			channel.Attributes[computedomain.AttributeAllHeld] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
		}
		for _, domain := range holders {
			channel.Attributes[computedomain.HeldBy(domain)] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
		}
	}
	value := f.taint()
	if value == "" && shared && f.state == nvml.Joined {
		value = unready
	}
	if value != "" {
		channel.Taints = []resourceapi.DeviceTaint{{Key: computedomain.TaintFabric, Value: value,
			Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return []resourceapi.Device{channel, device(computedomain.DaemonDevice, computedomain.TypeDaemon, f)}
}

// Healthy returns the devices that the plugin publishes on a node whose fabric is well, with computeDomains.imex at its default. clique is
// empty for a node without one.
func Healthy(clique string) []resourceapi.Device {
	return devicesOf(fabric{known: true, state: nvml.Joined, clique: clique}, false, "", nil)
}

// offersNone reports whether the node does not publish a device. A node in trouble may belong to a fabric: the taint of its channel
// names the trouble. A node with claims publishes its devices until they are gone: the daemon of a claim's domain needs one.
func (k *preparer) offersNone(f fabric) bool {
	return k.fabricOnly && f.state == nvml.NoFabric && f.problem == "" && k.holdings.empty()
}

func device(name, kind string, f fabric) resourceapi.Device {
	id := int64(0)
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		computedomain.AttributeType: {StringValue: &kind},
		computedomain.AttributeID:   {IntValue: &id},
	}
	if f.clique != "" {
		clique := strings.Clone(f.clique)
		attributes[computedomain.AttributeClique] = resourceapi.DeviceAttribute{StringValue: &clique}
	}
	return resourceapi.Device{Name: name, Attributes: attributes}
}
