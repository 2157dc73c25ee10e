package inventory_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/inventory"
)

func TestDiscoverIgnoresDrivesBelowVMD(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddHCA(sysfstest.HCA{Function: first})
	const vmd = "pci0000:17/0000:17:05.5/pci10000:00"
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:17", Address: "0000:17:05.5", Vendor: "0x8086", Class: "0x010400", Driver: "vmd"})
	tree.AddFunction(sysfstest.Function{Parent: vmd, Address: "10000:00:02.0", Vendor: "0x8086", Class: "0x060400", Driver: "pcieport"})
	drive := tree.AddFunction(sysfstest.Function{Parent: vmd + "/10000:00:02.0", Address: "10000:01:00.0", Vendor: "0x144d",
		Class: "0x010802", Driver: "nvme", NUMANode: "?"})
	gpu := tree.AddFunction(sysfstest.Function{Parent: "pci0000:60/0000:60:00.0", Address: "0000:61:00.0", Vendor: "0x10de",
		Class: "0x030200", Driver: "nvidia", NUMANode: "?"})
	if found := discover(t, inventory.Roots{Sysfs: tree.Sys}); len(found.HCAs) != 1 || len(found.Skipped) > 0 || found.Damaged() {
		t.Errorf("found %v, skipped %+v", names(found), found.Skipped)
	}
	tree.Write(drive+"/modalias", "?")
	tree.Write(gpu+"/modalias", "?")
	if found := discover(t, inventory.Roots{Sysfs: tree.Sys}); len(found.Skipped) > 0 || found.Damaged() {
		t.Errorf("functions of unknown class: skipped %+v", found.Skipped)
	}
	tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: vmd + "/10000:00:03.0", Address: "10000:02:00.0"}})
	if found := discover(t, inventory.Roots{Sysfs: tree.Sys}); len(found.HCAs) != 2 || found.HCAs[1].Function.Root != "pci0000:17" {
		t.Errorf("an HCA below VMD: found %v, skipped %+v", names(found), found.Skipped)
	}
}

func TestDiscoverSkipsPhysicalFunctionInSwitchdevModeAndKeepsItsVFs(t *testing.T) {
	tree := sysfstest.New(t)
	pf := first
	pf.TotalVFs, pf.VFs = 8, 1
	device := tree.AddHCA(sysfstest.HCA{Function: pf, Ethernet: true, Ports: 10, Nets: []string{"ens2f0np0"}})
	tree.Remove(device + "/ports/1/gids")
	net := "devices/" + first.Parent + "/" + first.Address + "/net/eth0"
	tree.Write(net+"/type", "1")
	tree.Write(net+"/phys_port_name", "pf0vf0")
	tree.AddHCA(sysfstest.HCA{Name: "vf", Ethernet: true, Nets: []string{"ens2f0v0"}, Function: sysfstest.Function{
		Parent: first.Parent, Address: "0000:3b:00.2", PhysFn: "devices/" + first.Parent + "/" + first.Address}})
	found := discover(t, inventory.Roots{Sysfs: tree.Sys})
	if diff := cmp.Diff([]string{"vf"}, names(found)); diff != "" {
		t.Fatal(diff)
	}
	if len(found.Skipped) != 1 || !strings.Contains(found.Skipped[0].Reason, "switchdev") || found.Damaged() {
		t.Errorf("skipped %+v", found.Skipped)
	}
	if diff := cmp.Diff([]string{"ens2f0np0"}, found.HCAs[0].PhysicalNets); diff != "" {
		t.Errorf("interfaces of the physical function: %s", diff)
	}
}

func TestDiscoverGivesPlanesToTheirHCA(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddHCA(sysfstest.HCA{Function: first, Nets: []string{"ibs1"}})
	const function = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
	const smi = function + "/infiniband/smi1"
	for file, text := range map[string]string{"node_guid": "9c63:c003:0000:0001", "ports/1/state": "4: ACTIVE",
		"ports/1/link_layer": "InfiniBand",
		"ports/1/phys_state": "5: LinkUp", "ports/2/state": "4: ACTIVE", "ports/2/link_layer": "InfiniBand", "ports/2/phys_state": "5: LinkUp"} {
		tree.Write(smi+"/"+file, text)
	}
	tree.Link("class/infiniband/smi1", smi)
	for _, port := range []string{"1", "2"} {
		umad := function + "/infiniband_mad/umad5" + port
		tree.Write(umad+"/dev", "231:5"+port)
		tree.Write(umad+"/ibdev", "smi1")
		tree.Write(umad+"/port", port)
		tree.Link("class/infiniband_mad/umad5"+port, umad)
	}
	found := discover(t, inventory.Roots{Sysfs: tree.Sys})
	if len(found.HCAs) != 1 || len(found.Skipped) > 0 {
		t.Fatalf("found %v, skipped %+v", names(found), found.Skipped)
	}
	var nodes []string
	for _, c := range found.HCAs[0].CharDevices() {
		nodes = append(nodes, c.Name)
	}
	if diff := cmp.Diff([]string{"uverbs0", "umad0", "issm0", "umad51", "umad52"}, nodes); diff != "" {
		t.Error(diff)
	}
}

func TestDiscoverNamesTheModuleThatIsMissing(t *testing.T) {
	for _, test := range []struct{ driver, loaded, with, without string }{
		{"mlx5_core", "", "is the module mlx5_ib loaded", ""},
		{"mlx5_core", "mlx5_ib", "the driver mlx5_core made none", "loaded?"},
		{"ice", "", "is the module irdma loaded", "mlx5"},
		{"bnxt_en", "", "is the module bnxt_re loaded", "mlx5"},
		{"e1000e", "", "the driver e1000e made none", "module"},
	} {
		t.Run(test.driver+test.loaded, func(t *testing.T) {
			tree := sysfstest.New(t)
			f := first
			f.Driver = test.driver
			tree.AddFunction(f)
			if test.loaded != "" {
				tree.Write("module/"+test.loaded+"/refcnt", "0")
			}
			found := discover(t, inventory.Roots{Sysfs: tree.Sys})
			if len(found.Skipped) != 1 || !strings.Contains(found.Skipped[0].Reason, test.with) ||
				test.without != "" && strings.Contains(found.Skipped[0].Reason, test.without) {
				t.Errorf("skipped %+v", found.Skipped)
			}
		})
	}
}

// On Grace the NIC has a root complex of its own, and a function beside the GPU that reads and writes its memory.
func TestDiscoverPlacesNICAtItsDataDirectFunction(t *testing.T) {
	tree := sysfstest.New(t)
	vpd := func(card string) string {
		return "\x90" + string(rune(len(card)+3)) + "\x00V3" + string(rune(len(card))) + card + "\x78"
	}
	for i, card := range []string{"card-a", "card-b"} {
		nic, gpu := []string{"0000", "0002"}[i], []string{"0009", "0008"}[i] // crossed: the VPD joins them, and no order
		tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci" + nic + ":00/" + nic + ":00:00.0", Address: nic + ":03:00.0",
			Device: "0x1023"}})
		tree.Write("bus/pci/devices/"+nic+":03:00.0/vpd", vpd(card))
		top := "pci" + gpu + ":00/" + gpu + ":00:00.0/" + gpu + ":01:00.0/" + gpu + ":02:0"
		tree.AddFunction(sysfstest.Function{Parent: top + "0.0", Address: gpu + ":03:00.0", Device: "0x2100", Class: "0x080100"})
		tree.Write("bus/pci/devices/"+gpu+":03:00.0/vpd", vpd(card))
		tree.AddFunction(sysfstest.Function{Parent: top + "1.0/" + gpu + ":04:00.0/" + gpu + ":05:00.0", Address: gpu + ":06:00.0",
			Vendor: "0x10de", Device: "0x31c2", Class: "0x030200", Driver: "nvidia"})
	}
	found := discover(t, inventory.Roots{Sysfs: tree.Sys})
	for i, want := range []string{"0009", "0008"} {
		near := found.HCAs[i].Nearest()
		if near.Root != "pci"+want+":00" || string(near.Switch) != want+":01:00.0" || found.HCAs[i].Rail != i {
			t.Errorf("%s: %s, %s, rail %d; want the GPU's root and switch of domain %s", found.HCAs[i].Name, near.Root, near.Switch,
				found.HCAs[i].Rail, want)
		}
	}
	tree.Remove("bus/pci/devices/0000:03:00.0/vpd")
	if h := discover(t, inventory.Roots{Sysfs: tree.Sys}).HCAs[0]; h.Nearest().Root != "pci0000:00" || h.Rail != -1 {
		t.Errorf("without VPD: %+v", h.Nearest())
	}
}

func TestOpenedNamesMissingDevices(t *testing.T) {
	for _, test := range []struct {
		name   string
		hca    sysfstest.HCA
		remove []string // from /dev/infiniband
		sysfs  string   // removed from sysfs
		want   string
	}{
		{"all is there", sysfstest.HCA{}, nil, "", ""},
		{"uverbs", sysfstest.HCA{}, []string{"uverbs0"}, "", "/infiniband/uverbs0"},
		{"umad", sysfstest.HCA{}, []string{"umad0"}, "", "/infiniband/umad0"},
		{"issm, which only a subnet manager needs", sysfstest.HCA{}, []string{"issm0"}, "", ""},
		{"rdma_cm", sysfstest.HCA{Ethernet: true}, []string{"rdma_cm"}, "", "udev or devtmpfs"},
		{"rdma_ucm", sysfstest.HCA{Ethernet: true}, []string{"rdma_cm"}, "class/misc/rdma_cm", "modprobe rdma_ucm"},
		{"ib_umad", sysfstest.HCA{NoUMAD: true}, nil, "class/infiniband_mad", "modprobe ib_umad"},
		{"a device without umad", sysfstest.HCA{NoUMAD: true, Ethernet: true}, nil, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			test.hca.Function = first
			tree.AddHCA(test.hca)
			for _, name := range test.remove {
				tree.Remove("../dev/infiniband/" + name)
			}
			if test.sysfs != "" {
				tree.Remove(test.sysfs)
			}
			found := discover(t, inventory.Roots{Sysfs: tree.Sys})
			got := inventory.DeviceNodes{Dev: driver.Here(tree.Dev), Sysfs: tree.Sys}.Missing(&found.HCAs[0], 1)
			if !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	t.Run("EFA without rdma_cm", func(t *testing.T) {
		tree := sysfstest.New(t)
		device := tree.AddHCA(sysfstest.HCA{Function: first, NoUMAD: true})
		tree.Write(device+"/ports/1/link_layer", string(infiniband.Unspecified))
		tree.Remove("../dev/infiniband/rdma_cm")
		found := discover(t, inventory.Roots{Sysfs: tree.Sys})
		if got := (inventory.DeviceNodes{Dev: driver.Here(tree.Dev), Sysfs: tree.Sys}).Missing(&found.HCAs[0], 1); got != "" {
			t.Errorf("got %q", got)
		}
	})
}

func TestDiscoverNamesThePortOfACardsSecondFunction(t *testing.T) {
	tree := sysfstest.New(t)
	device := tree.AddHCA(sysfstest.HCA{Function: first, Ethernet: true, Ports: 2, Nets: []string{"ens1f0np0"}})
	second := first
	second.Address = "0000:3b:00.1"
	net := tree.AddFunction(second) + "/net/ens1f1np1"
	tree.Write(net+"/type", "1")
	tree.Link("class/net/ens1f1np1", net)
	tree.Write(device+"/ports/2/gid_attrs/ndevs/0", "ens1f1np1")
	found := discover(t, inventory.Roots{Sysfs: tree.Sys})
	if len(found.HCAs) != 1 || len(found.HCAs[0].Nets()) != 2 {
		t.Fatalf("found %+v", found.HCAs)
	}
	if len(found.Skipped) != 1 || !strings.Contains(found.Skipped[0].Reason, "port 2 of mlx5_0 (0000:3b:00.0)") {
		t.Errorf("skipped %+v", found.Skipped)
	}
}

// removal is a context that removes an entry at its nth check: between two devices that are read.
type removal struct {
	context.Context
	left   atomic.Int64
	remove func()
}

func (r *removal) Err() error {
	if r.left.Add(-1) == 0 {
		r.remove()
	}
	return r.Context.Err()
}

func TestDiscoverLeavesOutVFThatVanishesMeanwhile(t *testing.T) {
	const most = 1000
	stages := map[string]bool{}
	for n := int64(1); ; n++ {
		tree := sysfstest.New(t)
		pf := first
		pf.TotalVFs, pf.VFs = 8, 1
		tree.AddHCA(sysfstest.HCA{Function: pf})
		parent := "devices/" + first.Parent
		vf := tree.AddHCA(sysfstest.HCA{Name: "vf", Nets: []string{"ibv0"}, Function: sysfstest.Function{Parent: first.Parent,
			Address: "0000:3b:00.2", PhysFn: parent + "/" + first.Address}})
		ctx := &removal{Context: t.Context(), remove: func() {
			for _, path := range []string{"class/infiniband/vf", "class/net/ibv0", vf, "bus/pci/devices/0000:3b:00.2", parent + "/0000:3b:00.2",
				parent + "/" + first.Address + "/virtfn0"} {
				tree.Remove(path)
			}
		}}
		ctx.left.Store(n)
		found, err := inventory.Discover(ctx, inventory.Roots{Sysfs: tree.Sys})
		if err != nil {
			t.Fatalf("removed at step %d: %v", n, err)
		}
		got := names(found)
		if !slices.Contains(got, "mlx5_0") || len(found.Skipped) > 0 || found.Damaged() {
			t.Errorf("removed at step %d: found %v, skipped %+v", n, got, found.Skipped)
		}
		stages[fmt.Sprint(got)] = true
		if ctx.left.Load() > 0 || n == most {
			break // no entry was removed: Discover has fewer steps
		}
	}
	if len(stages) != 2 {
		t.Errorf("the virtual function was always there or never: %v", stages)
	}
}
