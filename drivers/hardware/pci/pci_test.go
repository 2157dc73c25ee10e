package pci_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/hardware/sysfstest"
)

func scan(t *testing.T, tree *sysfstest.Tree, want func(pci.Class) bool) *pci.Bus {
	t.Helper()
	bus, err := pci.NewFS(tree.Sys).Scan(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return bus
}

func TestScanReadsFunction(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0", NUMANode: "1", ACPIIndex: "101",
		TotalVFs: 8})
	bus := scan(t, tree, nil)
	want := []pci.Function{{
		Address: "0000:3b:00.0", Path: "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0",
		Vendor: 0x15b3, Device: 0x1021, Class: 0x020000, Driver: "mlx5_core",
		NUMANode: 1, ACPIIndex: 101, Root: "pci0000:3a", Bridges: []pci.Address{"0000:3a:00.0"}, Switch: "0000:3a:00.0", VirtualIndex: -1,
		TotalVFs: 8,
	}}
	if diff := cmp.Diff(want, bus.Functions); diff != "" {
		t.Error(diff)
	}
	if len(bus.Skipped) > 0 {
		t.Errorf("skipped %v", bus.Skipped)
	}
}

// The kernel writes both files: these are the functions of the machine that runs this test.
func TestModaliasMatchesFilesOfThisMachine(t *testing.T) {
	bus, err := pci.NewFS("/sys").Scan(t.Context(), nil)
	if err != nil || len(bus.Functions) == 0 {
		t.Skipf("skipped: this machine has no PCI functions to compare (%v)", err)
	}
	for _, f := range bus.Functions {
		for file, got := range map[string]string{
			"vendor": fmt.Sprintf("0x%04x", f.Vendor), "device": fmt.Sprintf("0x%04x", f.Device), "class": fmt.Sprintf("0x%06x", f.Class),
		} {
			text, err := os.ReadFile(filepath.Join("/sys", f.Path, file))
			if want := strings.TrimSpace(string(text)); err != nil || got != want {
				t.Errorf("%s: %s is %s, its file says %q (%v)", f.Address, file, got, want, err)
			}
		}
	}
	for _, s := range bus.Skipped {
		if strings.Contains(s.Reason.Error(), "modalias") {
			t.Errorf("%s was skipped: %v", s.Name, s.Reason)
		}
	}
}

// Older captures and hand-made trees have only the three files.
func TestFunctionWithoutModaliasIsReadFromItsFiles(t *testing.T) {
	tree := sysfstest.New(t)
	path := tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0", Class: "0x020700"})
	want := scan(t, tree, nil).Functions
	tree.Remove(path + "/modalias")
	if diff := cmp.Diff(want, scan(t, tree, nil).Functions); diff != "" || len(want) != 1 || want[0].Class != 0x020700 {
		t.Errorf("got %v, %s", want, diff)
	}
}

func TestNUMANodeIsTheOnlyOneWhenUnknown(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes []string
		want  int
	}{
		{"on a machine with one", []string{"node0"}, 0},
		{"but not on one with two", []string{"node0", "node1"}, pci.NUMAUnknown},
		{"nor where the kernel has none", nil, pci.NUMAUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0", NUMANode: "-1"})
			for _, node := range test.nodes {
				tree.Write("devices/system/node/"+node+"/cpulist", "0-47")
			}
			if got := scan(t, tree, nil).Functions[0].NUMANode; got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestVirtualFunctionsHavePhysicalFunctionAndIndex(t *testing.T) {
	tree := sysfstest.New(t)
	physical := tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0", TotalVFs: 8, VFs: 2})
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.2", PhysFn: physical, VirtIndex: 1})
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.1", PhysFn: physical, VirtIndex: 0})
	bus := scan(t, tree, nil)
	for i, address := range []pci.Address{"0000:3b:00.1", "0000:3b:00.2"} {
		f := bus.Function(address)
		if f == nil || !f.Virtual() || f.PhysicalFunction != "0000:3b:00.0" || f.VirtualIndex != i {
			t.Errorf("%s: %+v", address, f)
		}
	}
	if bus.Function("0000:00:00.0") != nil {
		t.Error("found a function that is not there")
	}
}

func TestSwitchIsTheOneSharedWithOtherCards(t *testing.T) {
	const downstream = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:%02x.0"
	for _, test := range []struct {
		name    string
		parents map[string]string // address -> parent
		want    map[pci.Address]pci.Address
	}{
		{
			"a NIC and a GPU below one switch share it",
			map[string]string{"0000:18:00.0": fmt.Sprintf(downstream, 0), "0000:19:00.0": fmt.Sprintf(downstream, 1)},
			map[pci.Address]pci.Address{"0000:18:00.0": "0000:16:00.0", "0000:19:00.0": "0000:16:00.0"},
		},
		{
			"a function on a root port has that one",
			map[string]string{"0000:3b:00.0": "pci0000:3a/0000:3a:00.0"},
			map[pci.Address]pci.Address{"0000:3b:00.0": "0000:3a:00.0"},
		},
		{
			"functions directly on the root complex, as in virtual machines, have themselves",
			map[string]string{"0000:00:05.0": "pci0000:00", "0000:00:06.0": "pci0000:00"},
			map[pci.Address]pci.Address{"0000:00:05.0": "0000:00:05.0", "0000:00:06.0": "0000:00:06.0"},
		},
		{
			"a card with a switch of its own counts as below the switch that it shares",
			map[string]string{"0000:18:00.0": fmt.Sprintf(downstream, 0), "0000:1c:00.0": fmt.Sprintf(downstream, 1) + "/0000:1a:00.0/0000:1b:00.0"},
			map[pci.Address]pci.Address{"0000:18:00.0": "0000:16:00.0", "0000:1c:00.0": "0000:16:00.0"},
		},
		{
			"a card alone behind its own switch keeps that one",
			map[string]string{"0000:18:00.0": fmt.Sprintf(downstream, 0)},
			map[pci.Address]pci.Address{"0000:18:00.0": "0000:16:00.0"},
		},
		{
			"of two cascaded switches the nearer shared one counts",
			map[string]string{
				"0000:1c:00.0": fmt.Sprintf(downstream, 0) + "/0000:1a:00.0/0000:1b:00.0",
				"0000:1d:00.0": fmt.Sprintf(downstream, 0) + "/0000:1a:00.0/0000:1b:01.0",
				"0000:20:00.0": fmt.Sprintf(downstream, 1),
			},
			map[pci.Address]pci.Address{"0000:1c:00.0": "0000:1a:00.0", "0000:1d:00.0": "0000:1a:00.0", "0000:20:00.0": "0000:16:00.0"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			for address, parent := range test.parents {
				tree.AddFunction(sysfstest.Function{Parent: parent, Address: address})
			}
			bus := scan(t, tree, nil)
			got := map[pci.Address]pci.Address{}
			for _, f := range bus.Functions {
				got[f.Address] = f.Switch
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestScanReturnsRequestedClasses(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0", Class: "0x020700"})
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.1", Class: "0x030200"})
	bus := scan(t, tree, pci.Class.Network)
	if len(bus.Functions) != 1 || bus.Functions[0].Address != "0000:3b:00.0" {
		t.Errorf("got %+v", bus.Functions)
	}
}

func TestScanSkipsDamagedFunction(t *testing.T) {
	const path = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
	for _, test := range []struct {
		name   string
		damage func(*sysfstest.Tree)
		reason string // empty: the function stays
	}{
		{"an empty modalias", func(t *sysfstest.Tree) { t.Write(path+"/modalias", "") }, "modalias"},
		{"binary in modalias", func(t *sysfstest.Tree) { t.Write(path+"/modalias", "\x00\x01\xff") }, "modalias"},
		{"another bus's modalias", func(t *sysfstest.Tree) {
			t.Write(path+"/modalias", "usb:v1D6Bp0002d0606dc09dsc00dp01ic09isc00ip00in00")
		}, "modalias"},
		{"a modalias cut short", func(t *sysfstest.Tree) {
			t.Write(path+"/modalias", "pci:v000015B3d00001021sv000015B3sd00000041bc02sc07i")
		}, "modalias"},
		{"a modalias with more behind it", func(t *sysfstest.Tree) {
			t.Write(path+"/modalias", "pci:v000015B3d00001021sv000015B3sd00000041bc02sc07i00x")
		}, "modalias"},
		{"a vendor of more than 16 bits", func(t *sysfstest.Tree) {
			t.Write(path+"/modalias", "pci:v000115B3d00001021sv000015B3sd00000041bc02sc07i00")
		}, "modalias"},
		{"a modalias that is a directory", func(t *sysfstest.Tree) { t.Remove(path + "/modalias"); t.Write(path+"/modalias/x", "") }, "modalias"},
		{"no modalias", func(t *sysfstest.Tree) { t.Remove(path + "/modalias") }, ""},
		{"no modalias and garbage in vendor", func(t *sysfstest.Tree) { t.Remove(path + "/modalias"); t.Write(path+"/vendor", "0xzz") },
			"vendor"},
		{"no modalias and an empty device file", func(t *sysfstest.Tree) { t.Remove(path + "/modalias"); t.Write(path+"/device", "") }, "device"},
		{"no modalias and no class", func(t *sysfstest.Tree) { t.Remove(path + "/modalias"); t.Remove(path + "/class") }, "class"},
		{"garbage in acpi_index", func(t *sysfstest.Tree) { t.Write(path+"/acpi_index", "first") }, "acpi_index"},
		{"garbage in numa_node", func(t *sysfstest.Tree) { t.Write(path+"/numa_node", "one") }, "numa_node"},
		{"more virtual functions than a device can have", func(t *sysfstest.Tree) {
			t.Write(path+"/sriov_totalvfs",
				"8")
			t.Write(path+"/sriov_numvfs", "65536")
		}, "sriov_numvfs"},
		{"fewer virtual functions than none", func(t *sysfstest.Tree) {
			t.Write(path+"/sriov_totalvfs", "8")
			t.Write(path+"/sriov_numvfs",
				"-1")
		}, "sriov_numvfs"},
		{"no directory behind the link", func(t *sysfstest.Tree) { t.Remove(path) }, "no such file"},
		{"no numa_node, as on a kernel without NUMA", func(t *sysfstest.Tree) { t.Remove(path + "/numa_node") }, ""},
		{"no driver", func(t *sysfstest.Tree) { t.Remove(path + "/driver") }, ""},
		{"garbage in what nobody uses", func(t *sysfstest.Tree) {
			t.Write(path+"/vendor", "?")
			t.Write(path+"/subsystem_vendor", "?")
			t.Write(path+"/local_cpulist", "\x01")
		}, ""},
		{"fewer virtual functions than sriov_numvfs says", func(t *sysfstest.Tree) {
			t.Write(path+"/sriov_totalvfs",
				"8")
			t.Write(path+"/sriov_numvfs", "4")
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"})
			tree.AddFunction(sysfstest.Function{Parent: "pci0000:5d/0000:5d:00.0", Address: "0000:5e:00.0"})
			test.damage(tree)
			bus := scan(t, tree, nil)
			if bus.Function("0000:5e:00.0") == nil {
				t.Error("the undamaged function is gone")
			}
			if test.reason == "" {
				if len(bus.Skipped) > 0 || bus.Function("0000:3b:00.0") == nil {
					t.Errorf("skipped %v", bus.Skipped)
				}
				return
			}
			if len(bus.Skipped) != 1 || bus.Skipped[0].Name != "0000:3b:00.0" || !strings.Contains(bus.Skipped[0].Reason.Error(), test.reason) {
				t.Errorf("skipped %v, want 0000:3b:00.0 for a reason that mentions %q", bus.Skipped, test.reason)
			}
		})
	}
}

func TestScanNamesFlagForOtherTree(t *testing.T) {
	_, err := pci.NewFS(t.TempDir()).Scan(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "--sysfs-root") {
		t.Errorf("got %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]pci.Address{
		"0000:3b:00.0":     "0000:3b:00.0",
		"0000:3B:1F.7":     "0000:3b:1f.7",
		"3b:00.1":          "0000:3b:00.1",
		"10000:e1:00.0":    "10000:e1:00.0",
		"00000000:3B:00.0": "0000:3b:00.0", // NVML's form
		"00010000:e1:00.0": "10000:e1:00.0",
		"ffffffff:00:00.0": "ffffffff:00:00.0",
		"0000:3b:20.0":     "", // 5 bits of device
		"0000:3b:00.8":     "", // 3 bits of function
		"0000:3b:00":       "",
		"0000-3b:00.0":     "",
		"0000:3b:00.0x":    "",
		"000000000:3b:0.0": "",
		"0000:+b:00.0":     "",
		"":                 "",
	} {
		got, err := pci.ParseAddress(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

func FuzzAttributesNeverStopAScan(f *testing.F) {
	f.Add("modalias", []byte("pci:v000015B3d00001021sv000015B3sd00000041bc02sc07i00\n"))
	f.Add("numa_node", []byte("-1\n"))
	f.Add("acpi_index", []byte("4294967295\n"))
	f.Add("modalias", []byte{0xff, 0x00})
	f.Fuzz(func(t *testing.T, attribute string, content []byte) {
		if attribute == "" || strings.ContainsAny(attribute, "/\x00") || len(attribute) > 100 || strings.Trim(attribute, ".") == "" {
			t.Skip("not a file name")
		}
		tree := sysfstest.New(t)
		path := tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"})
		tree.AddFunction(sysfstest.Function{Parent: "pci0000:5d/0000:5d:00.0", Address: "0000:5e:00.0"})
		tree.Remove(path + "/" + attribute)
		tree.Write(path+"/"+attribute, string(content))
		bus, err := pci.NewFS(tree.Sys).Scan(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if bus.Function("0000:5e:00.0") == nil || len(bus.Functions)+len(bus.Skipped) != 2 {
			t.Errorf("functions %v, skipped %v", bus.Functions, bus.Skipped)
		}
	})
}

func TestScanStopsWithItsContext(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pci.NewFS(tree.Sys).Scan(ctx, nil); !errors.Is(err, ctx.Err()) {
		t.Errorf("got %v", err)
	}
}
