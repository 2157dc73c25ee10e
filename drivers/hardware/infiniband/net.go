package infiniband

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// attachNets gives each port of d its network devices: those of d's PCI function, whose directory net is dir.
func (f FS) attachNets(dir *sysfile.Dir, d *Device) error {
	names, err := dir.Names(".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // EFA, a driver without ipoib, or a device whose network device is in a pod's namespace.
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		entry := dir.Below(name)
		if len(names) > len(d.Ports) {
			if other, err := representor(entry); err != nil {
				return err
			} else if other {
				continue
			}
		}
		if err := d.attach(entry, name); err != nil {
			return err
		}
	}
	return f.attachBonds(d)
}

// attach gives the network device at dir to the port of d that it is on, if there is one.
func (d *Device) attach(dir *sysfile.Dir, name string) error {
	// The kernel takes almost any bytes for an interface's name; metrics and the API take text, and end the program over others.
	if !utf8.ValidString(name) {
		return dir.Invalid(strconv.QuoteToASCII(name), name, "an interface with a name of UTF-8 text")
	}
	net, err := readNet(dir, name)
	if err != nil {
		return err
	}
	port, err := d.portOf(dir)
	if err != nil || port == nil {
		return err
	}
	// A function may have interfaces of another kind than its port, such as one that was made by hand.
	if (port.LinkLayer == InfiniBand) != (net.Type == TypeInfiniBand) && port.LinkLayer != Unspecified {
		return nil
	}
	port.Nets = append(port.Nets, net)
	return nil
}

// attachBonds adds the bonds of each port's network devices. Two ports of a card that are bonded have one RDMA device (RoCE LAG), whose
// addresses are the bond's.
func (f FS) attachBonds(d *Device) error {
	for i := range d.Ports {
		port := &d.Ports[i]
		var bonds []string
		for _, net := range port.Nets {
			if net.Bond != "" && !slices.Contains(bonds, net.Bond) {
				bonds = append(bonds, net.Bond)
			}
		}
		for _, name := range bonds {
			if err := f.attachNamed(port, name); err != nil {
				return err
			}
		}
		slices.SortFunc(port.Nets, func(a, b Net) int { return compareNames(a.Name, b.Name) })
	}
	return nil
}

// attachNamed gives a port the network device of that name, if this network namespace has it.
func (f FS) attachNamed(port *Port, name string) error {
	dir, err := sysfile.Open(filepath.Join(f.root, "class/net", name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	net, err := readNet(dir, name)
	if err == nil {
		port.Nets = append(port.Nets, net)
	}
	return err
}

// attachSoftwareNet gives a software device the network device that it was made on. It stands beside every virtual interface of the
// machine, so its place in sysfs says nothing. rxe names the one in its attribute parent; every driver's first GID is that of the port's
// own network device.
func (f FS) attachSoftwareNet(dir *sysfile.Dir, d *Device) error {
	name, err := sysfile.Optional(dir.Text("parent"))
	if err != nil {
		return err
	}
	for i := range d.Ports {
		of := name
		if of == "" {
			// A GID table without entries, or a device that is no RoCE one, has no such attribute to read.
			if of, err = sysfile.Optional(dir.Text(fmt.Sprintf("ports/%d/gid_attrs/ndevs/0", d.Ports[i].Number))); err != nil {
				return err
			}
		}
		if of == "" || of != filepath.Base(of) {
			continue
		}
		if err := f.attachNamed(&d.Ports[i], of); err != nil {
			return err
		}
	}
	return nil
}

// representor reports whether the network device at dir stands for a function that is plugged into the card's own switch (switchdev mode).
// The kernel hangs those, too, below the physical function. Such a one is named pf0vf3, where a port of the card is p0.
func representor(dir *sysfile.Dir) (bool, error) {
	name, err := sysfile.Optional(dir.Text("phys_port_name"))
	return strings.Contains(name, "pf"), err
}

func readNet(dir *sysfile.Dir, name string) (Net, error) {
	n := Net{Name: name}
	var err error
	if n.Type, err = dir.Int("type"); err != nil {
		return Net{}, err
	}
	if n.MTU, err = sysfile.Optional(dir.Int("mtu")); err != nil {
		return Net{}, err
	}
	// The master may be a bridge, too, which says nothing of this link.
	if master, err := dir.Link("master"); err == nil && utf8.ValidString(master) {
		if _, err := dir.Text("master/bonding/mode"); err == nil {
			n.Bond = master
		}
	}
	return n, nil
}

// portOf finds the port that the network device at dir, of d's function, is on; nil: none.
func (d *Device) portOf(dir *sysfile.Dir) (*Port, error) {
	if len(d.Ports) == 1 {
		return &d.Ports[0], nil
	}
	address, err := sysfile.Optional(dir.Text("address"))
	if err != nil {
		return nil, err
	}
	tail := guidTail(address)
	for i := range d.Ports {
		// An IPoIB device carries its port's GUID, which needs no convention.
		if tail != "" && d.Ports[i].GUID == tail {
			return &d.Ports[i], nil
		}
	}
	// The port of its device that it is on, counted from 0.
	number, err := sysfile.Optional(dir.Int("dev_port"))
	if err != nil {
		return nil, err
	}
	for i := range d.Ports {
		if d.Ports[i].Number == number+1 {
			return &d.Ports[i], nil
		}
	}
	return nil, nil
}

// guidTail returns the port GUID in the last 8 of the 20 bytes of an IPoIB address (an Ethernet one has 6), as xxxx:xxxx:xxxx:xxxx, or
// nothing.
func guidTail(address string) string {
	parts := strings.Split(address, ":")
	if len(parts) != 20 {
		return ""
	}
	o := parts[12:]
	return o[0] + o[1] + ":" + o[2] + o[3] + ":" + o[4] + o[5] + ":" + o[6] + o[7]
}

// CarrierLost reports whether the network device name is up and has no carrier. Where that cannot be told, because the device is
// administratively down or not here, it returns an error. A link of a bond counts as the bond: two ports of a card that are bonded have one
// RDMA device (RoCE LAG), which works while either of them does.
func (f FS) CarrierLost(name string) (bool, error) {
	dir, err := sysfile.Open(filepath.Join(f.root, "class/net", name))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	attribute := "carrier"
	if _, err := dir.Text("master/bonding/mode"); err == nil { // The master may be a bridge, too, which says nothing of this link.
		attribute = "master/carrier"
	}
	carrier, err := dir.Int(attribute)
	return carrier == 0 && err == nil, err
}
