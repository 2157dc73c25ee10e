package infiniband

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// A card in switchdev mode shows the ports of its own switch (e-switch). Rules of Linux, by file:
//
//   - drivers/infiniband/hw/mlx5/ib_rep.c, mlx5_ib_vport_rep_load: the RDMA device of the physical function has a port for each vport
//     that the card could have, whether its function exists or not. The uplink's is the first port in kernels before 5.12, and the
//     last one later. There may be more than 255 (drivers/infiniband/core/device.c, "Support more than 255 rdma ports", 5.13).
//   - drivers/infiniband/hw/mlx5/main.c, mlx5_port_rep_immutable and mlx5_query_port_roce: such a device has raw packets alone. It has
//     no GIDs, so RoCE cannot work on it. A port is ACTIVE if its interface is up and has a carrier, else DOWN.
//   - net/devlink/port.c, __devlink_port_phys_port_name_get: phys_port_name is p0 for the uplink of port 0, and [c1]pf0, [c1]pf0vf3 or
//     [c1]pf0sf88 for a representor. drivers/net/ethernet/sfc/ef100_rep.c has p0pf0vf3.
//   - drivers/net/ethernet/mellanox/mlx5/core/en_rep.c, mlx5e_build_rep_netdev: representors are below the physical function's
//     directory in sysfs, as the uplink is, and all have dev_port 0.
//   - net/core/net-sysfs.c, phys_switch_id_show: the uplink and its representors have one phys_switch_id. Reading it fails with
//     EOPNOTSUPP in legacy mode.

// mostLinks is the largest number of ports of a card whose ports are all links of its own. Cards with more links have as many
// interfaces.
const mostLinks = 2

// interfaces lists the network devices in the directory dir, without representors. others is the number of representors.
func interfaces(dir *sysfile.Dir, ports int) (names []string, others int, err error) {
	names, err = dir.Names(".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil // EFA, a driver without ipoib, or a device whose network device is in a pod's namespace.
	}
	if err != nil || len(names) <= 1 && ports <= 1 {
		return names, 0, err // A representor is never alone.
	}
	kept := names[:0]
	for _, name := range names {
		other, err := representor(dir.Below(name))
		if err != nil {
			return nil, 0, err
		}
		if other {
			others++
			continue
		}
		kept = append(kept, name)
	}
	return kept, others, nil
}

// representor reports whether the network device at dir represents a function behind the card's own switch.
func representor(dir *sysfile.Dir) (bool, error) {
	name, err := sysfile.Optional(dir.Text("phys_port_name"))
	return strings.Contains(name, "pf"), err
}

// Interfaces lists the network devices of the PCI function at path, without representors.
func (f FS) Interfaces(path string) []string {
	dir, err := sysfile.Open(filepath.Join(f.root, path, "net"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _, err := interfaces(dir, 1)
	if err != nil {
		return nil
	}
	return names
}

// switchdev reports whether the Ethernet device d is an e-switch, whose ports are those of vports. nets are its network devices, of
// which others are representors.
func switchdev(net *sysfile.Dir, ports int, nets []string, others int) (bool, error) {
	switch {
	case others > 0, ports > mostLinks && ports > len(nets):
		return true, nil
	case ports == 1:
		return false, nil
	}
	for _, name := range nets {
		if id, err := sysfile.Optional(net.Below(name).Text("phys_switch_id")); err != nil || id != "" {
			return err == nil, err
		}
	}
	return false, nil
}

// uplink returns the port, of numbers, whose GIDs belong to one of the interfaces nets; else the first port. Nothing in sysfs joins
// a port without GIDs to its interface.
func uplink(dir *sysfile.Dir, numbers []int, nets []string) int {
	for _, n := range numbers {
		owner, err := dir.Text(fmt.Sprintf("ports/%d/gid_attrs/ndevs/0", n))
		if err == nil && slices.Contains(nets, owner) {
			return n
		}
	}
	return numbers[0]
}

// hasGIDs reports whether the port at dir has an address. The kernel shows an empty entry of the table as zeros.
func hasGIDs(dir *sysfile.Dir) (bool, error) {
	names, err := sysfile.Optional(dir.Names("gids"))
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if gid, err := sysfile.Optional(dir.Text("gids/" + name)); err != nil || strings.Trim(gid, "0:") != "" {
			return err == nil, err
		}
	}
	return false, nil
}

// portNumbers reads the numbers of the ports in dir, in order. Linux counts them with 32 bits.
func portNumbers(dir *sysfile.Dir) ([]int, error) {
	names, err := dir.Names("ports")
	if err != nil {
		return nil, err
	}
	numbers := make([]int, len(names))
	for i, name := range names {
		n, err := strconv.ParseUint(name, 10, 31)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != name {
			return nil, fmt.Errorf("%s: ports are numbered from 1: %w", dir.Path("ports/"+name), sysfile.ErrInvalid)
		}
		numbers[i] = int(n)
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("%s has no ports", dir.Path("ports"))
	}
	slices.SortFunc(numbers, cmp.Compare)
	return numbers, nil
}
