package infiniband_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/sysfstest"
)

const card = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"

// eswitch adds a card in switchdev mode: an RDMA device with ports for vports, and interfaces with their phys_port_name.
func eswitch(t *testing.T, ports int, nets map[string]string) (*sysfstest.Tree, string) {
	t.Helper()
	tree := sysfstest.New(t)
	device := tree.AddHCA(sysfstest.HCA{Ethernet: true, Ports: ports, Function: sysfstest.Function{
		Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"}})
	for name, port := range nets {
		net := card + "/net/" + name
		tree.Write(net+"/type", "1")
		tree.Write(net+"/mtu", "1500")
		tree.Write(net+"/dev_port", "0")
		tree.Write(net+"/phys_port_name", port)
		tree.Link("class/net/"+name, net)
	}
	return tree, device
}

func one(t *testing.T, tree *sysfstest.Tree) infiniband.Device {
	t.Helper()
	found, err := infiniband.NewFS(tree.Sys).Scan(t.Context())
	if err != nil || len(found.Devices) != 1 || len(found.Skipped) > 0 {
		t.Fatalf("found %+v, %v", found, err)
	}
	return found.Devices[0]
}

func netsOf(d infiniband.Device) (names []string) {
	for _, port := range d.Ports {
		for _, net := range port.Nets {
			names = append(names, net.Name)
		}
	}
	return names
}

func TestScanGivesESwitchOnlyItsUplink(t *testing.T) {
	uplink := map[string]string{"ens2f0np0": "p0"}
	for _, test := range []struct {
		name  string
		ports int
		nets  map[string]string
	}{
		{"with two VFs", 4, map[string]string{"ens2f0np0": "p0", "eth0": "pf0vf0", "eth1": "pf0vf1"}},
		{"with scalable functions", 4, map[string]string{"ens2f0np0": "p0", "eth0": "pf0sf88", "eth1": "c1pf0vf1"}},
		{"with a port for one VF", 2, map[string]string{"ens2f0np0": "p0", "eth0": "pf0vf0"}},
		{"with as many interfaces as ports", 3, map[string]string{"ens2f0np0": "p0", "eth0": "pf0vf0", "eth1": "pf0vf1"}},
		{"with 130 ports and no VF yet", 130, uplink},
		{"with 300 ports", 300, uplink},
		{"with 1000 ports", 1000, uplink},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree, device := eswitch(t, test.ports, test.nets)
			// A port of a vport may be in any state: it is never read.
			tree.Write(fmt.Sprintf("%s/ports/%d/state", device, test.ports), "?")
			d := one(t, tree)
			if len(d.Ports) != 1 || d.Ports[0].Number != 1 || !d.Switchdev || d.RawOnly {
				t.Fatalf("got the ports %+v, switchdev %t, raw %t", d.Ports, d.Switchdev, d.RawOnly)
			}
			if diff := cmp.Diff([]string{"ens2f0np0"}, netsOf(d)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestScanFindsUplinkPortByItsGIDs(t *testing.T) {
	tree, device := eswitch(t, 130, map[string]string{"ens2f0np0": "p0", "eth0": "pf0vf0"})
	tree.Write(device+"/ports/130/gid_attrs/ndevs/0", "ens2f0np0")
	if d := one(t, tree); len(d.Ports) != 1 || d.Ports[0].Number != 130 {
		t.Errorf("got %+v", d.Ports)
	}
}

func TestScanReportsESwitchWithoutGIDs(t *testing.T) {
	for name, damage := range map[string]func(*sysfstest.Tree, string){
		"no table": func(tree *sysfstest.Tree, device string) { tree.Remove(device + "/ports/1/gids") },
		"empty entries": func(tree *sysfstest.Tree, device string) {
			tree.Write(device+"/ports/1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000")
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree, device := eswitch(t, 3, map[string]string{"ens2f0np0": "p0", "eth0": "pf0vf0"})
			damage(tree, device)
			if d := one(t, tree); !d.RawOnly {
				t.Errorf("got %+v", d)
			}
		})
	}
	t.Run("by phys_switch_id", func(t *testing.T) {
		tree, device := eswitch(t, 2, map[string]string{"ens2f0np0": "p0"})
		tree.Write(card+"/net/ens2f0np0/phys_switch_id", "1c2d3e0003a1b2c3")
		tree.Remove(device + "/ports/1/gids")
		if d := one(t, tree); !d.RawOnly {
			t.Errorf("got %+v", d)
		}
	})
}

func TestScanKeepsPortsOfCardInLegacyMode(t *testing.T) {
	tree, _ := eswitch(t, 2, map[string]string{"ens2f0np0": "p0"})
	if d := one(t, tree); d.Switchdev || len(d.Ports) != 2 {
		t.Errorf("got %+v", d)
	}
}

// The second port of a dual-port RoCE device has its interface on the card's next function.
func TestScanFindsSecondPortOfRoCEDeviceByItsGIDs(t *testing.T) {
	tree, device := eswitch(t, 2, map[string]string{"ens2f0np0": "p0"})
	addNet(tree, "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/net/ens2f1np1")
	addNet(tree, "devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/net/eno1")
	tree.Write(device+"/ports/1/gid_attrs/ndevs/0", "ens2f0np0")
	tree.Write(device+"/ports/2/gid_attrs/ndevs/0", "ens2f1np1")
	d := one(t, tree)
	if len(d.Ports) != 2 || len(d.Ports[1].Nets) != 1 || d.Ports[1].Nets[0].Name != "ens2f1np1" {
		t.Errorf("got %+v", d.Ports)
	}
	// The interface of port 2 is in a pod, where it has the name of another card's interface here.
	tree.Write(device+"/ports/2/gid_attrs/ndevs/0", "eno1")
	if d := one(t, tree); len(d.Ports[1].Nets) != 0 {
		t.Errorf("an interface of another card: %+v", d.Ports)
	}
}

func addNet(tree *sysfstest.Tree, path string) {
	tree.Write(path+"/type", "1")
	tree.Write(path+"/mtu", "9000")
	tree.Write(path+"/carrier", "1")
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			tree.Link("class/net"+path[i:], path)
			return
		}
	}
}

func TestScanGivesLAGBothOfItsInterfaces(t *testing.T) {
	tree, _ := eswitch(t, 1, map[string]string{"ens2f0np0": "p0"})
	addNet(tree, "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/net/ens2f1np1")
	addNet(tree, "devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/net/eno1")
	const bond = "devices/virtual/net/bond0"
	addNet(tree, bond)
	tree.Write(bond+"/bonding/mode", "802.3ad 4")
	tree.Write(bond+"/bonding/slaves", "ens2f0np0 ens2f1np1 eno1")
	for _, net := range []string{card + "/net/ens2f0np0", "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/net/ens2f1np1",
		"devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/net/eno1"} {
		tree.Link(net+"/master", bond)
	}
	if diff := cmp.Diff([]string{"bond0", "ens2f0np0", "ens2f1np1"}, netsOf(one(t, tree))); diff != "" {
		t.Error(diff)
	}
	// Two RDMA devices in a bond are no LAG.
	tree.Write("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/infiniband/mlx5_1/node_type", "1: CA")
	if diff := cmp.Diff([]string{"bond0", "ens2f0np0"}, netsOf(one(t, tree))); diff != "" {
		t.Error(diff)
	}
}
