package inventory_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/inventory"
)

func discover(t *testing.T, roots inventory.Roots) *inventory.Inventory {
	t.Helper()
	found, err := inventory.Discover(t.Context(), roots)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func names(found *inventory.Inventory) []string {
	var list []string
	for i := range found.HCAs {
		list = append(list, found.HCAs[i].Name)
	}
	return list
}

var (
	first  = sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"}
	second = sysfstest.Function{Parent: "pci0000:5d/0000:5d:00.0", Address: "0000:5e:00.0"}
)

func TestInventorySkipsUnusableDevicesWithAReason(t *testing.T) {
	for _, test := range []struct {
		name   string
		make   func(*sysfstest.Tree)
		device string
		reason string
	}{
		{"an RDMA device without uverbs", func(tree *sysfstest.Tree) { tree.AddHCA(sysfstest.HCA{Function: first, NoVerbs: true}) }, "mlx5_1",
			"ib_uverbs"},
		{"a network card without RDMA device", func(tree *sysfstest.Tree) { tree.AddFunction(first) }, "0000:3b:00.0",
			"the driver mlx5_core made none"},
		{"a network card without driver", func(tree *sysfstest.Tree) {
			tree.AddFunction(sysfstest.Function{Parent: first.Parent, Address: first.Address, Driver: "-"})
		}, "0000:3b:00.0", "no driver has"},
		{"a damaged PCI function", func(tree *sysfstest.Tree) {
			tree.AddHCA(sysfstest.HCA{Function: first})
			tree.Write("bus/pci/devices/0000:3b:00.0/modalias", "?")
		}, "mlx5_1", "cannot be read"},
		{"a damaged RDMA device", func(tree *sysfstest.Tree) { tree.Write(tree.AddHCA(sysfstest.HCA{Function: first})+"/node_guid", "?") },
			"mlx5_1", "node_guid"},
		{"damaged partition keys", func(tree *sysfstest.Tree) {
			tree.Write(tree.AddHCA(sysfstest.HCA{Function: first})+"/ports/1/pkeys/0", "?")
		}, "mlx5_1", "partition keys"},
		{"an RDMA device whose function is not on the bus", func(tree *sysfstest.Tree) {
			tree.AddHCA(sysfstest.HCA{Function: first})
			tree.Remove("bus/pci/devices/0000:3b:00.0")
		}, "mlx5_1", "not on the bus"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			tree.AddHCA(sysfstest.HCA{Function: second})
			test.make(tree)
			found := discover(t, inventory.Roots{Sysfs: tree.Sys})
			if diff := cmp.Diff([]string{"mlx5_0"}, names(found)); diff != "" {
				t.Error(diff)
			}
			if len(found.Skipped) != 1 || found.Skipped[0].Name != test.device || !strings.Contains(found.Skipped[0].Reason, test.reason) {
				t.Errorf("skipped %+v, want %s because of %q", found.Skipped, test.device, test.reason)
			}
		})
	}
}

func TestRailsCountTheHCAsThatShareASwitchWithAGPU(t *testing.T) {
	tree := sysfstest.New(t)
	below := func(root, port string) string {
		return "pci0000:" + root + "/0000:" + root + ":01.0/0000:" + root + ":02.0/0000:" + root + ":03." + port
	}
	gpu := sysfstest.Function{Vendor: "0x10de", Device: "0x2330", Class: "0x030200", Driver: "nvidia"}
	for _, place := range []struct{ root, gpu, nic string }{{"20", "0000:21:00.0", "0000:22:00.0"}, {"10", "0000:11:00.0", "0000:12:00.0"}} {
		gpu.Parent, gpu.Address = below(place.root, "0"), place.gpu
		tree.AddFunction(gpu)
		tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: below(place.root, "1"), Address: place.nic}})
	}
	tree.AddHCA(sysfstest.HCA{Function: first, Ethernet: true}) // a storage NIC on a root port
	found := discover(t, inventory.Roots{Sysfs: tree.Sys})
	var rails []int
	for i := range found.HCAs {
		rails = append(rails, found.HCAs[i].Rail)
	}
	if diff := cmp.Diff([]int{1, 0, -1}, rails); diff != "" {
		t.Error(diff)
	}
}

func TestVirtualFunctionsHaveInterfacesOfPhysicalFunction(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(*sysfstest.Tree)
	}{
		{"where it is an HCA too", func(tree *sysfstest.Tree) {
			f := first
			f.TotalVFs, f.VFs = 8, 1
			tree.AddHCA(sysfstest.HCA{Function: f, Ethernet: true, Nets: []string{"ens2f0"}})
		}},
		{"where it has no RDMA device", func(tree *sysfstest.Tree) {
			f := first
			f.TotalVFs, f.VFs = 8, 1
			tree.Write(tree.AddFunction(f)+"/net/ens2f0/ifindex", "3")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			test.make(tree)
			tree.AddHCA(sysfstest.HCA{Name: "vf", Ethernet: true, Nets: []string{"ens2f0v0"}, Function: sysfstest.Function{
				Parent: first.Parent, Address: "0000:3b:00.2", PhysFn: "devices/" + first.Parent + "/" + first.Address,
			}})
			found := discover(t, inventory.Roots{Sysfs: tree.Sys})
			i := slices.IndexFunc(found.HCAs, func(h inventory.HCA) bool { return h.Name == "vf" })
			if i < 0 || !slices.Equal(found.HCAs[i].PhysicalNets, []string{"ens2f0"}) || found.HCAs[i].Function.VirtualIndex != 0 {
				t.Errorf("found %+v", found.HCAs)
			}
		})
	}
}

func TestGPUDirectFollowsNode(t *testing.T) {
	for _, test := range []struct {
		name            string
		module, version string
		peers           bool // ib_core is MLNX_OFED's
		want            inventory.GPUDirect
	}{
		{"nothing", "", "", false, inventory.GPUDirectNone},
		{"the proprietary driver without peermem", "", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15", true,
			inventory.GPUDirectNone},
		{"the open driver", "", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01", false, inventory.GPUDirectDMABuf},
		{"peermem", "nvidia_peermem", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01", true, inventory.GPUDirectPeerMem},
		{"peermem that Linux's own ib_core does not ask", "nvidia_peermem", "", false, inventory.GPUDirectNone},
		{"peermem of old", "nv_peer_mem", "", true, inventory.GPUDirectPeerMem},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			if test.module != "" {
				tree.Write("module/"+test.module+"/refcnt", "0")
			}
			if test.peers {
				tree.Write("kernel/mm/memory_peers/version", "1.0")
			}
			proc := t.TempDir()
			if err := os.MkdirAll(filepath.Join(proc, "driver/nvidia"), 0o755); err != nil {
				t.Fatal(err)
			}
			if test.version != "" {
				if err := os.WriteFile(filepath.Join(proc, "driver/nvidia/version"), []byte(test.version), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := discover(t, inventory.Roots{Sysfs: tree.Sys, Proc: proc}).GPUDirect; got != test.want {
				t.Errorf("got %s", got)
			}
		})
	}
}
