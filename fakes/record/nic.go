package record

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/fakes/profile"
)

// models maps a PCI device ID to the name that profiles use.
var models = map[string]string{
	"0x1017": "ConnectX-5", "0x1019": "ConnectX-5", "0x101b": "ConnectX-6", "0x101d": "ConnectX-6 Dx", "0x1021": "ConnectX-7",
	"0x1023": "ConnectX-8",
	"0x1025": "ConnectX-9",
	"0xa2d6": "BlueField-2", "0xa2dc": "BlueField-3",
}

// nics lists the machine's InfiniBand devices that are physical functions of a model of the profiles.
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
			Firmware: s.text(dir + "fw_ver"), BoardID: s.text(dir + "board_id"), DataDirect: s.dataDirect(address)}
		uplink := s.addNetdev(&n, real)
		if total := number(s.text(pci + "sriov_totalvfs")); total > 0 {
			n.SRIOV = &profile.SRIOV{Total: total, Enabled: number(s.text(pci + "sriov_numvfs")), Switchdev: uplink.switchdev}
		}
		port := dir + "ports/1/"
		if count, _ := n.Ports(); n.Switchdev() {
			port = fmt.Sprintf("%sports/%d/", dir, count)
		}
		n.Link, n.RateGbps = s.text(port+"link_layer"), number(s.text(port+"rate"))
		n.Down = !strings.HasPrefix(s.text(port+"state"), "4:")
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b profile.NIC) int {
		return cmp.Or(cmp.Compare(len(a.Device), len(b.Device)), cmp.Compare(a.Device, b.Device))
	})
	return all
}

// netdev is a network interface of a NIC.
type netdev struct {
	name      string
	port      int  // the port of the card
	switchdev bool // it is the uplink of an e-switch in switchdev mode
}

// uplinkName matches phys_port_name of an interface that has a port of the card. That of a representor is pf0vf3, for example.
var uplinkName = regexp.MustCompile(`^p([0-9]+)$`)

// addNetdev records the interface of a NIC that has the port, and returns it.
func (s sysfs) addNetdev(n *profile.NIC, device string) netdev {
	found := netdev{name: n.Device} // a profile needs a name
	entries, err := os.ReadDir(filepath.Join(device, "net"))
	if err == nil && len(entries) > 0 {
		found = uplink(device, entries)
	}
	n.Netdev, n.Port = found.name, found.port
	dir := filepath.Join(device, "net", n.Netdev)
	if master, err := os.Readlink(filepath.Join(dir, "master")); err == nil {
		n.Bond = filepath.Base(master)
	}
	mtu, err := os.ReadFile(filepath.Join(dir, "mtu"))
	if err == nil {
		n.MTU, _ = strconv.Atoi(strings.TrimSpace(string(mtu))) // a profile without an MTU uses the usual one
	}
	return found
}

// uplink finds the interface that has a port of the card: the first, where no interface names its port.
func uplink(device string, entries []os.DirEntry) netdev {
	for _, e := range entries {
		dir := sysfs{root: filepath.Join(device, "net", e.Name())}
		if match := uplinkName.FindStringSubmatch(dir.text("phys_port_name")); match != nil {
			// The kernel gives a switch's ID in switchdev mode alone.
			return netdev{name: e.Name(), port: number(match[1]), switchdev: dir.text("phys_switch_id") != ""}
		}
	}
	return netdev{name: entries[0].Name()}
}
