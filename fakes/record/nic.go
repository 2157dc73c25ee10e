package record

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/fakes/profile"
)

// models maps a PCI device ID to the name that profiles use.
var models = map[string]string{
	"0x1017": "ConnectX-5", "0x1019": "ConnectX-5", "0x101b": "ConnectX-6", "0x101d": "ConnectX-6 Dx", "0x1021": "ConnectX-7",
	"0x1023": "ConnectX-8",
	"0xa2d6": "BlueField-2", "0xa2dc": "BlueField-3",
}

// nics lists the machine's InfiniBand devices that are physical functions of a model that profiles know.
func (s sysfs) nics() []profile.NIC {
	entries, err := os.ReadDir(filepath.Join(s.root, "class/infiniband"))
	if err != nil {
		return nil // no such class: no such devices
	}
	var all []profile.NIC
	for _, e := range entries {
		dir := "class/infiniband/" + e.Name() + "/"
		real, err := filepath.EvalSymlinks(filepath.Join(s.root, dir, "device"))
		if err != nil {
			continue
		}
		address := filepath.Base(real)
		pci := "bus/pci/devices/" + address + "/"
		model, ok := models[s.text(pci+"device")]
		if _, err := os.Stat(filepath.Join(real, "physfn")); err == nil || !ok {
			continue
		}
		n := profile.NIC{Device: e.Name(), PCI: address, Bridges: s.bridges(address), NUMA: s.numaOf(address), Model: model,
			Link: s.text(dir + "ports/1/link_layer"), RateGbps: number(s.text(dir + "ports/1/rate")), Firmware: s.text(dir + "fw_ver"),
			BoardID: s.text(dir + "board_id"), Down: !strings.HasPrefix(s.text(dir+"ports/1/state"), "4:")}
		s.addNetdev(&n, real)
		if total := number(s.text(pci + "sriov_totalvfs")); total > 0 {
			n.SRIOV = &profile.SRIOV{Total: total, Enabled: number(s.text(pci + "sriov_numvfs"))}
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b profile.NIC) int {
		return cmp.Or(cmp.Compare(len(a.Device), len(b.Device)), cmp.Compare(a.Device, b.Device))
	})
	return all
}

func (s sysfs) addNetdev(n *profile.NIC, device string) {
	entries, err := os.ReadDir(filepath.Join(device, "net"))
	if err != nil || len(entries) == 0 {
		n.Netdev = n.Device // a profile needs a name
		return
	}
	n.Netdev = entries[0].Name()
	dir := filepath.Join(device, "net", n.Netdev)
	if master, err := os.Readlink(filepath.Join(dir, "master")); err == nil {
		n.Bond = filepath.Base(master)
	}
	port, err := os.ReadFile(filepath.Join(dir, "phys_port_name"))
	if err == nil {
		n.Port, _ = strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(string(port)), "p")) // anything else is port 0
	}
	mtu, err := os.ReadFile(filepath.Join(dir, "mtu"))
	if err == nil {
		n.MTU, _ = strconv.Atoi(strings.TrimSpace(string(mtu))) // a profile without an MTU uses the usual one
	}
}
