package bench_test

import (
	"fmt"
	"testing"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/inventory"
)

// BenchmarkDiscovery reads nodes of 8, 64 and 512 functions, as compare.sh does, and 512 functions beside what a node may have besides.
func BenchmarkDiscovery(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { discover(b, functions(b, n), n) })
	}
	b.Run("512 beside an e-switch of 130 ports and 24 drives below VMD", func(b *testing.B) {
		tree := functions(b, 512)
		addESwitch(tree)
		addVMD(tree)
		discover(b, tree, 513)
	})
}

func discover(b *testing.B, tree *sysfstest.Tree, want int) {
	b.Helper()
	for b.Loop() {
		found, err := inventory.Discover(b.Context(), inventory.Roots{Sysfs: tree.Sys})
		if err != nil || len(found.HCAs) != want || len(found.Skipped) > 0 {
			b.Fatalf("found %v, %v", found, err)
		}
	}
}

// addESwitch adds a card in switchdev mode with 128 representors.
func addESwitch(tree *sysfstest.Tree) {
	const parent, address = "pci0000:80/0000:80:00.0", "0000:81:00.0"
	tree.AddHCA(sysfstest.HCA{Name: "switch", Ethernet: true, Ports: 130, Nets: []string{"ens9f0np0"},
		Function: sysfstest.Function{Parent: parent, Address: address}})
	for i := range 128 {
		net := fmt.Sprintf("devices/%s/%s/net/eth%d", parent, address, i)
		tree.Write(net+"/type", "1")
		tree.Write(net+"/mtu", "1500")
		tree.Write(net+"/dev_port", "0")
		tree.Write(net+"/phys_port_name", fmt.Sprintf("pf0vf%d", i))
		tree.Link(fmt.Sprintf("class/net/eth%d", i), net)
	}
}

// addVMD adds NVMe drives below Intel's Volume Management Device.
func addVMD(tree *sysfstest.Tree) {
	const vmd = "pci0000:97/0000:97:05.5/pci10000:00"
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:97", Address: "0000:97:05.5", Vendor: "0x8086", Class: "0x010400", Driver: "vmd"})
	for i := range 24 {
		tree.AddFunction(sysfstest.Function{Parent: vmd + "/10000:00:02.0", Address: fmt.Sprintf("10000:%02x:00.0", i+1), Vendor: "0x144d",
			Class: "0x010802", Driver: "nvme"})
	}
}
