// Package pci reads the PCI functions of a node from a sysfs tree: their kind, driver and place (NUMA node, PCIe root and switch),
// and which virtual functions belong to which physical one.
package pci

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// NUMAUnknown is the NUMA node of a function for which the firmware names none.
const NUMAUnknown = -1

// Class is a PCI class code: base class, subclass and programming interface, 24 bits.
type Class uint32

// Network reports whether the class is a network controller (base class 02: Ethernet 0200, InfiniBand 0207 and others).
func (c Class) Network() bool { return c>>16 == 0x02 }

// Bridge reports whether the class is a PCI-to-PCI bridge: a root port or a switch port.
func (c Class) Bridge() bool { return c>>8 == 0x0604 }

// Function is one PCI function. Paths in the comments are relative to /sys/bus/pci/devices/<Address>/.
type Function struct {
	Address Address // the entry's name
	Path    string  // the entry's target under the sysfs root: devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0

	Vendor    uint16 // modalias, else vendor
	Device    uint16 // modalias, else device
	Class     Class  // modalias, else class
	Driver    string // driver (a link); empty: no driver is bound
	NUMANode  int    // numa_node; NUMAUnknown where the firmware names none, unless the machine has only one
	ACPIIndex int    // acpi_index, the firmware's number for an onboard device, from 1; 0: none

	Root    string    // pcieRoot as Kubernetes names it: pci<domain>:<bus> of the root complex, the first element of Path
	Bridges []Address // the bridges from the root complex down to the function, from Path; a root port comes first
	// Switch is the upstream port of the PCIe switch that the function shares with other cards. Without a switch it is its root port,
	// or the function itself where that is directly on the root complex. Two cards with the same Switch are never further apart than
	// below one switch.
	Switch Address

	PhysicalFunction Address // physfn (a link); empty: this is no virtual function
	VirtualIndex     int     // N of the physical function's virtfnN link to this function; -1: this is no virtual function
	TotalVFs         int     // sriov_totalvfs: how many the device could have
	NumVFs           int     // sriov_numvfs: how many it has now
}

// Virtual reports whether f is an SR-IOV virtual function.
func (f *Function) Virtual() bool { return f.PhysicalFunction != "" }

// position is a function's place in the device tree, taken from its path without reading any attribute.
type position struct {
	address Address
	path    string
	root    string
	bridges []Address
}

// parsePosition parses the target of /sys/bus/pci/devices/<name>: ../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
//
// A path may have several root complexes. A Volume Management Device (Intel VMD, drivers/pci/controller/vmd.c of Linux) is a function
// with a bus of its own below it: pci0000:17/0000:17:05.5/pci10000:00/10000:00:02.0/10000:01:00.0. The root is the first one, as in
// k8s.io/dynamic-resource-allocation/deviceattribute. Bridges are those below the last one.
func parsePosition(name, target string) (position, error) {
	address, err := ParseAddress(name)
	if err != nil {
		return position{}, err
	}
	path := target
	for strings.HasPrefix(path, "../") {
		path = path[len("../"):]
	}
	p := position{address: address, path: path}
	elements := strings.Split(path, "/")
	if elements[len(elements)-1] != name {
		return position{}, fmt.Errorf("its link leads to %q, which ends in another name", target)
	}
	for _, element := range elements[:len(elements)-1] {
		if isRoot(element) {
			if p.root == "" {
				p.root = element
			}
			p.bridges = nil
			continue
		}
		if p.root == "" {
			continue // A platform device: the host bridge of an Arm server, of a virtual machine or of Xen (pci-0).
		}
		bridge, err := ParseAddress(element)
		if err != nil {
			return position{}, fmt.Errorf("its link leads to %q, where %q is not a PCI address", target, element)
		}
		p.bridges = append(p.bridges, bridge)
	}
	if p.root == "" {
		return position{}, fmt.Errorf("its link leads to %q, without an element that names a root complex (pciDDDD:BB)", target)
	}
	return p, nil
}

// isRoot reports whether a path's element names a root complex: pci<domain>:<bus>.
func isRoot(element string) bool {
	place, found := strings.CutPrefix(element, "pci")
	domain, bus, both := strings.Cut(place, ":")
	return found && both && 4 <= len(domain) && len(domain) <= 8 && len(bus) == 2 && isHex(domain, 8*4) && isHex(bus, 8)
}

// read fills in the attributes of the function at p, except its identity.
func read(dir *sysfile.Dir, p position, is Identity) (Function, error) {
	f := Function{
		Address: p.address, Path: p.path, Root: p.root, Bridges: p.bridges,
		Vendor: is.Vendor, Device: is.Device, Class: is.Class, VirtualIndex: -1,
	}
	var err error
	if f.NUMANode, err = numaNode(dir); err != nil {
		return Function{}, err
	}
	if f.ACPIIndex, err = sysfile.Optional(dir.Int("acpi_index")); err != nil {
		return Function{}, err
	}
	if f.Driver, err = sysfile.Optional(dir.Link("driver")); err != nil {
		return Function{}, err
	}
	physical, err := sysfile.Optional(dir.Link("physfn"))
	if err != nil {
		return Function{}, err
	}
	f.PhysicalFunction = Address(physical)
	if f.Virtual() {
		return f, nil
	}
	if f.TotalVFs, err = virtualCount(dir, "sriov_totalvfs"); err != nil || f.TotalVFs == 0 {
		return f, err
	}
	f.NumVFs, err = virtualCount(dir, "sriov_numvfs")
	return f, err
}

// virtualCount reads a number of virtual functions, which has 16 bits in the SR-IOV capability. It is 0 where there is none.
func virtualCount(dir *sysfile.Dir, name string) (int, error) {
	n, err := sysfile.Optional(dir.Int(name))
	if err == nil && (n < 0 || n > math.MaxUint16) {
		return 0, dir.Invalid(name, strconv.Itoa(n), "a number of virtual functions, at most 65535")
	}
	return n, err
}

func numaNode(dir *sysfile.Dir) (int, error) {
	text, err := sysfile.Optional(dir.Text("numa_node"))
	if err != nil || text == "" {
		return NUMAUnknown, err
	}
	node, err := dir.ParseInt("numa_node", text)
	if err != nil {
		return 0, err
	}
	return max(node, NUMAUnknown), nil
}
