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

// attachNets gives each port of d its network devices, from d's PCI function. net is their directory.
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

// attach assigns the network device at dir to its port of d, if it has one.
func (d *Device) attach(dir *sysfile.Dir, name string) error {
	// The kernel allows almost any bytes in an interface's name. Metrics and the API need UTF-8, and other bytes would end the
	// program.
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
	// A function may have interfaces of another kind than its port, for example manually created ones.
	if (port.LinkLayer == InfiniBand) != (net.Type == TypeInfiniBand) && port.LinkLayer != Unspecified {
		return nil
	}
	port.Nets = append(port.Nets, net)
	return nil
}

// attachBonds adds the bonds of each port's network devices. Two bonded ports of a card share one RDMA device (RoCE LAG), whose
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

// attachSoftwareNet gives a software device the network device that it was made on. Its place in sysfs says nothing: it is beside
// every virtual interface of the machine. rxe names its network device in its attribute parent. With every driver the first GID is
// that of the port's own network device.
func (f FS) attachSoftwareNet(dir *sysfile.Dir, d *Device) error {
	name, err := sysfile.Optional(dir.Text("parent"))
	if err != nil {
		return err
	}
	for i := range d.Ports {
		of := name
		if of == "" {
			// A GID table without entries, or a device that is not RoCE, has no such attribute.
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

// representor reports whether the network device at dir represents a function behind the card's own switch (switchdev mode). The
// kernel puts those below the physical function, too. A representor is named pf0vf3; a port of the card is named p0.
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
	// The master may also be a bridge, which says nothing about this link.
	if master, err := dir.Link("master"); err == nil && utf8.ValidString(master) {
		if _, err := dir.Text("master/bonding/mode"); err == nil {
			n.Bond = master
		}
	}
	return n, nil
}

// portOf finds the port of the network device at dir, of d's function; nil: none.
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
		// An IPoIB device has the GUID of its port in its address, so no naming convention is needed.
		if tail != "" && d.Ports[i].GUID == tail {
			return &d.Ports[i], nil
		}
	}
	// The number of its port, counted from 0.
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

// guidTail returns the port GUID in the last 8 of the 20 bytes of an IPoIB address, as xxxx:xxxx:xxxx:xxxx. It returns nothing for
// an Ethernet address, which has 6 bytes.
func guidTail(address string) string {
	parts := strings.Split(address, ":")
	if len(parts) != 20 {
		return ""
	}
	o := parts[12:]
	return o[0] + o[1] + ":" + o[2] + o[3] + ":" + o[4] + o[5] + ":" + o[6] + o[7]
}

// CarrierLost reports whether the network device name is up and has no carrier. It returns an error where that is unknown, because
// the device is administratively down or absent. For a link of a bond it reports the bond: two bonded ports of a card have one RDMA
// device (RoCE LAG), which works while either port does.
func (f FS) CarrierLost(name string) (bool, error) {
	dir, err := sysfile.Open(filepath.Join(f.root, "class/net", name))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	attribute := "carrier"
	if _, err := dir.Text("master/bonding/mode"); err == nil { // The master may also be a bridge, which says nothing about this link.
		attribute = "master/carrier"
	}
	carrier, err := dir.Int(attribute)
	return carrier == 0 && err == nil, err
}
