package inventory_test

import (
	"path/filepath"
	"slices"
	"testing"

	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// TestInventoryFindsTheHCAsOfEveryFake compares the discovered HCAs with those of each profile.
func TestInventoryFindsTheHCAsOfEveryFake(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			p, err := profile.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
				t.Fatal(err)
			}
			found, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc")})
			if err != nil {
				t.Fatal(err)
			}
			// Without GIDs a card in switchdev mode is not offered.
			var skipped []string
			want := slices.DeleteFunc(p.Node(0).NICs, func(nic profile.NodeNIC) bool {
				if nic.Switchdev() {
					skipped = append(skipped, nic.Device)
				}
				return nic.Switchdev()
			})
			if len(found.Skipped) != len(skipped) || slices.ContainsFunc(found.Skipped, func(s inventory.Skipped) bool {
				return !slices.Contains(skipped, s.Name)
			}) {
				t.Errorf("skipped %v, want %v", found.Skipped, skipped)
			}
			if len(found.HCAs) != len(want) {
				t.Fatalf("found %d HCAs of %d", len(found.HCAs), len(want))
			}
			for _, nic := range want {
				i := slices.IndexFunc(found.HCAs, func(h inventory.HCA) bool { return h.Name == nic.Device })
				if i < 0 {
					t.Errorf("%s was not found", nic.Device)
					continue
				}
				h := found.HCAs[i]
				port := h.Ports[0]
				switch {
				case h.PCI != pci.Address(nic.Address.String()), h.NUMANode() != nic.NUMA, string(port.LinkLayer) != nic.Link,
					port.Rate != float64(nic.RateGbps):
					t.Errorf("%s: found %s on NUMA node %d, %s of %g Gb/s; the profile says %+v", h.Name, h.PCI, h.NUMANode(), port.LinkLayer, port.Rate,
						nic)
				case !slices.Contains(h.Nets(), nic.Netdev):
					t.Errorf("%s: found the interfaces %v, not %s", h.Name, h.Nets(), nic.Netdev)
				case h.Function.Virtual() != (nic.Physical >= 0):
					t.Errorf("%s: found virtual %v", h.Name, h.Function.Virtual())
				case nic.Link == "InfiniBand" && (port.ISSM.Name == "" || len(h.PKeys[1]) == 0), nic.Link == "Ethernet" && port.ISSM.Name != "":
					t.Errorf("%s: found issm %q and partition keys %v on %s", h.Name, port.ISSM.Name, h.PKeys, nic.Link)
				}
			}
		})
	}
}

// A fake card in switchdev mode is as the kernel's: the physical function cannot be used for RoCE, its virtual functions can.
func TestDiscoverFindsVFsOfFakeESwitch(t *testing.T) {
	p, err := profile.Load("sriov")
	if err != nil {
		t.Fatal(err)
	}
	p.NICs[0].SRIOV.Switchdev, p.NICs[0].SRIOV.Total = true, 127
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	ports, err := filepath.Glob(filepath.Join(root, "sys/class/infiniband/mlx5_0/ports/*"))
	if err != nil || len(ports) != 129 {
		t.Errorf("the card has %d ports (%v); want the physical function's, those of 127 virtual ones and the uplink's", len(ports),
			err)
	}
	found, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc")})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Skipped) != 1 || found.Skipped[0].Name != "mlx5_0" || found.Damaged() {
		t.Errorf("skipped %+v; want mlx5_0, whose card is in switchdev mode", found.Skipped)
	}
	virtual := 0
	for i := range found.HCAs {
		h := &found.HCAs[i]
		if len(h.Ports) != 1 || len(h.Nets()) != 1 {
			t.Errorf("%s has the interfaces %v at %d ports", h.Name, h.Nets(), len(h.Ports))
		}
		if h.Function.Virtual() && h.Function.PhysicalFunction == "0000:31:00.0" {
			virtual++
			if !slices.Equal(h.PhysicalNets, []string{"ens1f0np0"}) {
				t.Errorf("%s: its physical function has %v", h.Name, h.PhysicalNets)
			}
		}
	}
	if virtual != 8 {
		t.Errorf("%d virtual functions of the card were found, want 8", virtual)
	}
}
