// Package infiniband reads the RDMA devices of a node from a sysfs tree: HCAs, their ports, their character devices and their
// network devices.
//
// It covers every RDMA device that the kernel's ib_core supports (InfiniBand, RoCE, iWARP, EFA), not InfiniBand alone. The name is the
// one that sysfs uses.
package infiniband

import "gpufabric.io/drivers/hardware/pci"

// Device is an RDMA device. Paths in the comments are relative to /sys/class/infiniband/<Name>/.
type Device struct {
	Name string      // the entry's name: mlx5_0
	Path string      // the entry's target under the sysfs root: devices/pci0000:3a/.../0000:3b:00.0/infiniband/mlx5_0
	PCI  pci.Address // its PCI function, from Path; empty: a software device (rxe, siw)
	// Auxiliary is the device between the PCI function and this one, from Path: mlx5_core.sf.2, a scalable function. Empty: there is none.
	Auxiliary string

	NodeGUID string // node_guid: xxxx:xxxx:xxxx:xxxx
	Firmware string // fw_ver
	BoardID  string // board_id: the PSID, which names the card model and vendor; EFA and others have none

	Ports []Port // ports/N, by number; in switchdev mode the uplink's alone
	// Switchdev: the device is an e-switch in switchdev mode, which has a port for each vport.
	Switchdev bool
	// RawOnly: it is in switchdev mode, and its uplink has no GIDs. It carries raw packets, and no RoCE.
	RawOnly bool

	Verbs CharDevice // uverbsN of class infiniband_verbs whose ibdev is this device; programs cannot open the device without it
}

// Port is one port of an RDMA device. Paths are relative to /sys/class/infiniband/<device>/ports/<Number>/.
type Port struct {
	Number    int       // the directory's name; ports count from 1
	State     PortState // state
	PhysState PhysState // phys_state
	LinkLayer LinkLayer // link_layer
	Rate      float64   // rate, in Gb/s, as negotiated now; 0 where the driver gives none
	LID       uint32    // lid; 0 on Ethernet, which has none
	GUID      string    // the second half of gids/0; empty where there is none, and on Ethernet, whose GIDs are made from network addresses

	UMAD CharDevice // umadN of class infiniband_mad for this device and port; devices without management datagrams (EFA, iWARP) have none
	ISSM CharDevice // issmN of class infiniband_mad; only InfiniBand ports have one

	Nets []Net // the network devices on this port, by name; a bond that they are in is one of them
}

// CharDevice is a character device of an RDMA device. The zero value means that there is none.
type CharDevice struct {
	Name         string // the entry's name, which is also its name under /dev/infiniband: uverbs0
	Major, Minor uint32 // dev, as in 231:192
}

// Net is a network device. Paths are relative to /sys/class/net/<Name>/.
type Net struct {
	Name string // the entry's name
	Type int    // type: TypeEthernet or TypeInfiniBand (ARPHRD numbers)
	MTU  int    // mtu, in bytes
	Bond string // master, where that is a bond: its name
}

// Hardware types of network devices.
const (
	TypeEthernet   = 1
	TypeInfiniBand = 32
)

// LinkLayer is the layer below the transport of a port.
type LinkLayer string

// The link layers that the kernel names.
const (
	InfiniBand  LinkLayer = "InfiniBand"
	Ethernet    LinkLayer = "Ethernet"
	Unspecified LinkLayer = "Unknown" // for example EFA: IB_LINK_LAYER_UNSPECIFIED, as link_layer_show of the kernel's ib_core writes it
)

// PortState is a port's logical state, by its number in the InfiniBand architecture.
type PortState uint8

// Port states.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// String returns the state as the kernel writes it.
func (s PortState) String() string {
	return name(uint8(s), "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
}

// PhysState is the state of a port's physical link, by its number in the InfiniBand architecture.
type PhysState uint8

// Physical states.
const (
	PhysSleep PhysState = iota + 1
	PhysPolling
	PhysDisabled
	PhysTraining
	PhysLinkUp
	PhysErrorRecovery
	PhysTest
)

// String returns the state as the kernel writes it.
func (s PhysState) String() string {
	return name(uint8(s), "<unknown>", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test")
}

func name(number uint8, names ...string) string {
	if int(number) < len(names) {
		return names[number]
	}
	return "<unknown>"
}
