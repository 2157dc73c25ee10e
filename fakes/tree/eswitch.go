package tree

import (
	"fmt"
	"path/filepath"
	"strings"

	"gpufabric.io/fakes/profile"
)

// A NIC in switchdev mode, as Linux shows it:
//
//   - drivers/infiniband/hw/mlx5/ib_rep.c: its RDMA device has a port for each vport (profile.NIC.Ports).
//   - drivers/infiniband/hw/mlx5/main.c, mlx5_port_rep_immutable: the ports carry raw packets alone. They have no GIDs and no umad.
//   - the same file, mlx5_query_port_roce: a port is ACTIVE where its interface has a carrier, else DOWN and Disabled. The vport of the
//     physical function itself has no representor on a host, nor has a virtual function that does not exist.
//   - drivers/net/ethernet/mellanox/mlx5/core/en_rep.c: representors are below the physical function, with dev_port 0.
//   - net/devlink/port.c: phys_port_name of a representor is pf0vf3, after the number of the physical function.
//   - drivers/net/ethernet/mellanox/mlx5/core/esw/devlink_port.c: phys_switch_id is the system image GUID, for uplink and representors.

// vports writes the ports of an RDMA device in switchdev mode.
func (r *rdma) vports(w *writer, nic profile.NodeNIC, dir string) {
	count, uplink := nic.Ports()
	for number := 1; number <= count; number++ {
		port := nic
		if number != uplink {
			vf := number - 2
			port.Down = vf < 0 || vf >= nic.VirtualFunctions()
		}
		r.port(w, port, filepath.Join(dir, fmt.Sprintf("ports/%d", number)))
	}
}

// representors writes the network interfaces of a NIC's virtual functions on its own side.
func (r *rdma) representors(w *writer, nic profile.NodeNIC, pci string) {
	for k := range nic.VirtualFunctions() {
		name := representor(nic, k)
		dir := filepath.Join(pci, "net", name)
		address := nic.MAC
		address[0], address[1] = 0x02, byte(k) // locally administered, as the kernel makes them at random
		r.writeNetdev(w, dir, name, 1000+nic.Index*128+k, map[string]string{
			"type": "1", "address": mac(address), "broadcast": "ff:ff:ff:ff:ff:ff", "addr_len": "6", "mtu": "1500",
			"speed": fmt.Sprint(nic.RateGbps * 1000), "dev_port": "0", "dev_id": "0x0",
			"phys_port_name": fmt.Sprintf("pf%dvf%d", nic.Address.Function, k), "phys_switch_id": switchID(nic),
		}, true)
		w.link(filepath.Join(dir, "device"), pci)
	}
}

// representor is the name that udev gives (net_id of systemd: the slot, n, phys_port_name), or the kernel's where it is longer than 15
// bytes (IFNAMSIZ).
func representor(nic profile.NodeNIC, k int) string {
	slot := strings.TrimSuffix(nic.Netdev, fmt.Sprintf("np%d", nic.Port))
	name := fmt.Sprintf("%snpf%dvf%d", slot, nic.Address.Function, k)
	if len(name) > 15 {
		return fmt.Sprintf("eth%d", nic.Index*128+k)
	}
	return name
}

// switchID is phys_switch_id: the bytes of the system image GUID, the low one first.
func switchID(nic profile.NodeNIC) string {
	text := ""
	for shift := 0; shift < 64; shift += 8 {
		text += fmt.Sprintf("%02x", byte(nic.NodeGUID>>shift))
	}
	return text
}

// dataDirectID is the PCI ID of a ConnectX-8's data-direct function (drivers/infiniband/hw/mlx5/data_direct.c).
const dataDirectID = 0x2100

// classDMA is the class of a DMA controller.
const classDMA = 0x080100

// addDataDirect adds a NIC's data-direct function. The two have one V3 field in their Vital Product Data.
func addDataDirect(bus *pciBus, nic profile.NodeNIC, f pciFunction) {
	if nic.DataDirect == nil {
		return
	}
	address, err := profile.ParsePCI(nic.DataDirect.PCI)
	if err != nil {
		return // the profile's check has seen to the form
	}
	direct := f
	direct.address, direct.bridges = address, profile.BridgeChain(address, nic.DataDirect.Bridges)
	direct.class, direct.driver, direct.extra = classDMA, "mlx5_ib", nil
	direct.id.Device = dataDirectID
	bus.add(direct)
}

// vpd is the Vital Product Data of a NIC: its name, and the read-only fields serial number and V3.
func vpd(nic profile.NodeNIC) []byte {
	resource := func(tag byte, data string) string {
		return string([]byte{tag, byte(len(data)), byte(len(data) >> 8)}) + data
	}
	field := func(keyword, text string) string { return keyword + string([]byte{byte(len(text))}) + text }
	v3 := fmt.Sprintf("%016x%016x", nic.NodeGUID, nic.PortGUID)
	return []byte(resource(0x82, nic.Model) + resource(0x90, field("SN", nic.Serial)+field("V3", v3)) + "\x78")
}
