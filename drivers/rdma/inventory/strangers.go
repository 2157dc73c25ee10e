package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
)

// planes are the management devices of an HCA's planes.
type planes struct {
	names []string // of the RDMA devices of type SMI
	umads []infiniband.CharDevice
}

func (p planes) of(name string) bool { return slices.Contains(p.names, name) }

// planesOf finds the devices of type SMI by PCI function. Linux makes one below a multi-plane HCA (drivers/infiniband/hw/mlx5/main.c,
// mlx5_ib_add_sub_dev, since 6.11): it shares the HCA's PCI function and has umad devices, and never a uverbs device.
func planesOf(found *infiniband.Devices) map[pci.Address]planes {
	usable := make(map[pci.Address]bool)
	for i := range found.Devices {
		if d := &found.Devices[i]; d.PCI != "" && d.Verbs.Name != "" && d.Auxiliary == "" {
			usable[d.PCI] = true
		}
	}
	byFunction := make(map[pci.Address]planes)
	for i := range found.Devices {
		d := &found.Devices[i]
		if !usable[d.PCI] || d.Verbs.Name != "" || d.Auxiliary != "" {
			continue
		}
		p := byFunction[d.PCI]
		for _, port := range d.Ports {
			if port.UMAD.Name != "" {
				p.umads = append(p.umads, port.UMAD)
			}
		}
		p.names = append(p.names, d.Name)
		byFunction[d.PCI] = p
	}
	return byFunction
}

// addWithoutRDMA records the network controllers that have no RDMA device.
func (v *Inventory) addWithoutRDMA(sysfs string, bus *pci.Bus, found *infiniband.Devices) {
	has := make(map[pci.Address]bool)
	owner := make(map[string]string) // of an interface: the port of an RDMA device
	for i := range found.Devices {
		d := &found.Devices[i]
		has[d.PCI] = true
		for _, port := range d.Ports {
			for _, net := range port.Nets {
				owner[net.Name] = fmt.Sprintf("port %d of %s (%s)", port.Number, d.Name, d.PCI)
			}
		}
	}
	for _, s := range found.Skipped {
		has[s.PCI] = true
	}
	for i := range bus.Functions {
		f := &bus.Functions[i]
		if has[f.Address] || !f.Class.Network() {
			continue
		}
		v.Skipped = append(v.Skipped, Skipped{Name: string(f.Address), PCI: f.Address, Reason: withoutRDMA(sysfs, f, owner)})
	}
	for _, s := range bus.Skipped {
		if !has[pci.Address(s.Name)] && isNetwork(sysfs, s) {
			v.Skipped = append(v.Skipped, Skipped{Name: s.Name, PCI: pci.Address(s.Name), Reason: s.Reason.Error(), Damaged: true})
		}
	}
}

// isNetwork reports whether a function that could not be read is a network controller. Without its class the directory of its
// network devices shows it.
func isNetwork(sysfs string, s pci.Skipped) bool {
	if s.Class != 0 {
		return s.Class.Network()
	}
	_, err := os.Stat(filepath.Join(sysfs, "bus/pci/devices", s.Name, "net"))
	return err == nil
}

// withoutRDMA reports why the function f has no RDMA device. owner has the ports to which interfaces belong.
func withoutRDMA(sysfs string, f *pci.Function, owner map[string]string) string {
	if f.Driver == "" {
		return "no RDMA device: no driver has the PCI function"
	}
	nets, _ := os.ReadDir(filepath.Join(sysfs, f.Path, "net"))
	for _, net := range nets {
		if port := owner[net.Name()]; port != "" {
			return fmt.Sprintf("no RDMA device of its own: its interface %s is that of %s", net.Name(), port)
		}
	}
	reason := "no RDMA device: the driver " + f.Driver + " made none"
	if module := rdmaModule(f.Driver); module != "" {
		return reason + missingModule(sysfs, module)
	}
	return reason
}

// rdmaModule returns the kernel module that makes RDMA devices of the functions of a driver, from drivers/infiniband/hw of Linux;
// empty: there is none, or the driver makes them itself.
func rdmaModule(driver string) string {
	return map[string]string{
		"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "ice": "irdma", "i40e": "irdma", "idpf": "irdma", "bnxt_en": "bnxt_re",
		"bng_en": "bng_re", "cxgb4": "iw_cxgb4", "qede": "qedr", "hns3": "hns_roce_hw_v2", "be2net": "ocrdma", "mana": "mana_ib",
		"enic": "usnic_verbs", "ionic": "ionic_rdma",
	}[driver]
}

// missingModule returns a hint for an error where a kernel module is not loaded, else "".
func missingModule(sysfs, module string) string {
	if _, err := os.Stat(filepath.Join(sysfs, "module", strings.ReplaceAll(module, "-", "_"))); err == nil {
		return ""
	}
	return fmt.Sprintf(" (is the module %s loaded?)", module)
}
