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
	"strconv"
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
		if failure != nil {
			found.Skipped = append(found.Skipped, Skipped{Name: names[i], PCI: devices[i].PCI, Reason: failure})
			continue
		}
		found.Devices = append(found.Devices, devices[i])
	}
	slices.SortFunc(found.Devices, func(a, b Device) int { return compareNames(a.Name, b.Name) })
	return found, nil
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
	ports, err := dir.Names("ports")
	if err != nil {
		return err
	}
	for _, name := range ports {
		port, err := readPort(dir.Below("ports/"+name), name)
		if err != nil {
			return err
		}
		port.UMAD, port.ISSM = chars.mad(d.Name, port.Number)
		d.Ports = append(d.Ports, port)
	}
	if len(d.Ports) == 0 {
		return fmt.Errorf("%s has no ports", dir.Path("ports"))
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	if d.PCI == "" {
		return f.attachSoftwareNet(dir, d)
	}
	return f.attachNets(dir.Below("../../net"), d)
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

// readPort reads the port of that name at dir. On real hardware each read of most attributes asks the firmware.
func readPort(dir *sysfile.Dir, name string) (Port, error) {
	n, err := strconv.ParseUint(name, 10, 8)
	if err != nil || n == 0 {
		return Port{}, fmt.Errorf("%s: ports are numbered from 1 to 255: %w", dir.Path(""), sysfile.ErrInvalid)
	}
	p := Port{Number: int(n)}
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
