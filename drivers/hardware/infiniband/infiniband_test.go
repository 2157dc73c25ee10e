package infiniband_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/hardware/sysfstest"
)

func scan(t *testing.T, tree *sysfstest.Tree) *infiniband.Devices {
	t.Helper()
	found, err := infiniband.NewFS(tree.Sys).Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func place(bus int) sysfstest.Function {
	return sysfstest.Function{Parent: fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", bus, bus), Address: fmt.Sprintf("0000:%02x:00.0", bus+1)}
}

func TestDevicesReadsInfiniBandDevice(t *testing.T) {
	tree := sysfstest.New(t)
	path := tree.AddHCA(sysfstest.HCA{Function: place(0x3a), Nets: []string{"ibp3s0"}})
	want := &infiniband.Devices{Devices: []infiniband.Device{{
		Name: "mlx5_0", Path: path, PCI: "0000:3b:00.0",
		NodeGUID: "9c63:c003:0000:0000", Firmware: "28.39.1002", BoardID: "MT_0000000838",
		Verbs: infiniband.CharDevice{Name: "uverbs0", Major: 231, Minor: 192},
		Ports: []infiniband.Port{{
			Number: 1, State: infiniband.PortActive, PhysState: infiniband.PhysLinkUp, LinkLayer: infiniband.InfiniBand,
			Rate: 400, LID: 17, GUID: "9c63:c003:0001:0000",
			UMAD: infiniband.CharDevice{Name: "umad0", Major: 231, Minor: 0}, ISSM: infiniband.CharDevice{Name: "issm0", Major: 231, Minor: 64},
			Nets: []infiniband.Net{{Name: "ibp3s0", Type: infiniband.TypeInfiniBand, MTU: 4092}},
		}},
	}}}
	if diff := cmp.Diff(want, scan(t, tree)); diff != "" {
		t.Error(diff)
	}
}

func TestDevicesOfEveryKind(t *testing.T) {
	for _, test := range []struct {
		name  string
		hca   sysfstest.HCA
		check func(d infiniband.Device) bool
	}{
		{"a RoCE port has no issm and no LID", sysfstest.HCA{Ethernet: true, Nets: []string{"ens2f0"}}, func(d infiniband.Device) bool {
			p := d.Ports[0]
			return p.ISSM.Name == "" && p.UMAD.Name == "umad0" && p.LID == 0 && p.GUID == "" && p.LinkLayer == infiniband.Ethernet &&
				p.Nets[0].Type == infiniband.TypeEthernet
		}},
		{"a device without management datagrams has neither umad nor issm", sysfstest.HCA{Ethernet: true, NoUMAD: true},
			func(d infiniband.Device) bool {
				return d.Ports[0].UMAD.Name == "" && d.Ports[0].ISSM.Name == "" && d.Verbs.Name == "uverbs0"
			}},
		{"a device without ib_uverbs has no verbs device", sysfstest.HCA{NoVerbs: true}, func(d infiniband.Device) bool {
			return d.Verbs.Name == ""
		}},
		{"each port of a two-port HCA has its own umad, issm and network device", sysfstest.HCA{Ports: 2, Nets: []string{"ib0", "ib1"}},
			func(d infiniband.Device) bool {
				return len(d.Ports) == 2 && d.Ports[1].Number == 2 && d.Ports[0].UMAD.Name == "umad0" && d.Ports[1].UMAD.Name == "umad1" &&
					d.Ports[1].ISSM.Name == "issm1" && d.Ports[0].Nets[0].Name == "ib0" && d.Ports[1].Nets[0].Name == "ib1"
			}},
		{"an Ethernet HCA's network devices go to their ports by dev_port",
			sysfstest.HCA{Ethernet: true, Ports: 2, Nets: []string{"ens2f0", "ens2f1"}}, func(d infiniband.Device) bool {
				return d.Ports[0].Nets[0].Name == "ens2f0" && d.Ports[1].Nets[0].Name == "ens2f1"
			}},
		{"a rate with a fraction is read", sysfstest.HCA{Rate: "2.5 Gb/sec (1X SDR)", State: "1: DOWN", PhysState: "3: Disabled"},
			func(d infiniband.Device) bool {
				p := d.Ports[0]
				return p.Rate == 2.5 && p.State == infiniband.PortDown && p.PhysState == infiniband.PhysDisabled && p.State.String() == "DOWN" &&
					p.PhysState.String() == "Disabled"
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			test.hca.Function = place(0x3a)
			tree.AddHCA(test.hca)
			found := scan(t, tree)
			if len(found.Skipped) > 0 || len(found.Devices) != 1 || !test.check(found.Devices[0]) {
				t.Errorf("got %+v", found)
			}
		})
	}
}

func TestDevicesSkipsDamagedDevice(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func(tree *sysfstest.Tree, device string)
		reason string // empty: the device stays
	}{
		{"no node_guid", func(t *sysfstest.Tree, d string) { t.Remove(d + "/node_guid") }, "node_guid"},
		{"a truncated node_guid", func(t *sysfstest.Tree, d string) { t.Write(d+"/node_guid", "9c63:c003") }, "node_guid"},
		{"a node_guid with other letters", func(t *sysfstest.Tree, d string) { t.Write(d+"/node_guid", "9c63:c003:00f2:1a4g") }, "node_guid"},
		{"garbage in what nobody uses", func(t *sysfstest.Tree, d string) { t.Write(d+"/node_type", "?"); t.Write(d+"/sys_image_guid", "?") },
			""},
		{"no ports", func(t *sysfstest.Tree, d string) { t.Remove(d + "/ports/1") }, "no ports"},
		{"no ports directory", func(t *sysfstest.Tree, d string) { t.Remove(d + "/ports") }, "ports"},
		{"a port that is no number", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/one/state", "4: ACTIVE") }, "numbered"},
		{"port 0", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/0/state", "4: ACTIVE") }, "numbered"},
		{"an empty state", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/state", "") }, "state"},
		{"a state above 255", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/state", "400: ACTIVE") }, "state"},
		{"no phys_state", func(t *sysfstest.Tree, d string) { t.Remove(d + "/ports/1/phys_state") }, "phys_state"},
		{"an unknown link_layer", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/link_layer", "TokenRing") }, "link_layer"},
		{"a rate without a unit", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/rate", "400") }, "rate"},
		{"a negative rate", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/rate", "-1 Gb/sec") }, "rate"},
		{"a rate that is no number", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/rate", "NaN Gb/sec") }, "rate"},
		{"garbage in lid", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/lid", "lid") }, "lid"},
		{"a short gid", func(t *sysfstest.Tree, d string) { t.Write(d+"/ports/1/gids/0", "fe80::1") }, "gids/0"},
		{"binary in fw_ver", func(t *sysfstest.Tree, d string) { t.Write(d+"/fw_ver", "\x01\x02") }, "fw_ver"},
		{"garbage in a network device's mtu", func(t *sysfstest.Tree, d string) { t.Write(d+"/../../net/ibp3s0/mtu", "big") }, "mtu"},
		{"a network device without type", func(t *sysfstest.Tree, d string) { t.Remove(d + "/../../net/ibp3s0/type") }, "type"},
		{"an interface whose name is no text", func(t *sysfstest.Tree, d string) {
			t.Write(d+"/../../net/ib\xff/type", "32")
			t.Remove(d + "/../../net/ibp3s0")
		}, "name of UTF-8 text"},
		{"an interface with letters of its own", func(t *sysfstest.Tree, d string) {
			t.Write(d+"/../../net/ibé/type", "32")
			t.Remove(d + "/../../net/ibp3s0")
		}, ""},
		{"a link to nowhere", func(t *sysfstest.Tree, d string) { t.Remove(d) }, "no such file"},
		{"a file in place of the link", func(t *sysfstest.Tree, _ string) {
			t.Remove("class/infiniband/mlx5_0")
			t.Write("class/infiniband/mlx5_0", "")
		}, "readlink"},
		{"no fw_ver and board_id, as EFA", func(t *sysfstest.Tree, d string) {
			t.Remove(d + "/fw_ver")
			t.Remove(d + "/board_id")
		}, ""},
		{"no gids", func(t *sysfstest.Tree, d string) { t.Remove(d + "/ports/1/gids") }, ""},
		{"no lid", func(t *sysfstest.Tree, d string) { t.Remove(d + "/ports/1/lid") }, ""},
		{"no network device", func(t *sysfstest.Tree, d string) { t.Remove(d + "/../../net") }, ""},
		{"garbage in uverbs0/dev", func(t *sysfstest.Tree, _ string) { t.Write("class/infiniband_verbs/uverbs0/dev", "x:y") }, ""},
		{"no classes of character devices", func(t *sysfstest.Tree, _ string) {
			t.Remove("class/infiniband_verbs")
			t.Remove("class/infiniband_mad")
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			device := tree.AddHCA(sysfstest.HCA{Function: place(0x3a), Nets: []string{"ibp3s0"}})
			tree.AddHCA(sysfstest.HCA{Function: place(0x5d)})
			test.damage(tree, device)
			found := scan(t, tree)
			var names []string
			for _, d := range found.Devices {
				names = append(names, d.Name)
			}
			if test.reason == "" {
				if diff := cmp.Diff([]string{"mlx5_0", "mlx5_1"}, names); diff != "" {
					t.Errorf("%s\nskipped %v", diff, found.Skipped)
				}
				return
			}
			if diff := cmp.Diff([]string{"mlx5_1"}, names); diff != "" {
				t.Error(diff)
			}
			if len(found.Skipped) != 1 || found.Skipped[0].Name != "mlx5_0" || !strings.Contains(found.Skipped[0].Reason.Error(), test.reason) {
				t.Errorf("skipped %v, want mlx5_0 for a reason that mentions %q", found.Skipped, test.reason)
			}
		})
	}
}

func TestDevicesIsEmptyWithoutRDMA(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Remove("class/infiniband")
	if found := scan(t, tree); len(found.Devices)+len(found.Skipped) > 0 {
		t.Errorf("got %+v", found)
	}
	if _, err := infiniband.NewFS(tree.Sys + "/missing").Scan(t.Context()); err == nil || !strings.Contains(err.Error(), "--sysfs-root") {
		t.Errorf("a missing tree: got %v", err)
	}
}

func TestDevicesSkipsDeviceWithInvalidName(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddHCA(sysfstest.HCA{Function: place(0x3a), Name: "mlx5\xff"})
	tree.AddHCA(sysfstest.HCA{Function: place(0x5d)})
	found := scan(t, tree)
	if len(found.Devices) != 1 || found.Devices[0].Name != "mlx5_1" || len(found.Skipped) != 1 ||
		!strings.Contains(found.Skipped[0].Reason.Error(), "UTF-8") {
		t.Errorf("got %+v", found)
	}
}

func TestDevicesAreInNumericOrder(t *testing.T) {
	tree := sysfstest.New(t)
	for i, name := range []string{"mlx5_10", "mlx5_2", "mlx5_1", "efa0"} {
		tree.AddHCA(sysfstest.HCA{Function: place(0x10 + 2*i), Name: name})
	}
	var names []string
	for _, d := range scan(t, tree).Devices {
		names = append(names, d.Name)
	}
	if diff := cmp.Diff([]string{"efa0", "mlx5_1", "mlx5_2", "mlx5_10"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestDevicesReadsSoftwareDeviceWithoutFunction(t *testing.T) {
	tree := sysfstest.New(t)
	path := tree.AddHCA(sysfstest.HCA{Function: place(0x3a), Ethernet: true})
	tree.Remove("class/infiniband/mlx5_0")
	tree.Link("devices/virtual/infiniband/rxe0", path)
	tree.Remove("devices/virtual")
	for _, file := range []string{"node_type", "node_guid", "ports/1/state", "ports/1/phys_state", "ports/1/link_layer"} {
		tree.Write("devices/virtual/infiniband/rxe0/"+file, map[string]string{
			"node_type": "1: CA", "node_guid": "0250:56ff:feb5:3c11", "ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp",
			"ports/1/link_layer": "Ethernet",
		}[file])
	}
	tree.Link("class/infiniband/rxe0", "devices/virtual/infiniband/rxe0")
	found := scan(t, tree)
	if len(found.Devices) != 1 || found.Devices[0].PCI != "" || found.Devices[0].Name != "rxe0" {
		t.Errorf("got %+v", found)
	}
}

// In switchdev mode the representors of virtual functions are below the physical function, beside its own interface.
func TestPortInterfacesExcludeRepresentors(t *testing.T) {
	tree := sysfstest.New(t)
	device := tree.AddHCA(sysfstest.HCA{Function: place(0x3a), Ethernet: true, Nets: []string{"ens2f0np0"}})
	nets := strings.TrimSuffix(device, "infiniband/mlx5_0") + "net/"
	tree.Write(nets+"ens2f0np0/phys_port_name", "p0")
	for name, port := range map[string]string{"ens2f0_0": "pf0vf0", "en_sf": "pf0sf88", "pf0hpf": "c1pf0"} {
		tree.Write(nets+name+"/phys_port_name", port)
		tree.Write(nets+name+"/dev_port", "0")
		tree.Write(nets+name+"/type", "1")
		tree.Write(nets+name+"/mtu", "1500")
	}
	found := scan(t, tree)
	if diff := cmp.Diff([]infiniband.Net{{Name: "ens2f0np0", Type: infiniband.TypeEthernet, MTU: 9000}},
		found.Devices[0].Ports[0].Nets); diff != "" {
		t.Error(diff)
	}
}

// A card with bonded ports has one RDMA device, whose state the kernel takes from the bond.
func TestStatusUsesCarrierOfBond(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddHCA(sysfstest.HCA{Function: place(0x3a), Ethernet: true, Nets: []string{"ens2f0"}})
	for _, master := range []string{"bond0", "br0"} {
		tree.Write("devices/virtual/net/"+master+"/carrier", "1")
	}
	tree.Write("devices/virtual/net/bond0/bonding/mode", "active-backup 1")
	for _, test := range []struct {
		name, own, master, carrier string
		lost                       bool
	}{
		{"alone", "1", "", "", false},
		{"alone and cut off", "0", "", "", true},
		{"in a bond whose other link carries", "0", "bond0", "1", false},
		{"in a bond that is cut off", "0", "bond0", "0", true},
		{"in a bridge, cut off", "0", "br0", "1", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree.Write("class/net/ens2f0/carrier", test.own)
			tree.Remove("class/net/ens2f0/master")
			if test.master != "" {
				tree.Write("devices/virtual/net/"+test.master+"/carrier", test.carrier)
				path := "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/net/ens2f0/master"
				tree.Link(path, "devices/virtual/net/"+test.master)
			}
			if lost, err := infiniband.NewFS(tree.Sys).CarrierLost("ens2f0"); lost != test.lost || err != nil {
				t.Errorf("got %t, %v; want %t", lost, err, test.lost)
			}
		})
	}
}

func TestPortHasStatusKeysAndCounters(t *testing.T) {
	tree := sysfstest.New(t)
	device := tree.AddHCA(sysfstest.HCA{Function: place(0x3a), PKeys: []string{"0xffff", "0x0000", "0x8012", "0xffff"}})
	fs := infiniband.NewFS(tree.Sys)
	keys, err := fs.PKeys(device, 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint16{0x8012, 0xffff}, keys); diff != "" {
		t.Error(diff)
	}
	tree.Write(device+"/ports/1/counters/\xff", "1")
	counters := fs.Counters(device, 1)
	for name := range counters {
		if !utf8.ValidString(name) {
			t.Errorf("the counter %q is no text", name)
		}
	}
	if counters["port_xmit_data"] != 1000 || counters["out_of_sequence"] != 7 {
		t.Errorf("got %v", counters)
	}
	if _, found := counters["lifespan"]; found {
		t.Error("lifespan is not a counter")
	}
	tree.Write(device+"/ports/1/state", "1: DOWN")
	status, err := fs.Status(device, 1)
	if err != nil || status.State != infiniband.PortDown {
		t.Errorf("got %v, %v", status, err)
	}
	if _, err := fs.Status(device, 2); err == nil {
		t.Error("a port that is not there has a status")
	}
	if keys, err := fs.PKeys(device, 2); len(keys) > 0 || err != nil {
		t.Errorf("a port that is not there: got %v, %v", keys, err)
	}
}

func FuzzAttributesNeverStopAScan(f *testing.F) {
	f.Add("node_guid", []byte("9c63:c003:00f2:1a40\n"))
	f.Add("ports/1/state", []byte("4: ACTIVE\n"))
	f.Add("ports/1/rate", []byte("400 Gb/sec (4X NDR)\n"))
	f.Add("ports/1/gids/0", []byte("fe80:0000:0000:0000:9c63:c003:0001:0000"))
	f.Add("fw_ver", []byte{0xff})
	f.Fuzz(func(t *testing.T, attribute string, content []byte) {
		known := map[string]bool{"node_guid": true, "fw_ver": true, "board_id": true}
		for _, name := range []string{"state", "phys_state", "rate", "link_layer", "lid", "gids/0"} {
			known["ports/1/"+name] = true
		}
		if !known[attribute] {
			t.Skip("not an attribute that Scan reads")
		}
		tree := sysfstest.New(t)
		device := tree.AddHCA(sysfstest.HCA{Function: place(0x3a)})
		tree.AddHCA(sysfstest.HCA{Function: place(0x5d)})
		tree.Write(device+"/"+attribute, string(content))
		found, err := infiniband.NewFS(tree.Sys).Scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Devices)+len(found.Skipped) != 2 || found.Devices[len(found.Devices)-1].Name != "mlx5_1" {
			t.Errorf("got %+v", found)
		}
	})
}

// manyFunctions makes a tree of 4 physical functions, each with n/4-1 virtual functions. All have RDMA devices and network devices.
func manyFunctions(t testing.TB, n int) *sysfstest.Tree {
	tree := sysfstest.New(t)
	for card := range 4 {
		parent := fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", 0x10+card*0x10, 0x10+card*0x10)
		var physical string
		for i := range n / 4 {
			f := sysfstest.Function{Parent: parent, Address: fmt.Sprintf("0000:%02x:%02x.%d", 0x11+card*0x10, i/8, i%8)}
			if i == 0 {
				f.TotalVFs, f.VFs = n/4-1, n/4-1
				physical = "devices/" + parent + "/" + f.Address
			} else {
				f.PhysFn, f.VirtIndex, f.Device = physical, i-1, "0x101e"
			}
			tree.AddHCA(sysfstest.HCA{Function: f, Ethernet: true, Nets: []string{fmt.Sprintf("ens%df0v%d", card, i)}})
		}
	}
	return tree
}

func BenchmarkScan(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tree := manyFunctions(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := pci.NewFS(tree.Sys).Scan(b.Context(), pci.Class.Network); err != nil {
					b.Fatal(err)
				}
				if found, err := infiniband.NewFS(tree.Sys).Scan(b.Context()); err != nil || len(found.Devices) != n {
					b.Fatal(found, err)
				}
			}
		})
	}
}
