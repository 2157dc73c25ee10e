package infiniband

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// charDevices are the character devices of all RDMA devices.
type charDevices struct {
	verbs map[string]CharDevice  // by RDMA device
	umad  map[madPort]CharDevice // umadN
	issm  map[madPort]CharDevice // issmN
}

type madPort struct {
	device string
	port   int
}

// charDevices reads the classes infiniband_verbs and infiniband_mad. It omits an entry that it cannot parse: the RDMA
// device then has no such character device, so that nothing tries to open it.
func (f FS) charDevices(ctx context.Context) (*charDevices, error) {
	found := &charDevices{verbs: map[string]CharDevice{}, umad: map[madPort]CharDevice{}, issm: map[madPort]CharDevice{}}
	for _, class := range []string{"infiniband_verbs", "infiniband_mad"} {
		root := filepath.Join(f.root, "class", class)
		names, err := sysfile.Names(root)
		if errors.Is(err, fs.ErrNotExist) {
			continue // The module (ib_uverbs, ib_umad) is not loaded.
		}
		if err != nil {
			return nil, fmt.Errorf("list character devices of class %s: %w", class, err)
		}
		entries := make([]charEntry, len(names))
		err = sysfile.Each(ctx, len(names), func(dir *sysfile.Dir, i int) {
			entries[i] = readChar(dir, root, names[i], class == "infiniband_mad")
		})
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			switch key := (madPort{e.ibdev, e.port}); {
			case e.ibdev == "":
			case strings.HasPrefix(e.Name, "uverbs"):
				found.verbs[e.ibdev] = e.CharDevice
			case strings.HasPrefix(e.Name, "umad"):
				found.umad[key] = e.CharDevice
			case strings.HasPrefix(e.Name, "issm"):
				found.issm[key] = e.CharDevice
			}
		}
	}
	return found, nil
}

// CharDevices reads the character devices of one RDMA device: its uverbs, and the umad and issm of its ports. Unlike Scan it also
// finds those of a device in another network namespace: the classes of character devices are the same in all namespaces. Their
// numbers change whenever the device moves.
func (f FS) CharDevices(ctx context.Context, device string) ([]CharDevice, error) {
	found, err := f.charDevices(ctx)
	if err != nil {
		return nil, err
	}
	var devices []CharDevice
	if verbs, ok := found.verbs[device]; ok {
		devices = append(devices, verbs)
	}
	for _, class := range []map[madPort]CharDevice{found.umad, found.issm} {
		for port, c := range class {
			if port.device == device {
				devices = append(devices, c)
			}
		}
	}
	slices.SortFunc(devices, func(a, b CharDevice) int { return compareNames(b.Name, a.Name) }) // uverbs, umad, issm
	return devices, nil
}

// ConnectionManager reads the character device of the module rdma_ucm, which belongs to no RDMA device: class/misc/rdma_cm/dev. Its
// number is 0 where the file cannot be read.
func (f FS) ConnectionManager() CharDevice {
	c := CharDevice{Name: "rdma_cm"}
	dir, err := sysfile.Open(filepath.Join(f.root, "class/misc/rdma_cm"))
	if err != nil {
		return c
	}
	defer dir.Close()
	if major, minor, err := devNumbers(dir); err == nil {
		c.Major, c.Minor = major, minor
	}
	return c
}

func (c *charDevices) mad(device string, port int) (umad, issm CharDevice) {
	key := madPort{device, port}
	return c.umad[key], c.issm[key]
}

type charEntry struct {
	CharDevice
	ibdev string // the RDMA device; empty: not an entry of a device, or unreadable
	port  int
}

func readChar(dir *sysfile.Dir, root, name string, mad bool) charEntry {
	e := charEntry{CharDevice: CharDevice{Name: name}}
	if dir.Reopen(filepath.Join(root, name)) != nil { // abi_version is a file, not an entry
		return e
	}
	var err error
	if e.Major, e.Minor, err = devNumbers(dir); err != nil {
		return e
	}
	if mad {
		if e.port, err = dir.Int("port"); err != nil {
			return e
		}
	}
	if e.ibdev, err = dir.Text("ibdev"); err != nil {
		e.ibdev = ""
	}
	return e
}
