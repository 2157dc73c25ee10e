package infiniband

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"gpufabric.io/drivers/hardware/internal/sysfile"
	"gpufabric.io/drivers/hardware/pci"
)

// FS is a sysfs tree.
type FS struct{ root string }

// NewFS makes an FS of the tree at root, which is /sys on a real node.
func NewFS(root string) FS { return FS{root: root} }

// Devices is the result of one scan.
type Devices struct {
	Devices []Device  // by name
	Skipped []Skipped // devices left out because their entries could not be read or understood
}

// Skipped is a device that was left out of a scan.
type Skipped struct {
	Name   string      // the entry's name in /sys/class/infiniband
	PCI    pci.Address // its PCI function, where its link could be read
	Reason error
}

// Scan reads all RDMA devices. It leaves out a device with an unreadable or garbled attribute, gives the reason, and returns the
// others. A node whose kernel has no RDMA (no ib_core, so no class infiniband) has no devices; that is no error. The error is for a
// tree that cannot be read at all.
func (f FS) Scan(ctx context.Context) (*Devices, error) {
	names, err := sysfile.Names(filepath.Join(f.root, "class/infiniband"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(f.root); err != nil {
			return nil, fmt.Errorf("list RDMA devices: %w (the sysfs tree is set by --sysfs-root)", err)
		}
		return &Devices{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	chars, err := f.charDevices(ctx)
	if err != nil {
		return nil, err
	}
	devices := make([]Device, len(names))
	failures := make([]error, len(names))
	err = sysfile.Each(ctx, len(names), func(dir *sysfile.Dir, i int) {
		devices[i].Name = names[i]
		failures[i] = f.read(dir, &devices[i], chars)
	})
	if err != nil {
		return nil, err
	}
	found := &Devices{}
	for i, failure := range failures {
		if failure != nil && f.gone(names[i]) {
			continue // It was removed during the scan, as a virtual function is.
		}
		if failure != nil {
			found.Skipped = append(found.Skipped, Skipped{Name: names[i], PCI: devices[i].PCI, Reason: failure})
			continue
		}
		found.Devices = append(found.Devices, devices[i])
	}
	slices.SortFunc(found.Devices, func(a, b Device) int { return compareNames(a.Name, b.Name) })
	return found, nil
}

// gone reports whether the RDMA device of that name no longer exists.
func (f FS) gone(name string) bool {
	_, err := os.Lstat(filepath.Join(f.root, "class/infiniband", name))
	return errors.Is(err, fs.ErrNotExist)
}

// read fills in a device of which only the name is known.
func (f FS) read(dir *sysfile.Dir, d *Device, chars *charDevices) error {
	if !utf8.ValidString(d.Name) {
		return fmt.Errorf("the RDMA device %q has a name that is not UTF-8 text: %w", d.Name, sysfile.ErrInvalid)
	}
	target, err := os.Readlink(filepath.Join(f.root, "class/infiniband", d.Name))
	if err != nil {
		return err
	}
	d.Path = filepath.Join("class/infiniband", target)
	d.PCI, d.Auxiliary = place(d.Path)
	if err := dir.Reopen(filepath.Join(f.root, d.Path)); err != nil {
		return err
	}
	if d.NodeGUID, err = guid(dir, "node_guid"); err != nil {
		return err
	}
	if d.Firmware, err = sysfile.Optional(dir.Text("fw_ver")); err != nil {
		return err
	}
	if d.BoardID, err = sysfile.Optional(dir.Text("board_id")); err != nil {
		return err
	}
	d.Verbs = chars.verbs[d.Name]
	numbers, err := portNumbers(dir)
	if err != nil {
		return err
	}
	if d.PCI == "" {
		if err := d.readPorts(dir, numbers, chars); err != nil {
			return err
		}
		return f.attachSoftwareNet(dir, d)
	}
	net := dir.Below("../../net")
	nets, others, err := interfaces(net, len(numbers))
	if err != nil {
		return err
	}
	if len(numbers) > 1 || others > 0 {
		layer, err := linkLayer(dir.Below(fmt.Sprintf("ports/%d", numbers[0])))
		if err != nil {
			return err
		}
		if d.Switchdev, err = switchdev(net, len(numbers), nets, others); err != nil {
			return err
		}
		d.Switchdev = d.Switchdev && layer == Ethernet
	}
	if d.Switchdev {
		numbers = []int{uplink(dir, numbers, nets)}
	}
	if err := d.readPorts(dir, numbers, chars); err != nil {
		return err
	}
	if d.Switchdev {
		addressed, err := hasGIDs(dir.Below(fmt.Sprintf("ports/%d", numbers[0])))
		if err != nil {
			return err
		}
		d.RawOnly = !addressed
	}
	return f.attachNets(dir, net, nets, d)
}

// readPorts reads the ports of those numbers.
func (d *Device) readPorts(dir *sysfile.Dir, numbers []int, chars *charDevices) error {
	for _, number := range numbers {
		port, err := readPort(dir.Below(fmt.Sprintf("ports/%d", number)), number)
		if err != nil {
			return err
		}
		port.UMAD, port.ISSM = chars.mad(d.Name, number)
		d.Ports = append(d.Ports, port)
	}
	return nil
}

// place takes a device's place from its path: .../<function>/infiniband/<name>, or .../<function>/<auxiliary
// device>/infiniband/<name>.
func place(path string) (function pci.Address, auxiliary string) {
	parent := filepath.Dir(filepath.Dir(path))
	if address, err := pci.ParseAddress(filepath.Base(parent)); err == nil {
		return address, ""
	}
	if address, err := pci.ParseAddress(filepath.Base(filepath.Dir(parent))); err == nil {
		return address, filepath.Base(parent)
	}
	return "", ""
}

// readPort reads the port of that number at dir. On real hardware each read of most attributes queries the firmware.
func readPort(dir *sysfile.Dir, number int) (Port, error) {
	p := Port{Number: number}
	status, err := readStatus(dir)
	if err != nil {
		return Port{}, err
	}
	p.State, p.PhysState = status.State, status.PhysState
	if p.LinkLayer, err = linkLayer(dir); err != nil {
		return Port{}, err
	}
	if p.Rate, err = rate(dir); err != nil || p.LinkLayer == Ethernet {
		return p, err
	}
	lid, err := sysfile.Optional(dir.Hex("lid", 32))
	if err != nil {
		return Port{}, err
	}
	p.LID = uint32(lid)
	gid, err := sysfile.Optional(groups(dir, "gids/0", 8, "a GID of eight groups of four hexadecimal digits"))
	if gid != "" {
		p.GUID = gid[len(gid)/2+1:]
	}
	return p, err
}

// compareNames orders mlx5_2 before mlx5_10.
func compareNames(a, b string) int {
	i, j := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
	if i == j && len(a) != len(b) {
		return cmp.Compare(len(a), len(b))
	}
	return cmp.Compare(a, b)
}
