package tree

import (
	"fmt"
	"path/filepath"

	"gpufabric.io/fakes/profile"
)

// virtualFunctions are the NIC's enabled VFs, at the addresses that offset 2 and stride 1 give them.
func virtualFunctions(nic profile.NodeNIC) []pciFunction {
	if nic.SRIOV == nil {
		return nil
	}
	m := nic.Details()
	var vfs []pciFunction
	for i := range nic.SRIOV.Enabled {
		class := uint32(classEthernet)
		if nic.Link == "InfiniBand" {
			class = classInfiniBand
		}
		vfs = append(vfs, pciFunction{address: vfAddress(nic, i), bridges: nic.Place().Bridges, class: class, id: m.VFID,
			subsystem: profile.PCIID{Vendor: 0x15b3, Device: 0x0026}, driver: "mlx5_core", numa: nic.NUMA, generation: 5, width: 16})
	}
	return vfs
}

// vfAddress is the address of the NIC's VF with that number.
func vfAddress(nic profile.NodeNIC, i int) profile.PCIAddress {
	rid := nic.Address.Bus<<8 | nic.Address.Device<<3 | nic.Address.Function
	rid += uint32(2 + i)
	return profile.PCIAddress{Domain: nic.Address.Domain, Bus: rid >> 8 & 0xff, Device: rid >> 3 & 0x1f, Function: rid & 7}
}

// writeVirtualFunctionLinks joins VFs and their physical function, and gives each VF a network interface.
func writeVirtualFunctionLinks(w *writer, n *profile.Node) {
	for _, nic := range n.NICs {
		pf := nicFunction(nic).path()
		for i, vf := range virtualFunctions(nic) {
			w.link(filepath.Join(pf, fmt.Sprintf("virtfn%d", i)), vf.path())
			w.link(filepath.Join(vf.path(), "physfn"), pf)
		}
	}
}
