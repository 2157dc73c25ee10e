package dra

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/rdma/inventory"
)

// The API server refuses a ResourceSlice with all its devices where one name is not a DNS label, or is there twice. The name of a
// software device may have any characters, and 63 of them.
func TestPortsHaveNamesOfTheirOwnWhenSoftwareDevicesAreNamedOddly(t *testing.T) {
	devices := &inventory.Inventory{HCAs: []inventory.HCA{
		{Device: infiniband.Device{Name: "mlx5_0", PCI: "0000:3b:00.0"}, Function: &pci.Function{Address: "0000:3b:00.0"}},
		{Device: infiniband.Device{Name: "mlx5_1", PCI: "0000:3b:00.0", Auxiliary: "mlx5_core.sf.2"},
			Function: &pci.Function{Address: "0000:3b:00.0"}},
	}}
	for _, name := range []string{"rxe0", "rxe_0", "rxe-0", "RXE_0", "rxe@eth0", "rxe+eth0", "_rxe", "Ω", strings.Repeat("r", 63),
		strings.Repeat("r", 62) + "s"} {
		devices.HCAs = append(devices.HCAs, inventory.HCA{Device: infiniband.Device{Name: name}})
	}
	for i := range devices.HCAs {
		devices.HCAs[i].Ports = []infiniband.Port{{Number: 1}, {Number: 2}}
	}
	ports := Ports(devices, nil, Options{Slots: 1})
	names := make(map[string]string)
	for _, p := range ports {
		if problems := validation.IsDNS1123Label(p.Name); len(problems) > 0 {
			t.Errorf("port %d of %q: %q: %v", p.Ports[0], p.HCA.Name, p.Name, problems)
		}
		if other, taken := names[p.Name]; taken {
			t.Errorf("%q and %q are both %s", p.HCA.Name, other, p.Name)
		}
		names[p.Name] = p.HCA.Name
	}
	for i, want := range []string{"pci-0000-3b-00-0-1", "pci-0000-3b-00-0-2", "pci-0000-3b-00-0-mlx5-core-sf-2-1",
		"pci-0000-3b-00-0-mlx5-core-sf-2-2", "rxe0-1", "rxe0-2", "rxe-0-1"} {
		if ports[i].Name != want {
			t.Errorf("got %s, want %s", ports[i].Name, want)
		}
	}
}
