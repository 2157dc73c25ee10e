package health

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/rdma/inventory"
)

// Port names a port and its network interfaces.
type Port struct {
	Device string   // the RDMA device's name: mlx5_0
	Path   string   // its path under the sysfs root
	Number int      // from 1
	Nets   []string // names of the interfaces whose carrier is the port's
	// Missing is why programs cannot use the port although it may carry traffic: a device node is missing. Empty: they can.
	Missing string
}

// Ports are a device's ports. They omit IPoIB interfaces, whose carrier is not the port's: it waits until a subnet manager lets it
// join a group of its partition.
func Ports(device *infiniband.Device) []Port {
	ports := make([]Port, len(device.Ports))
	for i, port := range device.Ports {
		ports[i] = Port{Device: device.Name, Path: device.Path, Number: port.Number}
		for _, net := range port.Nets {
			if net.Type != infiniband.TypeInfiniBand {
				ports[i].Nets = append(ports[i].Nets, net.Name)
			}
		}
		slices.Sort(ports[i].Nets)
	}
	return ports
}

// PortsOf are the ports of an HCA, with the device nodes that they lack.
func PortsOf(h *inventory.HCA, nodes inventory.DeviceNodes) []Port {
	ports := Ports(&h.Device)
	for i := range ports {
		ports[i].Missing = nodes.Missing(h, ports[i].Number)
	}
	return ports
}

// Key identifies a port on a node.
type Key struct {
	Device string
	Port   int
}

// Key returns the port's key.
func (p Port) Key() Key { return Key{p.Device, p.Number} }

// String is the key as NCCL writes it: mlx5_0:1.
func (k Key) String() string { return fmt.Sprintf("%s:%d", k.Device, k.Port) }

// read reads a port and reports why it cannot carry traffic, or nothing.
func read(sysfs infiniband.FS, p Port) string {
	status, err := sysfs.Status(p.Path, p.Number)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the port is gone"
	case err != nil:
		return fmt.Sprintf("the port's status cannot be read: %v", err)
	case status.State != infiniband.PortActive && status.State != infiniband.PortActiveDefer:
		return fmt.Sprintf("the port's state is %v (physical state %v)", status.State, status.PhysState)
	case status.PhysState != infiniband.PhysLinkUp:
		return fmt.Sprintf("the port's physical state is %v", status.PhysState)
	}
	for _, name := range p.Nets {
		// An interface that is administratively down has no readable carrier file, and does not describe the link. One that moved into a
		// pod's network namespace is not here at all.
		if lost, err := sysfs.CarrierLost(name); err == nil && lost {
			return fmt.Sprintf("the interface %s has no carrier", name)
		}
	}
	return p.Missing
}

// Read reads a port once in the sysfs tree at root and reports why it cannot carry traffic; empty: it can. The time of the read
// has no limit.
func Read(root string, p Port) string { return read(infiniband.NewFS(root), p) }
