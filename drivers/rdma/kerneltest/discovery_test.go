//go:build rdmaguest

package kerneltest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
)

func TestDevicesBelowFunctionsAreFoundWithTheirPlaces(t *testing.T) {
	near, far := find(t, switched), find(t, farA)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	add(t, "mlx5_1", far.function, "infiniband", 2, "-")
	a, _ := discover(t, "mlx5_0")
	b, found := discover(t, "mlx5_1")
	if a == nil || b == nil {
		t.Fatalf("found %+v", found)
	}
	if string(a.PCI) != near.function || a.NUMANode() != 0 || a.Function.Switch == "" || a.Rail != 0 {
		t.Errorf("mlx5_0 is at %s, NUMA node %d, switch %q, rail %d", a.PCI, a.NUMANode(), a.Function.Switch, a.Rail)
	}
	if nets := a.Nets(); !slices.Equal(nets, []string{near.name}) {
		t.Errorf("mlx5_0 has the interfaces %v, not %s", nets, near.name)
	}
	if a.Ports[0].LinkLayer != infiniband.Ethernet || a.Ports[0].Rate != 400 || a.Firmware != "28.41.1000" || a.BoardID == "" {
		t.Errorf("mlx5_0 is %+v", a)
	}
	if string(b.PCI) != far.function || b.NUMANode() != 1 || b.Rail != -1 {
		t.Errorf("mlx5_1 is at %s, NUMA node %d, rail %d", b.PCI, b.NUMANode(), b.Rail)
	}
	for i, port := range b.Ports {
		if port.Number != i+1 || port.LinkLayer != infiniband.InfiniBand || port.LID == 0 || port.GUID == "" || port.UMAD.Name == "" ||
			port.ISSM.Name == "" {
			t.Errorf("port %+v", port)
		}
		if keys := b.PKeys[port.Number]; !slices.Equal(keys, []uint16{0x8002, 0xffff}) {
			t.Errorf("partition keys %#x", keys)
		}
	}
	for _, c := range b.CharDevices() {
		if _, err := os.Stat("/dev/infiniband/" + c.Name); err != nil {
			t.Error(err)
		}
	}
}

func TestVirtualFunctionsComeAndGo(t *testing.T) {
	physical := find(t, virtuals)
	file := "/sys/bus/pci/devices/" + physical.function + "/sriov_numvfs"
	count := func(n string) {
		if err := os.WriteFile(file, []byte(n), 0); err != nil {
			t.Fatalf("set %s to %s: %v", file, n, err)
		}
	}
	count("3")
	t.Cleanup(func() { _ = os.WriteFile(file, []byte("0"), 0) })
	add(t, "mlx5_0", physical.function, "ethernet", 1, physical.name)
	for i := range 3 {
		link, err := os.Readlink(fmt.Sprintf("/sys/bus/pci/devices/%s/virtfn%d", physical.function, i))
		if err != nil {
			t.Fatal(err)
		}
		function := strings.TrimPrefix(link, "../")
		nets, err := os.ReadDir("/sys/bus/pci/devices/" + function + "/net")
		if err != nil || len(nets) != 1 {
			t.Fatalf("the virtual function %s has the interfaces %v, %v", function, nets, err)
		}
		name := fmt.Sprintf("mlx5_%d", i+1)
		add(t, name, function, "ethernet", 1, nets[0].Name())
		h, _ := discover(t, name)
		if h == nil {
			t.Fatalf("%s is not found", name)
		}
		if !h.Function.Virtual() || h.Function.VirtualIndex != i || string(h.Function.PhysicalFunction) != physical.function ||
			h.NUMANode() != 1 {
			t.Errorf("%s is %+v", name, h.Function)
		}
		if !slices.Equal(h.PhysicalNets, []string{physical.name}) {
			t.Errorf("%s is of the physical interfaces %v", name, h.PhysicalNets)
		}
	}
	count("0")
	eventually(t, "the virtual functions' devices are gone", func() bool {
		_, found := discover(t, "mlx5_0")
		return len(found.HCAs) == 1
	})
}

// The kernel reports Unknown for the link layer of EFA's ports (link_layer_show in drivers/infiniband/core/sysfs.c).
func TestDiscoveryFindsAnUnknownLinkLayer(t *testing.T) {
	far := find(t, farB)
	add(t, "efa_0", far.function, "efa", 1, "-")
	h, found := discover(t, "efa_0")
	if h == nil {
		t.Fatalf("skipped: %+v", found.Skipped)
	}
	if h.Ports[0].LinkLayer != infiniband.Unspecified || h.Ports[0].UMAD.Name != "" {
		t.Errorf("port %+v", h.Ports[0])
	}
	counters := infiniband.NewFS("/sys").Counters(h.Path, 1)
	if counters["rx_bytes"] != 1024 || counters["tx_bytes"] != 2048 {
		t.Errorf("counters %v", counters)
	}
}

// A software device is below /sys/devices/virtual, as are the interfaces of every pod.
func TestDiscoveryFindsTheInterfaceOfASoftwareDevice(t *testing.T) {
	a, b := find(t, plainA), find(t, plainB)
	up(t, a.name)
	virtualInterface(t, "virtual0")
	software(t, "rxe_0", a.name)
	virtualInterface(t, "macvlan0", b.name)
	software(t, "rxe_1", "macvlan0")
	for name, net := range map[string]string{"rxe_0": a.name, "rxe_1": "macvlan0"} {
		h, _ := discover(t, name)
		if h == nil {
			t.Fatalf("%s is not found", name)
		}
		if nets := h.Nets(); !slices.Equal(nets, []string{net}) {
			t.Errorf("%s has the interfaces %v, not %s", name, nets, net)
		}
		if h.Function != nil || h.NUMANode() != pci.NUMAUnknown {
			t.Errorf("%s is on the function %+v", name, h.Function)
		}
	}
}

// A scalable function's device is below an auxiliary device of the PCI function: .../0000:08:00.0/mlx5_core.sf.2/infiniband/mlx5_2.
func TestDiscoveryMatchesAScalableFunction(t *testing.T) {
	near := find(t, switched)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	command(t, "subfunction mlx5_2 %s 2", near.function)
	t.Cleanup(func() { remove("mlx5_2") })
	parent, _ := discover(t, "mlx5_0")
	h, found := discover(t, "mlx5_2")
	if parent == nil || h == nil {
		t.Fatalf("found %+v", found)
	}
	if string(h.PCI) != near.function || h.Function == nil || h.NUMANode() != 0 || h.Rail != parent.Rail {
		t.Errorf("mlx5_2 is at %q, NUMA node %d, rail %d", h.PCI, h.NUMANode(), h.Rail)
	}
	if h.Key() == parent.Key() {
		t.Errorf("both are %s", h.Key())
	}
	if nets := h.Nets(); len(nets) != 0 {
		t.Errorf("mlx5_2 has the interfaces %v of its PCI function", nets)
	}
}
