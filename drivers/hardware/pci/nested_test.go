package pci_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/hardware/sysfstest"
)

const vmd = "pci0000:17/0000:17:05.5/pci10000:00"

func TestScanReadsFunctionsBelowNestedRootComplex(t *testing.T) {
	for _, test := range []struct {
		name, parent, address, root string
		bridges                     []pci.Address
		at                          pci.Address
	}{
		{"Intel VMD", vmd + "/10000:00:02.0", "10000:01:00.0", "pci0000:17", []pci.Address{"10000:00:02.0"}, "10000:00:02.0"},
		{"Intel VMD without a root port", vmd, "10000:00:04.0", "pci0000:17", nil, "10000:00:04.0"},
		{"two levels", vmd + "/10000:00:02.0/10000:01:00.0/pci10001:00/10001:00:01.0", "10001:01:00.0", "pci0000:17",
			[]pci.Address{"10001:00:01.0"}, "10001:00:01.0"},
		{"Xen", "pci-0/pci0000:00", "0000:00:00.0", "pci0000:00", nil, "0000:00:00.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			tree.AddFunction(sysfstest.Function{Parent: test.parent, Address: test.address})
			bus := scan(t, tree, nil)
			f := bus.Function(pci.Address(test.address))
			if f == nil || f.Root != test.root || f.Switch != test.at {
				t.Fatalf("got %+v, skipped %v", f, bus.Skipped)
			}
			if diff := cmp.Diff(test.bridges, f.Bridges); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestScanDoesNotReportFunctionsOfOtherClasses(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"})
	nvme := sysfstest.Function{Parent: "pci0000:17/nonsense", Address: "0000:18:00.0", Vendor: "0x144d", Class: "0x010802", Driver: "nvme"}
	tree.AddFunction(nvme)
	nvme.Parent, nvme.Address = "pci0000:17", "0000:17:03.0"
	tree.Write(tree.AddFunction(nvme)+"/numa_node", "?")
	bus := scan(t, tree, pci.Class.Network)
	if len(bus.Functions) != 1 || len(bus.Skipped) > 0 {
		t.Errorf("got %v, skipped %v", bus.Functions, bus.Skipped)
	}
	if bus := scan(t, tree, nil); len(bus.Skipped) != 2 || bus.Skipped[0].Class != 0x010802 {
		t.Errorf("all classes: skipped %v", bus.Skipped)
	}
}

func TestVPDFindsFieldsOfReadOnlyResource(t *testing.T) {
	tree := sysfstest.New(t)
	path := tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"})
	fs := pci.NewFS(tree.Sys)
	for _, test := range []struct{ name, data, want string }{
		{"whole", "\x82\x04\x00CX-8\x90\x0d\x00PN\x02ABV3\x05abcde\x78", "abcde"},
		{"without V3", "\x82\x04\x00CX-8\x90\x05\x00PN\x02AB\x78", ""},
		{"cut off", "\x82\x04\x00CX-8\x90\x0d\x00PN\x02ABV3", ""},
		{"a length beyond its resource", "\x90\x05\x00V3\x20ab\x78", ""},
		{"a resource of the read-write area", "\x91\x08\x00V3\x05abcde\x78", ""},
		{"only zeros", "\x00\x00\x00\x00", ""},
		{"two bytes", "\x90\x01", ""},
		{"nothing", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree.Write(path+"/vpd", test.data)
			if got := fs.VPD(path, "V3"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	tree.Remove(path + "/vpd")
	if got := fs.VPD(path, "V3"); got != "" {
		t.Errorf("without a file: %q", got)
	}
}
