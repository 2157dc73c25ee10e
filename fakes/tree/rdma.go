package tree

import (
	"fmt"
	"path/filepath"
	"strings"

	"gpufabric.io/fakes/profile"
)

// Minors of the InfiniBand devices, by custom: N umad, 64+N issm, 192+N uverbs, all of major 231.
const (
	infinibandMajor = 231
	issmMinor       = 64
	uverbsMinor     = 192
	rdmaCMMajor     = 10
	rdmaCMMinor     = 121
)

// rdma writes the files of InfiniBand devices and their network interfaces in sysfs.
type rdma struct {
	node  *profile.Node
	bonds map[string][]profile.NodeNIC
	order []string
}

func newRDMA(n *profile.Node) *rdma {
	return &rdma{node: n, bonds: map[string][]profile.NodeNIC{}}
}

func nicFunction(nic profile.NodeNIC) pciFunction {
	m := nic.Details()
	class := uint32(classEthernet)
	if nic.Link == "InfiniBand" {
		class = classInfiniBand
	}
	f := pciFunction{address: nic.Address, bridges: nic.Place().Bridges, class: class, id: m.ID,
		subsystem: profile.PCIID{Vendor: 0x15b3, Device: 0x0026},
		driver:    "mlx5_core", numa: nic.NUMA, generation: 5, width: 16}
	if nic.Physical >= 0 {
		f.id = m.VFID
	}
	if nic.DataDirect != nil {
		f.vpd = vpd(nic)
	}
	if nic.SRIOV != nil {
		f.extra = map[string]string{
			"sriov_totalvfs": fmt.Sprint(nic.SRIOV.Total), "sriov_numvfs": fmt.Sprint(nic.SRIOV.Enabled),
			"sriov_offset": "2", "sriov_stride": "1", "sriov_vf_device": fmt.Sprintf("%04x", m.VFID.Device), "sriov_drivers_autoprobe": "1",
		}
	}
	return f
}

// add writes one NIC's InfiniBand device, its verbs and management devices, and its network interface.
func (r *rdma) add(w *writer, nic profile.NodeNIC, f pciFunction) {
	pci := f.path()
	r.device(w, nic, pci)
	r.verbs(w, nic, pci)
	if nic.Switchdev() {
		r.representors(w, nic, pci)
	} else {
		r.management(w, nic, pci)
	}
	r.netdev(w, nic, pci)
	if nic.Bond != "" {
		if _, ok := r.bonds[nic.Bond]; !ok {
			r.order = append(r.order, nic.Bond)
		}
		r.bonds[nic.Bond] = append(r.bonds[nic.Bond], nic)
	}
}

func (r *rdma) device(w *writer, nic profile.NodeNIC, pci string) {
	m := nic.Details()
	dir := filepath.Join(pci, "infiniband", nic.Device)
	w.files(dir, map[string]string{
		"node_type": "1: CA", "node_guid": guid(nic.NodeGUID), "sys_image_guid": guid(nic.NodeGUID),
		"node_desc": r.node.Hostname + " " + nic.Device, "fw_ver": m.Firmware, "hca_type": m.HCAType, "hw_rev": m.HardwareVersion,
		"board_id": m.BoardID, "uevent": "NAME=" + nic.Device,
	})
	w.link(filepath.Join(dir, "device"), pci)
	linkClass(w, "infiniband", nic.Device, dir)
	if nic.Switchdev() {
		r.vports(w, nic, dir)
		return
	}
	r.port(w, nic, filepath.Join(dir, "ports/1"))
}

func (r *rdma) port(w *writer, nic profile.NodeNIC, dir string) {
	state, phys := portState(!nic.Down)
	ib := nic.Link == "InfiniBand"
	texts := map[string]string{
		"state": state, "phys_state": phys, "rate": rate(nic), "link_layer": nic.Link,
		"lid": fmt.Sprintf("0x%x", nic.LID), "lid_mask_count": "0", "sm_lid": "0x0", "sm_sl": "0", "cap_mask": "0x00010000",
	}
	if ib {
		// The capability mask is the recorded machine's.
		texts["sm_lid"], texts["cap_mask"] = "0x1", "0xa751e848"
	}
	w.files(dir, texts)
	if !nic.Switchdev() {
		r.gids(w, nic, dir)
	}
	w.file(filepath.Join(dir, "pkeys/0"), "0xffff\n") // the default partition, as a full member
	for _, name := range portCounters {
		w.file(filepath.Join(dir, "counters", name), "0\n")
	}
	for _, name := range hardwareCounters {
		text := "0\n"
		if name == "lifespan" {
			text = "10\n"
		}
		w.file(filepath.Join(dir, "hw_counters", name), text)
	}
}

// portState gives the texts of state and phys_state.
func portState(up bool) (state, phys string) {
	if up {
		return "4: ACTIVE", "5: LinkUp"
	}
	return "1: DOWN", "3: Disabled"
}

// rate is the text of the port's rate: lanes and the name of their speed.
func rate(nic profile.NodeNIC) string {
	name := map[int]string{10: "SDR", 40: "FDR10", 56: "FDR", 100: "EDR", 200: "HDR", 400: "NDR", 800: "XDR"}[nic.RateGbps]
	lanes := 4
	if nic.RateGbps == 25 {
		name, lanes = "EDR", 1
	}
	if name == "" {
		return fmt.Sprintf("%d Gb/sec", nic.RateGbps)
	}
	return fmt.Sprintf("%d Gb/sec (%dX %s)", nic.RateGbps, lanes, name)
}

// gids writes the GID table: one entry from the port's GUID on InfiniBand; on Ethernet a link-local address and an IPv4 one, each for
// RoCE v1 and v2.
func (r *rdma) gids(w *writer, nic profile.NodeNIC, dir string) {
	type gid struct{ value, kind string }
	var table []gid
	if nic.Link == "InfiniBand" {
		table = []gid{{"fe80:0000:0000:0000:" + guid(nic.PortGUID), "IB/RoCE v1"}}
	} else {
		ip := r.address(nic)
		v4 := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", ip[0], ip[1], ip[2], ip[3])
		local := linkLocal(nic.MAC)
		table = []gid{{local, "IB/RoCE v1"}, {local, "RoCE v2"}, {v4, "IB/RoCE v1"}, {v4, "RoCE v2"}}
	}
	netdev := nic.Netdev
	if nic.Bond != "" {
		netdev = nic.Bond
	}
	for i, g := range table {
		w.file(fmt.Sprintf("%s/gids/%d", dir, i), g.value+"\n")
		w.file(fmt.Sprintf("%s/gid_attrs/ndevs/%d", dir, i), netdev+"\n")
		w.file(fmt.Sprintf("%s/gid_attrs/types/%d", dir, i), g.kind+"\n")
	}
}

// address is an IPv4 address in 10.0.0.0/8 that no other NIC of the cluster has.
func (r *rdma) address(nic profile.NodeNIC) [4]byte {
	v := r.node.Index*64 + nic.Index + 1
	return [4]byte{10, byte(v >> 16), byte(v >> 8), byte(v)}
}

func linkLocal(mac [6]byte) string {
	return fmt.Sprintf("fe80:0000:0000:0000:%02x%02x:%02xff:fe%02x:%02x%02x", mac[0]^2, mac[1], mac[2], mac[3], mac[4], mac[5])
}

func guid(v uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", v>>48, v>>32&0xffff, v>>16&0xffff, v&0xffff)
}

func (r *rdma) verbs(w *writer, nic profile.NodeNIC, pci string) {
	name := fmt.Sprintf("uverbs%d", nic.Index)
	dir := filepath.Join(pci, "infiniband_verbs", name)
	w.files(dir, map[string]string{
		"dev": fmt.Sprintf("%d:%d", infinibandMajor, uverbsMinor+nic.Index), "ibdev": nic.Device, "abi_version": "1",
		"uevent": fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/%s", infinibandMajor, uverbsMinor+nic.Index, name),
	})
	w.link(filepath.Join(dir, "device"), pci)
	linkClass(w, "infiniband_verbs", name, dir)
}

// management writes the umad device and, on InfiniBand, the issm device.
func (r *rdma) management(w *writer, nic profile.NodeNIC, pci string) {
	names := map[string]int{fmt.Sprintf("umad%d", nic.Index): nic.Index}
	if nic.Link == "InfiniBand" {
		names[fmt.Sprintf("issm%d", nic.Index)] = issmMinor + nic.Index
	}
	for name, minor := range names {
		dir := filepath.Join(pci, "infiniband_mad", name)
		w.files(dir, map[string]string{
			"dev": fmt.Sprintf("%d:%d", infinibandMajor, minor), "ibdev": nic.Device, "port": "1",
			"uevent": fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/%s", infinibandMajor, minor, name),
		})
		w.link(filepath.Join(dir, "device"), pci)
		linkClass(w, "infiniband_mad", name, dir)
	}
}

// netdev writes the network interface: IPoIB (type 32, a 20-byte address that ends in the port's GUID) or Ethernet (type 1).
func (r *rdma) netdev(w *writer, nic profile.NodeNIC, pci string) {
	dir := filepath.Join(pci, "net", nic.Netdev)
	address, broadcast, kind, length := mac(nic.MAC), "ff:ff:ff:ff:ff:ff", "1", "6"
	if nic.Link == "InfiniBand" {
		address = fmt.Sprintf("00:00:%02x:%02x:fe:80:00:00:00:00:00:00:%s", 0x10, nic.Index+1, colons(nic.PortGUID))
		broadcast = "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"
		kind, length = "32", "20"
	}
	if nic.Switchdev() {
		w.file(filepath.Join(dir, "phys_switch_id"), switchID(nic)+"\n")
	}
	r.writeNetdev(w, dir, nic.Netdev, nic.Index+3, map[string]string{
		"type": kind, "address": address, "broadcast": broadcast, "addr_len": length, "mtu": fmt.Sprint(nic.MTUOrDefault()),
		"speed": fmt.Sprint(nic.RateGbps * 1000), "dev_port": "0", "dev_id": "0x0", "phys_port_name": fmt.Sprintf("p%d", nic.Port),
	}, !nic.Down)
	w.link(filepath.Join(dir, "device"), pci)
	if nic.Bond != "" {
		w.link(filepath.Join(dir, "master"), filepath.Join("sys/devices/virtual/net", nic.Bond))
	}
}

func (r *rdma) writeNetdev(w *writer, dir, name string, index int, texts map[string]string, up bool) {
	texts["ifindex"], texts["iflink"] = fmt.Sprint(index), fmt.Sprint(index)
	texts["operstate"], texts["carrier"], texts["flags"] = "up", "1", "0x1003"
	if !up {
		texts["operstate"], texts["carrier"] = "down", "0"
	}
	texts["duplex"], texts["tx_queue_len"], texts["link_mode"], texts["dormant"] = "full", "1000", "0", "0"
	texts["uevent"] = fmt.Sprintf("INTERFACE=%s\nIFINDEX=%d", name, index)
	w.files(dir, texts)
	for _, c := range []string{"rx_bytes", "rx_dropped", "rx_errors", "rx_packets", "tx_bytes", "tx_dropped", "tx_errors", "tx_packets"} {
		w.file(filepath.Join(dir, "statistics", c), "0\n")
	}
	linkClass(w, "net", name, dir)
}

// finish writes the files that belong to no single NIC.
func (r *rdma) finish(w *writer) {
	if len(r.node.NICs) > 0 {
		w.file("sys/class/infiniband_verbs/abi_version", "6\n")
		w.file("sys/class/infiniband_mad/abi_version", "5\n")
		w.files("sys/devices/virtual/misc/rdma_cm", map[string]string{"dev": fmt.Sprintf("%d:%d", rdmaCMMajor, rdmaCMMinor), "abi_version": "4"})
		linkClass(w, "misc", "rdma_cm", "sys/devices/virtual/misc/rdma_cm")
	}
	for i, bond := range r.order {
		slaves := r.bonds[bond]
		dir := filepath.Join("sys/devices/virtual/net", bond)
		var names []string
		for _, s := range slaves {
			names = append(names, s.Netdev)
			w.link(filepath.Join(dir, "lower_"+s.Netdev), filepath.Join(nicFunction(s).path(), "net", s.Netdev))
		}
		r.writeNetdev(w, dir, bond, 200+i, map[string]string{
			"type": "1", "address": mac(slaves[0].MAC), "broadcast": "ff:ff:ff:ff:ff:ff", "addr_len": "6", "mtu": "9000",
			"speed": fmt.Sprint(slaves[0].RateGbps * 1000 * len(slaves)), "dev_port": "0", "dev_id": "0x0",
		}, true)
		w.files(filepath.Join(dir, "bonding"), map[string]string{"slaves": strings.Join(names, " "), "mode": "802.3ad 4", "active_slave": ""})
		w.file("sys/class/net/bonding_masters", strings.Join(r.order, " ")+"\n")
	}
}

func mac(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

func colons(v uint64) string {
	var parts []string
	for shift := 56; shift >= 0; shift -= 8 {
		parts = append(parts, fmt.Sprintf("%02x", byte(v>>shift)))
	}
	return strings.Join(parts, ":")
}
