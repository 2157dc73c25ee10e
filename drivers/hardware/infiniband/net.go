package infiniband

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gpufabric.io/drivers/hardware/internal/sysfile"
	"gpufabric.io/drivers/hardware/pci"
)

// attachNets gives each port of d its network devices: nets, in the directory net of d's PCI function, and those that the table of
// GIDs names. dir is d's directory.
func (f FS) attachNets(dir, net *sysfile.Dir, nets []string, d *Device) error {
	for _, name := range nets {
		if err := d.attach(net.Below(name), name); err != nil {
			return err
		}
	}
	if err := f.attachOwners(dir, d); err != nil {
		return err
	}
	return f.attachBonds(d)
}

// attachOwners gives each Ethernet port without a network device the owner of its first GID, if that belongs to the same card. The
// second port of a dual-port RoCE device (mlx5's multi-port mode) has its network device on the card's next function.
func (f FS) attachOwners(dir *sysfile.Dir, d *Device) error {
	for i := range d.Ports {
		port := &d.Ports[i]
		if len(port.Nets) > 0 || port.LinkLayer != Ethernet || d.RawOnly {
			continue
		}
		owner, err := sysfile.Optional(dir.Text(fmt.Sprintf("ports/%d/gid_attrs/ndevs/0", port.Number)))
		if err != nil {
			return err
		}
		// A device whose interface is in a pod's namespace names an interface of that namespace. Another one may have its name here.
		if owner == "" || owner != filepath.Base(owner) || !f.onCard(owner, d) {
			continue
		}
		if err := f.attachNamed(port, owner); err != nil {
			return err
		}
	}
	return nil
}

// onCard reports whether the network device name is that of a function of d's card, or a bond of such devices.
func (f FS) onCard(name string, d *Device) bool {
	if slices.ContainsFunc(f.links(name), func(link string) bool { return f.cardOf(link) == card(d.PCI) }) {
		return true
	}
	return f.cardOf(name) == card(d.PCI)
}

// links lists the network devices of the bond of that name.
func (f FS) links(bond string) []string {
	dir, err := sysfile.Open(filepath.Join(f.root, "class/net", bond, "bonding"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	text, err := dir.Text("slaves")
	if err != nil {
		return nil
	}
	return strings.Fields(text)
}

// cardOf returns the card of the network device name; empty: it has no PCI function.
func (f FS) cardOf(name string) string {
	function, _ := f.functionOf(name)
	return card(function)
}

// functionOf returns the PCI function of the network device name, and its path; empty: it has none.
func (f FS) functionOf(name string) (pci.Address, string) {
	target, err := os.Readlink(filepath.Join(f.root, "class/net", name))
	if err != nil || name != filepath.Base(name) {
		return "", ""
	}
	path := filepath.Join("class/net", target, "../..") // .../0000:3b:00.0/net/ens2f0
	function, err := pci.ParseAddress(filepath.Base(path))
	if err != nil {
		return "", ""
	}
	return function, path
}

// card is the part of a function's address that all functions of a card have in common.
func card(function pci.Address) string {
	device, _, _ := strings.Cut(string(function), ".")
	return device
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
			if err := f.attachLinks(port, name, d); err != nil {
				return err
			}
		}
		slices.SortFunc(port.Nets, func(a, b Net) int { return compareNames(a.Name, b.Name) })
	}
	return nil
}

// attachLinks gives a port the other network devices of its bond: those of functions of the same card that have no RDMA device of
// their own. Bonded functions that kept theirs are no RoCE LAG.
func (f FS) attachLinks(port *Port, bond string, d *Device) error {
	for _, link := range f.links(bond) {
		function, path := f.functionOf(link)
		if function == "" || card(function) != card(d.PCI) || slices.ContainsFunc(port.Nets, func(n Net) bool { return n.Name == link }) {
			continue
		}
		if _, err := os.Stat(filepath.Join(f.root, path, "infiniband")); err == nil {
			continue
		}
		if err := f.attachNamed(port, link); err != nil {
			return err
		}
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

// attachSoftwareNet gives a software device the network device that it was made on. Its place in sysfs does not show it: it is beside
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

func readNet(dir *sysfile.Dir, name string) (Net, error) {
	n := Net{Name: name}
	var err error
	if n.Type, err = dir.Int("type"); err != nil {
		return Net{}, err
	}
	if n.MTU, err = sysfile.Optional(dir.Int("mtu")); err != nil {
		return Net{}, err
	}
	// The master may also be a bridge, which does not describe this link.
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
	if _, err := dir.Text("master/bonding/mode"); err == nil { // The master may also be a bridge, which does not describe this link.
		attribute = "master/carrier"
	}
	carrier, err := dir.Int(attribute)
	return carrier == 0 && err == nil, err
}
