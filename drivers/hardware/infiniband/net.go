package infiniband

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// attachNets gives each port of d its network devices: those of d's PCI function (parent/net), by dev_port.
func (f FS) attachNets(dir *sysfile.Dir, parent string, d *Device) error {
	names, err := sysfile.Names(filepath.Join(parent, "net"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // EFA, a driver without ipoib, or a device whose network device is in a pod's namespace.
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		net, err := readNet(dir, filepath.Join(parent, "net", name))
		if err != nil {
			return err
		}
		if port := d.portOf(net); port != nil {
			port.Nets = append(port.Nets, net)
		}
	}
	return nil
}

// portOf finds the port that a network device of d's function is on.
func (d *Device) portOf(n Net) *Port {
	if len(d.Ports) == 1 {
		return &d.Ports[0]
	}
	tail := guidTail(n.Address)
	for i := range d.Ports {
		// An IPoIB device carries its port's GUID, which needs no convention.
		if tail != "" && d.Ports[i].GUID == tail {
			return &d.Ports[i]
		}
	}
	for i := range d.Ports {
		if d.Ports[i].Number == n.DevPort+1 {
			return &d.Ports[i]
		}
	}
	return nil
}

// guidTail returns the port GUID in the last 8 of the 20 octets of an IPoIB address, as xxxx:xxxx:xxxx:xxxx, or nothing.
func guidTail(address string) string {
	octets := strings.Split(address, ":")
	if len(octets) != 20 {
		return ""
	}
	o := octets[12:]
	return o[0] + o[1] + ":" + o[2] + o[3] + ":" + o[4] + o[5] + ":" + o[6] + o[7]
}

// Net reads the network device name. It is not an error that a link is down; it is one that it is not there.
func (f FS) Net(name string) (Net, error) {
	dir, err := sysfile.Open(filepath.Join(f.root, "class/net", name))
	if err != nil {
		return Net{}, fmt.Errorf("network device: %w", err)
	}
	defer dir.Close()
	return readOpenNet(dir, name)
}

func readNet(dir *sysfile.Dir, path string) (Net, error) {
	if err := dir.Reopen(path); err != nil {
		return Net{}, err
	}
	return readOpenNet(dir, filepath.Base(path))
}

func readOpenNet(dir *sysfile.Dir, name string) (Net, error) {
	n := Net{Name: name}
	var err error
	if n.Type, err = dir.Int("type"); err != nil {
		return Net{}, err
	}
	var carrier int
	for _, field := range []struct {
		name  string
		value *int
	}{
		{"ifindex", &n.Index},
		{"mtu", &n.MTU},
		{"carrier", &carrier},
		{"speed", &n.Speed},
		{"dev_port", &n.DevPort},
	} {
		if *field.value, err = sysfile.Optional(dir.Int(field.name)); err != nil {
			return Net{}, err
		}
	}
	n.Carrier = carrier == 1
	n.Speed = max(n.Speed, 0) // The kernel writes -1 for unknown.
	if n.Address, err = sysfile.Optional(dir.Text("address")); err != nil {
		return Net{}, err
	}
	n.OperState, err = sysfile.Optional(dir.Text("operstate"))
	return n, err
}

// CarrierLost reports whether the network device name is up and has no carrier. Where that cannot be told, because the device is
// administratively down or not here, it returns an error.
func (f FS) CarrierLost(name string) (bool, error) {
	dir, err := sysfile.Open(filepath.Join(f.root, "class/net", name))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	carrier, err := dir.Int("carrier")
	return carrier == 0 && err == nil, err
}
