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

// TestEveryFakeNodesHCAsAreFound compares the discovered HCAs with what each profile says its machine has.
func TestEveryFakeNodesHCAsAreFound(t *testing.T) {
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
			if len(found.Skipped) > 0 {
				t.Errorf("skipped %v", found.Skipped)
			}
			want := p.Node(0).NICs
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
