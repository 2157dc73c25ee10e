package profile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// PCIAddress is domain:bus:device.function.
type PCIAddress struct {
	Domain, Bus, Device, Function uint32
}

// ParsePCI reads an address like 0008:01:00.0.
func ParsePCI(s string) (PCIAddress, error) {
	if !pciAddress.MatchString(s) {
		return PCIAddress{}, fmt.Errorf("%q is not a PCI address like 0000:01:00.0", s)
	}
	b, err := hex.DecodeString(s[0:4] + s[5:7] + s[8:10])
	if err != nil {
		return PCIAddress{}, fmt.Errorf("PCI address %q: %w", s, err)
	}
	return PCIAddress{uint32(b[0])<<8 | uint32(b[1]), uint32(b[2]), uint32(b[3]), uint32(s[11] - '0')}, nil
}

// String gives the form sysfs uses, with a domain of four digits.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// PCIID is a vendor and a device number.
type PCIID struct{ Vendor, Device uint16 }

// parsePCIID reads vendor:device in hex; the profile's check has seen to the form. Empty text is zero.
func parsePCIID(s string) PCIID {
	v, d, _ := strings.Cut(s, ":")
	return PCIID{hex16(v), hex16(d)}
}

func hex16(s string) uint16 {
	v, err := strconv.ParseUint(s, 16, 16)
	if err != nil {
		return 0
	}
	return uint16(v)
}

// MaxNodes is the most machines of a profile in one cluster: with up to 16 NICs each they have addresses of their own (see nic).
const MaxNodes = 1 << 20

// Node is one machine of a profile's model.
type Node struct {
	Profile *Profile
	// Index counts the machines of one cluster from 0; Rack is the clique to which it belongs.
	Index, Rack int
	Hostname    string
	MachineID   string
	// ClusterUUID is empty where the machine has no fabric.
	ClusterUUID string
	GPUs        []NodeGPU
	NICs        []NodeNIC
}

// NodeGPU is one GPU of one machine.
type NodeGPU struct {
	GPU
	Index   int
	Address PCIAddress
	// UUID is in the form GPU-xxxxxxxx-...; UUIDBytes are its 16 bytes.
	UUID      string
	UUIDBytes [16]byte
	Serial    string
	// PDI is the chip's own 64-bit identifier.
	PDI   uint64
	Minor int
	// Platform is its place in a chassis, nil where there is none.
	Platform *Bay
}

// Bay is a GPU's place in a chassis, as nvmlDeviceGetPlatformInfo reports it.
type Bay struct {
	// Chassis is the rack's serial number; empty outside a rack.
	Chassis    string
	Slot, Tray int
	Host       int
	// Switched is true where the GPU's peers are reached by switches.
	Switched bool
	// GUID is the GPU's in its fabric: the chip's own in a rack.
	GUID uint64
}

// NodeNIC is one NIC function of one machine.
type NodeNIC struct {
	NIC
	Index   int
	Address PCIAddress
	// NodeGUID identifies the HCA, PortGUID its port; with mlx5 they are equal.
	NodeGUID, PortGUID uint64
	// MAC is the Ethernet address, or the one that an Ethernet function of the same card would have.
	MAC [6]byte
	// LID is zero on Ethernet.
	LID    int
	Serial string
	// Physical is the index of the NIC that this is a virtual function of, -1 for a physical function; VF is its number there.
	Physical, VF int
}

// Node derives the machine with that index; the same index always gives the same machine.
func (p *Profile) Node(index int) *Node {
	n := &Node{Profile: p, Index: index, Hostname: p.hostname(index), MachineID: hex.EncodeToString(p.derive("machine", index)[:16])}
	if f := p.Fabric; f != nil {
		n.Rack = index / max(f.NodesPerClique, 1)
		n.ClusterUUID = p.clusterUUID(n.Rack)
	}
	if p.GPUs != nil {
		for i, g := range p.GPUs.Devices {
			n.GPUs = append(n.GPUs, p.gpu(g, index, i))
		}
	}
	all := p.functions()
	for i, f := range all {
		n.NICs = append(n.NICs, p.nic(f, index, i, len(all)))
	}
	return n
}

// function is a NIC of the profile, or a virtual function of one.
type function struct {
	NIC
	physical, vf int
}

// functions lists the profile's NICs, then their virtual functions, which continue the numbering of the devices (mlx5_N).
func (p *Profile) functions() []function {
	var all []function
	for _, n := range p.NICs {
		all = append(all, function{n, -1, 0})
	}
	for i, n := range p.NICs {
		for k := range n.VirtualFunctions() {
			v := n
			v.SRIOV, v.Bond, v.DataDirect = nil, "", nil
			v.Device = fmt.Sprintf("mlx5_%d", len(all))
			v.Netdev = fmt.Sprintf("%sv%d", n.Netdev, k)
			v.PCI = n.vfAddress(k).String()
			all = append(all, function{v, i, k})
		}
	}
	return all
}

// VirtualFunctions is how many the NIC has enabled.
func (n NIC) VirtualFunctions() int {
	if n.SRIOV == nil {
		return 0
	}
	return n.SRIOV.Enabled
}

// Switchdev reports whether the NIC's e-switch is in switchdev mode.
func (n NIC) Switchdev() bool { return n.SRIOV != nil && n.SRIOV.Switchdev }

// Ports is how many ports the NIC's RDMA device has, and uplink the number of the one that has the cable. In switchdev mode there is
// a port for each vport: the physical function's, one for each virtual function that may exist, and the uplink's, which is the last
// (Linux, drivers/infiniband/hw/mlx5/ib_rep.c and mlx5_esw_vports_init of drivers/net/ethernet/mellanox/mlx5/core/eswitch.c).
func (n NIC) Ports() (count, uplink int) {
	if !n.Switchdev() {
		return 1, 1
	}
	return n.SRIOV.Total + 2, n.SRIOV.Total + 2
}

// vfAddress is the address of the VF with that number: offset 2 and stride 1, as mlx5 has them.
func (n NIC) vfAddress(k int) PCIAddress {
	a, err := ParsePCI(n.PCI)
	if err != nil {
		return a // the profile's check has seen to the form
	}
	id := a.Bus<<8 | a.Device<<3 | a.Function
	id += uint32(2 + k)
	return PCIAddress{a.Domain, id >> 8 & 0xff, id >> 3 & 0x1f, id & 7}
}

func (p *Profile) hostname(index int) string {
	format := p.Host.Hostname
	if format == "" {
		format = p.Name + "-%d"
	}
	if !strings.Contains(format, "%") {
		return format + "-" + strconv.Itoa(index)
	}
	return fmt.Sprintf(format, index)
}

// clusterUUID gives the first rack the profile's UUID and derives the others; a UUID of zeros, which means no cluster, stays.
func (p *Profile) clusterUUID(rack int) string {
	u := p.Fabric.ClusterUUID
	if rack == 0 || u == zeroUUID {
		return u
	}
	return uuid(p.derive("cluster "+u, rack))
}

const zeroUUID = "00000000-0000-0000-0000-000000000000"

func (p *Profile) gpu(g GPU, node, i int) NodeGPU {
	d := p.derive("gpu", node, i)
	out := NodeGPU{GPU: g, Index: i, Minor: p.minor(i), UUID: "GPU-" + uuid(d), PDI: binary.BigEndian.Uint64(d[16:])}
	out.Address, _ = ParsePCI(g.PCI) // the profile's check has seen to the form
	out.UUIDBytes = ParseUUID(out.UUID)
	board := d
	if g.Board > 0 {
		board = p.derive("board", node, g.Board)
	}
	out.Serial = fmt.Sprintf("16%011d", binary.BigEndian.Uint64(board[24:])%1e11)
	out.Platform = p.bay(node, out.PDI, d)
	out.Module = g.moduleAt(i)
	if out.MemoryNodes == "" && g.NUMA >= 0 {
		out.MemoryNodes = strconv.Itoa(g.NUMA)
	}
	for _, m := range p.Host.Nodes() {
		if m.Node == g.NUMA && out.CPUs == "" {
			out.CPUs = m.CPUs
		}
	}
	return out
}

// minor is the number of the GPU's device node.
func (p *Profile) minor(i int) int {
	for _, g := range p.GPUs.Devices {
		if g.Minor > 0 {
			return p.GPUs.Devices[i].Minor
		}
	}
	return i
}

// bay derives a GPU's place: the rack of a node is its clique, and its tray is its index there.
func (p *Profile) bay(node int, pdi uint64, derived []byte) *Bay {
	q := p.GPUs.Platform
	if q == nil {
		return nil
	}
	at := &Bay{Host: q.Host, Switched: q.Peer == "switch", GUID: binary.BigEndian.Uint64(derived[8:])}
	if q.Chassis {
		trays := 1
		if p.Fabric != nil {
			trays = max(p.Fabric.NodesPerClique, 1)
		}
		at.Tray, at.GUID = node%trays, pdi
		at.Slot = q.FirstSlot + at.Tray
		at.Chassis = fmt.Sprintf("18%011d", binary.BigEndian.Uint64(p.derive("chassis", node/trays))%1e11)
	}
	return at
}

func (p *Profile) nic(nic function, node, i, count int) NodeNIC {
	d := p.derive("nic", node, i)
	// An odd factor permutes the 24 bits, so that no two NICs of up to 16 million share an address; the offset distinguishes models.
	serial := (binary.BigEndian.Uint32(p.derive("nics")) + uint32(node*count+i)*0x9e3779b1) & 0xffffff
	out := NodeNIC{NIC: nic.NIC, Index: i, Physical: nic.physical, VF: nic.vf}
	out.Address, _ = ParsePCI(nic.PCI)
	// 7c:8c:09 is one of the vendor's address blocks; GUIDs put 03:00 in the middle of the MAC, as the recorded machine does.
	out.MAC = [6]byte{0x7c, 0x8c, 0x09, byte(serial >> 16), byte(serial >> 8), byte(serial)}
	out.NodeGUID = 0x7c8c090300000000 | uint64(serial)
	out.PortGUID = out.NodeGUID
	out.Serial = fmt.Sprintf("MT2%03dX%05d", int(d[3])%1000, binary.BigEndian.Uint32(d[4:])%100000)
	if nic.Link == "InfiniBand" {
		out.LID = 1 + (node*count+i)%0xbffe
	}
	return out
}

// derive gives 32 bytes that depend only on the profile's name and the words.
func (p *Profile) derive(kind string, numbers ...int) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "fakefabric/%s/%s", p.Name, kind)
	for _, n := range numbers {
		fmt.Fprintf(h, "/%d", n)
	}
	return h.Sum(nil)
}

// uuid makes a random-form (version 4) UUID of the first 16 bytes.
func uuid(b []byte) string {
	var u [16]byte
	copy(u[:], b)
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return FormatUUID(u)
}

// FormatUUID writes 16 bytes as 8-4-4-4-12 hex digits.
func FormatUUID(u [16]byte) string {
	h := hex.EncodeToString(u[:])
	return h[0:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ParseUUID reads a UUID with or without a GPU- or MIG- prefix; other text gives zeros.
func ParseUUID(s string) [16]byte {
	var u [16]byte
	s = strings.TrimPrefix(strings.TrimPrefix(s, "GPU-"), "MIG-")
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err == nil && len(b) == 16 {
		copy(u[:], b)
	}
	return u
}
