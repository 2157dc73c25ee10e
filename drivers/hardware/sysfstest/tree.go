// Package sysfstest makes sysfs trees for tests: PCI functions and RDMA devices, with the kernel's layout.
package sysfstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Tree is a node's sysfs and /dev/infiniband in a temporary directory.
type Tree struct {
	t   testing.TB
	Sys string // the sysfs root
	Dev string // the directory for /dev; character devices are plain files here
	n   int    // number of HCAs so far, for uverbs
	mad int    // number of ports so far, for umad and issm
}

// New makes an empty tree.
func New(t testing.TB) *Tree {
	root := t.TempDir()
	tree := &Tree{t: t, Sys: filepath.Join(root, "sys"), Dev: filepath.Join(root, "dev")}
	for _, dir := range []string{"bus/pci/devices", "class/infiniband", "class/infiniband_verbs", "class/infiniband_mad", "class/net",
		"devices"} {
		tree.must(os.MkdirAll(filepath.Join(tree.Sys, dir), 0o755))
	}
	tree.must(os.MkdirAll(filepath.Join(tree.Dev, "infiniband"), 0o755))
	tree.must(os.WriteFile(filepath.Join(tree.Dev, "infiniband/rdma_cm"), nil, 0o644))
	tree.Write("devices/virtual/misc/rdma_cm/dev", "10:122")
	tree.Link("class/misc/rdma_cm", "devices/virtual/misc/rdma_cm")
	tree.Write("class/infiniband_verbs/abi_version", "6")
	tree.Write("class/infiniband_mad/abi_version", "5")
	return tree
}

// Function describes a PCI function. Zero values are a ConnectX-7's.
type Function struct {
	Parent    string // its place under devices: pci0000:3a/0000:3a:00.0
	Address   string // 0000:3b:00.0
	Vendor    string // 0x15b3
	Device    string // 0x1021
	Class     string // 0x020000
	Driver    string // mlx5_core
	NUMANode  string // "0"; "-" leaves the file out
	ACPIIndex string // "101"; empty leaves the file out
	VFs       int    // sriov_numvfs; with TotalVFs
	TotalVFs  int
	PhysFn    string // path of the physical function under devices
	VirtIndex int    // with PhysFn
}

// HCA describes a PCI function with an RDMA device of one or more ports.
type HCA struct {
	Function
	Name      string   // mlx5_0
	Nets      []string // network devices, one per port
	Ethernet  bool     // RoCE; else InfiniBand
	Ports     int      // 1 where zero
	State     string   // "4: ACTIVE"
	PhysState string   // "5: LinkUp"
	Rate      string   // "400 Gb/sec (4X NDR)"
	PKeys     []string // "0xffff"
	NoVerbs   bool     // no uverbs
	NoUMAD    bool     // no umad (EFA, iWARP)
	NoISSM    bool     // no issm; Ethernet ports never have one
	BoardID   string   // MT_0000000838
}

// Write writes an attribute with a newline at its end; path is relative to the sysfs root.
func (t *Tree) Write(path, text string) {
	t.t.Helper()
	full := filepath.Join(t.Sys, path)
	t.must(os.MkdirAll(filepath.Dir(full), 0o755))
	t.must(os.WriteFile(full, []byte(text+"\n"), 0o644))
}

// Remove removes an attribute, a link or a directory.
func (t *Tree) Remove(path string) {
	t.t.Helper()
	t.must(os.RemoveAll(filepath.Join(t.Sys, path)))
}

// Link makes path a symbolic link to target. Both are relative to the sysfs root; the link's target is relative, as the kernel's
// are.
func (t *Tree) Link(path, target string) {
	t.t.Helper()
	full := filepath.Join(t.Sys, path)
	t.must(os.MkdirAll(filepath.Dir(full), 0o755))
	relative, err := filepath.Rel(filepath.Dir(full), filepath.Join(t.Sys, target))
	t.must(err)
	t.must(os.Symlink(relative, full))
}

// AddFunction adds a PCI function and returns its path under the sysfs root.
func (t *Tree) AddFunction(f Function) string {
	t.t.Helper()
	path := filepath.Join("devices", f.Parent, f.Address)
	t.Write(path+"/vendor", or(f.Vendor, "0x15b3"))
	t.Write(path+"/device", or(f.Device, "0x1021"))
	t.Write(path+"/subsystem_vendor", or(f.Vendor, "0x15b3"))
	t.Write(path+"/subsystem_device", "0x0041")
	t.Write(path+"/class", or(f.Class, "0x020000"))
	id := func(hex string, digits int) string {
		return strings.ToUpper(fmt.Sprintf("%0*s", digits, strings.TrimPrefix(hex, "0x")))
	}
	vendor, class := id(or(f.Vendor, "0x15b3"), 8), id(or(f.Class, "0x020000"), 6)
	if len(class) == 6 {
		t.Write(path+"/modalias", fmt.Sprintf("pci:v%sd%ssv%ssd00000041bc%ssc%si%s", vendor, id(or(f.Device, "0x1021"), 8), vendor, class[:2],
			class[2:4], class[4:]))
	}
	t.Write(path+"/revision", "0x00")
	t.Write(path+"/local_cpulist", "0-47")
	if f.NUMANode != "-" {
		t.Write(path+"/numa_node", or(f.NUMANode, "0"))
	}
	if f.ACPIIndex != "" {
		t.Write(path+"/acpi_index", f.ACPIIndex)
	}
	if driver := or(f.Driver, "mlx5_core"); driver != "-" {
		t.must(os.MkdirAll(filepath.Join(t.Sys, "bus/pci/drivers", driver), 0o755))
		t.Link(path+"/driver", "bus/pci/drivers/"+driver)
	}
	if f.TotalVFs > 0 {
		t.Write(path+"/sriov_totalvfs", strconv.Itoa(f.TotalVFs))
		t.Write(path+"/sriov_numvfs", strconv.Itoa(f.VFs))
	}
	if f.PhysFn != "" {
		t.Link(path+"/physfn", f.PhysFn)
		t.Link(filepath.Join(f.PhysFn, "virtfn"+strconv.Itoa(f.VirtIndex)), path)
	}
	t.Link("bus/pci/devices/"+f.Address, path)
	return path
}

// AddHCA adds a PCI function with an RDMA device and returns the path of the RDMA device under the sysfs root.
func (t *Tree) AddHCA(h HCA) string {
	t.t.Helper()
	n := t.n
	t.n++
	h.Name = or(h.Name, fmt.Sprintf("mlx5_%d", n))
	if !h.Ethernet {
		h.Class = or(h.Class, "0x020700")
	}
	function := t.AddFunction(h.Function)
	device := filepath.Join(function, "infiniband", h.Name)
	guid := fmt.Sprintf("9c63:c003:%04x:%04x", n>>16, n&0xffff)
	t.Write(device+"/node_type", "1: CA")
	t.Write(device+"/node_guid", guid)
	t.Write(device+"/sys_image_guid", guid)
	t.Write(device+"/node_desc", "node "+h.Name)
	t.Write(device+"/fw_ver", "28.39.1002")
	t.Write(device+"/hca_type", "MT4129")
	t.Write(device+"/board_id", or(h.BoardID, "MT_0000000838"))
	t.Link("class/infiniband/"+h.Name, device)
	if !h.NoVerbs {
		t.char(function, "infiniband_verbs", fmt.Sprintf("uverbs%d", n), 192+n, h.Name, 0)
	}
	for port := 1; port <= max(h.Ports, 1); port++ {
		t.addPort(device, port, h)
		index := t.mad
		t.mad++
		if !h.NoUMAD {
			t.char(function, "infiniband_mad", fmt.Sprintf("umad%d", index), index, h.Name, port)
		}
		if !h.NoUMAD && !h.NoISSM && !h.Ethernet {
			t.char(function, "infiniband_mad", fmt.Sprintf("issm%d", index), 64+index, h.Name, port)
		}
		if port <= len(h.Nets) {
			t.addNet(function, h.Nets[port-1], n*16+port, port, h)
		}
	}
	return device
}

func (t *Tree) addPort(device string, number int, h HCA) {
	path := fmt.Sprintf("%s/ports/%d", device, number)
	t.Write(path+"/state", or(h.State, "4: ACTIVE"))
	t.Write(path+"/phys_state", or(h.PhysState, "5: LinkUp"))
	t.Write(path+"/rate", or(h.Rate, "400 Gb/sec (4X NDR)"))
	guid := fmt.Sprintf("%04x:%04x:%04x:%04x", 0x9c63, 0xc003, number, t.n-1)
	if h.Ethernet {
		t.Write(path+"/link_layer", "Ethernet")
		t.Write(path+"/lid", "0x0")
		t.Write(path+"/sm_lid", "0x0")
		t.Write(path+"/gids/0", "fe80:0000:0000:0000:"+guid)
	} else {
		t.Write(path+"/link_layer", "InfiniBand")
		t.Write(path+"/lid", fmt.Sprintf("0x%x", 16+t.n))
		t.Write(path+"/sm_lid", "0x1")
		t.Write(path+"/gids/0", "fe80:0000:0000:0000:"+guid)
	}
	keys := h.PKeys
	if len(keys) == 0 {
		keys = []string{"0xffff", "0x0000"}
	}
	for i, key := range keys {
		t.Write(fmt.Sprintf("%s/pkeys/%d", path, i), key)
	}
	for i, counter := range []string{"port_xmit_data", "port_rcv_data", "symbol_error", "link_downed"} {
		t.Write(path+"/counters/"+counter, strconv.Itoa(1000*number+i))
	}
	t.Write(path+"/hw_counters/out_of_sequence", "7")
	t.Write(path+"/hw_counters/lifespan", "12")
}

func (t *Tree) addNet(function, name string, index, port int, h HCA) {
	path := filepath.Join(function, "net", name)
	t.Write(path+"/ifindex", strconv.Itoa(index))
	t.Write(path+"/dev_port", strconv.Itoa(port-1))
	t.Write(path+"/operstate", "up")
	t.Write(path+"/carrier", "1")
	t.Write(path+"/speed", "400000")
	if h.Ethernet {
		t.Write(path+"/type", "1")
		t.Write(path+"/mtu", "9000")
		t.Write(path+"/address", fmt.Sprintf("9c:63:c0:%02x:%02x:%02x", index>>16&0xff, index>>8&0xff, index&0xff))
	} else {
		t.Write(path+"/type", "32")
		t.Write(path+"/mtu", "4092")
		t.Write(path+"/address", fmt.Sprintf("00:00:10:49:fe:80:00:00:00:00:00:00:9c:63:c0:03:%02x:%02x:%02x:%02x", port>>8, port&0xff,
			(t.n-1)>>8&0xff, (t.n-1)&0xff))
	}
	t.Link("class/net/"+name, path)
}

func (t *Tree) char(function, class, name string, minor int, ibdev string, port int) {
	path := filepath.Join(function, class, name)
	t.Write(path+"/dev", fmt.Sprintf("231:%d", minor))
	t.Write(path+"/ibdev", ibdev)
	if port > 0 {
		t.Write(path+"/port", strconv.Itoa(port))
	}
	t.Link(filepath.Join("class", class, name), path)
	t.must(os.WriteFile(filepath.Join(t.Dev, "infiniband", name), nil, 0o644))
}

func (t *Tree) must(err error) {
	t.t.Helper()
	if err != nil {
		t.t.Fatal(err)
	}
}

func or(s, fallback string) string {
	if strings.TrimSpace(s) == "" {
		return fallback
	}
	return s
}
