// Package dra makes devices of Dynamic Resource Allocation from a node's RDMA ports: the published devices, and the edits of a
// container.
package dra

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// Driver is the driver's name, and the default domain of the attributes below.
const Driver = "rdma.gpufabric.io"

// Attributes. The GPU driver publishes those of other domains too, so that a claim's constraints can match a GPU with a port.
const (
	AttrInterface  resourceapi.QualifiedName = "ifName"     // network interface; the first by name where there are several
	AttrRDMADevice resourceapi.QualifiedName = "rdmaDevice" // mlx5_0
	AttrPort       resourceapi.QualifiedName = "port"       // from 1
	AttrLinkLayer  resourceapi.QualifiedName = "linkLayer"  // InfiniBand, Ethernet, Unknown
	AttrRate       resourceapi.QualifiedName = "rateGbps"   // whole Gb/s, as negotiated when published
	AttrPortGUID   resourceapi.QualifiedName = "portGUID"   // InfiniBand only
	AttrNodeGUID   resourceapi.QualifiedName = "nodeGUID"
	AttrPKeys      resourceapi.QualifiedName = "pkeys" // 0x7fff,0x0012: without the membership bit, as many as 64 characters can hold
	AttrLID        resourceapi.QualifiedName = "lid"   // InfiniBand only
	AttrFirmware   resourceapi.QualifiedName = "fwVersion"
	AttrPSID       resourceapi.QualifiedName = "psid"
	AttrRail       resourceapi.QualifiedName = "rail"      // inventory.HCA.Rail; absent where there is none
	AttrSRIOV      resourceapi.QualifiedName = "sriov"     // none, physical, virtual
	AttrGPUDirect  resourceapi.QualifiedName = "gpudirect" // none, peermem, dmabuf
	AttrPool       resourceapi.QualifiedName = "pool"      // the resource of the pool that has the device; absent where none has
	AttrVendor     resourceapi.QualifiedName = "vendor"    // PCI vendor ID: 15b3
	AttrDeviceID   resourceapi.QualifiedName = "deviceID"  // PCI device ID: 1021
	AttrDriver     resourceapi.QualifiedName = "driver"    // mlx5_core
	AttrMTU        resourceapi.QualifiedName = "mtu"       // of the interface, in bytes

	AttrNUMANode   resourceapi.QualifiedName = "resource.kubernetes.io/numaNode"
	AttrPCIeRoot   resourceapi.QualifiedName = "resource.kubernetes.io/pcieRoot"
	AttrPCIBusID   resourceapi.QualifiedName = "resource.kubernetes.io/pciBusID"
	AttrPCIeSwitch resourceapi.QualifiedName = "gpufabric.io/pcieSwitch"
)

// Capacities.
const (
	CapSlots     resourceapi.QualifiedName = "slots"     // claims that can share the device; a request without it takes 1
	CapBandwidth resourceapi.QualifiedName = "bandwidth" // Gb/s; a request without it takes 0
)

// Taints.
const (
	// TaintPortDown is on a device whose port cannot carry traffic; its value is the reason in short.
	TaintPortDown = Driver + "/port-down"
	// TaintDevicePlugin is on a device that is offered through the kubelet's device plugin API; its value is the resource's name.
	TaintDevicePlugin = Driver + "/device-plugin"
)

// devicesPerSlice is the maximum number of devices in a ResourceSlice if they have taints or consumable capacities.
const devicesPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// Options define the devices to publish for a node.
type Options struct {
	// Slots is how many claims can share a device that is in no pool.
	Slots int
	// DevicePlugin: the pools are offered through the device plugin API, so their devices are tainted here.
	DevicePlugin bool
}

// Port is a published device, and its HCA.
type Port struct {
	Name  string // of the device
	HCA   *inventory.HCA
	Ports []int // the ports of the HCA: one, or all that an exclusive pool has of it
	Pool  *pool.Pool
	slots int // 0: the device is only allocated whole
}

// Ports lists the devices of a node: one for each port, or one for all ports of an HCA that an exclusive pool allocates whole.
func Ports(devices *inventory.Inventory, pools []pool.Pool, o Options) []Port {
	taken := make(map[string]*pool.Pool) // by HCA
	members := make(map[string]pool.Member)
	slots := make(map[string]int)
	for i := range pools {
		p := &pools[i]
		var keys []string
		for _, m := range p.Members {
			if key := m.HCA.Key(); taken[key] == nil {
				taken[key], members[key] = p, m
				keys = append(keys, key)
			}
		}
		if p.DeviceNodes == v1alpha1.RDMANodesAll {
			// Each of rdmaHcaMax pods may have every HCA.
			for _, key := range keys {
				slots[key] = int(p.RDMAHCAMax)
			}
			continue
		}
		for _, key := range (pool.Layout{}).Divide(int(p.RDMAHCAMax), keys) {
			slots[key]++
		}
	}
	var ports []Port
	names := make(deviceNames)
	for i := range devices.HCAs {
		h := &devices.HCAs[i]
		key := h.Key()
		p := taken[key]
		if p != nil && p.Exclusive() {
			ports = append(ports, Port{Name: names.of(h, members[key].Ports[0]), HCA: h, Ports: members[key].Ports, Pool: p})
			continue
		}
		for _, port := range h.Ports {
			device := Port{Name: names.of(h, port.Number), HCA: h, Ports: []int{port.Number}, slots: o.Slots}
			if p != nil && slices.Contains(members[key].Ports, port.Number) {
				// The pool's units of the HCA are for all of its ports in the pool. A device needs at least one slot.
				device.Pool, device.slots = p, max(1, slots[key]/len(members[key].Ports))
			}
			ports = append(ports, device)
		}
	}
	return ports
}

// deviceNames are the names of a node's devices.
type deviceNames map[string]bool

// of makes a name from the PCI address, since names of RDMA devices may change between boots: pci-0000-3b-00-0-1 for port 1. The kernel
// accepts almost any name of a software device, and the API server refuses the whole slice for a device whose name is not a DNS label, or
// is that of another. Such a device is named by a hash.
func (n deviceNames) of(h *inventory.HCA, port int) string {
	name := strings.NewReplacer(":", "-", ".", "-", "_", "-", "/", "-").Replace(strings.ToLower(h.Key()))
	if h.PCI != "" {
		name = "pci-" + name
	}
	name = fmt.Sprintf("%s-%d", name, port)
	if n[name] || len(validation.IsDNS1123Label(name)) > 0 {
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(h.Key()))
		name = fmt.Sprintf("rdma-%016x-%d", hash.Sum64(), port)
	}
	n[name] = true
	return name
}

// Slices returns the content of the node's ResourceSlices.
func Slices(ports []Port, devices *inventory.Inventory, state func(health.Key) health.State, o Options) [][]resourceapi.Device {
	published := make([]resourceapi.Device, len(ports))
	for i := range ports {
		published[i] = ports[i].device(devices, state, o)
	}
	return slices.Collect(slices.Chunk(published, devicesPerSlice))
}

// device describes the port.
func (p *Port) device(devices *inventory.Inventory, state func(health.Key) health.State, o Options) resourceapi.Device {
	d := resourceapi.Device{Name: p.Name, Attributes: p.attributes(devices.GPUDirect), Capacity: capacities(p.slots, int64(p.port().Rate)),
		Taints: p.taints(state, o)}
	if p.slots > 0 {
		d.AllowMultipleAllocations = ptr.To(true)
	}
	return d
}

// attributes are those that are published.
func (p *Port) attributes(direct inventory.GPUDirect) attributes {
	first := p.port()
	a := attributes{}
	a.text(AttrRDMADevice, p.HCA.Name)
	a.number(AttrPort, first.Number)
	a.text(AttrLinkLayer, string(first.LinkLayer))
	a.number(AttrRate, int(first.Rate))
	a.text(AttrNodeGUID, p.HCA.NodeGUID)
	if first.LinkLayer == infiniband.InfiniBand {
		a.text(AttrPortGUID, first.GUID)
		a.number(AttrLID, int(first.LID))
		a.text(AttrPKeys, pkeys(p.HCA.PKeys[first.Number]))
	}
	a.text(AttrFirmware, p.HCA.Firmware)
	a.text(AttrPSID, p.HCA.BoardID)
	if p.HCA.Rail >= 0 {
		a.number(AttrRail, p.HCA.Rail)
	}
	a.text(AttrSRIOV, sriov(p.HCA.Function))
	a.text(AttrGPUDirect, string(direct))
	if p.Pool != nil {
		a.text(AttrPool, p.Pool.Resource())
	}
	if len(first.Nets) > 0 {
		a.text(AttrInterface, first.Nets[0].Name)
		a.number(AttrMTU, first.Nets[0].MTU)
	}
	if f := p.HCA.Function; f != nil {
		a.text(AttrVendor, fmt.Sprintf("%04x", f.Vendor))
		a.text(AttrDeviceID, fmt.Sprintf("%04x", f.Device))
		a.text(AttrDriver, f.Driver)
		a.text(AttrPCIBusID, string(f.Address))
		near := p.HCA.Nearest()
		a.text(AttrPCIeRoot, near.Root)
		a.text(AttrPCIeSwitch, string(near.Switch))
		if f.NUMANode != pci.NUMAUnknown {
			a.number(AttrNUMANode, f.NUMANode)
		}
	}
	return a
}

// port is the first of the device's ports.
func (p *Port) port() infiniband.Port {
	for _, port := range p.HCA.Ports {
		if port.Number == p.Ports[0] {
			return port
		}
	}
	return infiniband.Port{Number: p.Ports[0]}
}

// taints report why the scheduler must not give the device to a new pod. Running pods keep it.
func (p *Port) taints(state func(health.Key) health.State, o Options) []resourceapi.DeviceTaint {
	var taints []resourceapi.DeviceTaint
	down := ""
	for _, port := range p.Ports {
		s := state(health.Key{Device: p.HCA.Name, Port: port})
		if s.Phase.Healthy() {
			down = ""
			break
		}
		down = string(s.Phase)
	}
	if down != "" {
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintPortDown, Value: down, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if p.Pool != nil && o.DevicePlugin {
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintDevicePlugin, Value: p.Pool.ResourceName,
			Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return taints
}

// capacities are slots and bandwidth. Shares of the device consume them. With no slots they only describe a device that is
// allocated whole.
func capacities(slots int, rate int64) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	quantity := func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
	if slots == 0 {
		return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{CapSlots: {Value: quantity(1)}, CapBandwidth: {Value: quantity(rate)}}
	}
	// Without a policy a request without an amount would consume all of it.
	policy := func(least, most int64) *resourceapi.CapacityRequestPolicy {
		low, high, fallback, step := quantity(least), quantity(most), quantity(least), quantity(1)
		amounts := &resourceapi.CapacityRequestPolicyRange{Min: &low, Max: &high}
		if least < most {
			// Whole numbers only. If a step led beyond the capacity (one slot, or a port without a rate), the API server would refuse the
			// slice with all its devices.
			amounts.Step = &step
		}
		return &resourceapi.CapacityRequestPolicy{Default: &fallback, ValidRange: amounts}
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		CapSlots:     {Value: quantity(int64(slots)), RequestPolicy: policy(1, int64(slots))},
		CapBandwidth: {Value: quantity(rate), RequestPolicy: policy(0, rate)},
	}
}

func sriov(f *pci.Function) string {
	switch {
	case f == nil || !f.Virtual() && f.TotalVFs == 0:
		return "none"
	case f.Virtual():
		return "virtual"
	}
	return "physical"
}

// pkeys lists partition keys without the membership bit, as many as an attribute can hold.
func pkeys(keys []uint16) string {
	var texts []string
	for _, key := range keys {
		text := fmt.Sprintf("0x%04x", key&0x7fff)
		if !slices.Contains(texts, text) && (len(texts)+1)*len("0x0000,") <= resourceapi.DeviceAttributeMaxValueLength {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, ",")
}

// attributes are the attributes of a device. It leaves out empty values, and those that the API would refuse.
type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func (a attributes) text(name resourceapi.QualifiedName, value string) {
	if value != "" && len(value) <= resourceapi.DeviceAttributeMaxValueLength {
		a[name] = resourceapi.DeviceAttribute{StringValue: &value}
	}
}

func (a attributes) number(name resourceapi.QualifiedName, value int) {
	v := int64(value)
	a[name] = resourceapi.DeviceAttribute{IntValue: &v}
}
