package passthrough_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/passthrough"
	"gpufabric.io/drivers/gpu/passthrough/passthroughtest"
)

func TestFindReportsGPUsThatCannotBePassedThrough(t *testing.T) {
	const slot = "0000:3b:00"
	for name, c := range map[string]struct {
		node  func(*passthroughtest.Kernel)
		cards int
		want  string
	}{
		"a GPU with its audio function":   {func(k *passthroughtest.Kernel) { k.GPU(slot, 17) }, 1, ""},
		"a node without GPUs":             {func(*passthroughtest.Kernel) {}, 0, ""},
		"an IOMMU that is off":            {func(k *passthroughtest.Kernel) { k.GPU(slot, 0) }, 0, "IOMMU is off"},
		"vfio-pci that is not loaded":     {func(k *passthroughtest.Kernel) { k.GPU(slot, 17); k.Unload("vfio-pci") }, 0, "modprobe vfio-pci"},
		"two GPUs in groups of their own": {func(k *passthroughtest.Kernel) { k.GPU(slot, 17); k.GPU("0000:3c:00", 18) }, 2, ""},
		"a group with a NIC": {func(k *passthroughtest.Kernel) {
			k.GPU(slot, 17)
			k.Add(passthroughtest.Function{Address: "0000:3c:00.0", Driver: "mlx5_core", Group: 17})
		}, 0, "also has 0000:3c:00.0 (a NIC of driver mlx5_core)"},
		"a group with another GPU": {func(k *passthroughtest.Kernel) { k.GPU(slot, 17); k.GPU("0000:3c:00", 17) }, 0,
			"another GPU of driver nvidia"},
		"a group with its bridge": {func(k *passthroughtest.Kernel) {
			k.GPU(slot, 17)
			k.Add(passthroughtest.Function{Address: "0000:3a:00.0", Vendor: "0x8086", Device: "0x2030", Class: "0x060400", Driver: "pcieport",
				Group: 17})
		}, 1, ""},
		"NVSwitches": {func(k *passthroughtest.Kernel) {
			k.GPU(slot, 17)
			k.Add(passthroughtest.Function{Address: "0000:05:00.0", Vendor: "0x10de", Device: "0x22a3", Class: "0x068000", Group: 2})
		}, 0, "partition of Fabric Manager"},
		"a GPU of Grace Blackwell": {func(k *passthroughtest.Kernel) {
			k.Add(passthroughtest.Function{Address: slot + ".0", Vendor: "0x10de", Device: "0x2941", Class: "0x030200", Driver: "nvidia", Group: 17})
		}, 0, "modprobe nvgrace-gpu-vfio-pci"},
		"virtual functions": {func(k *passthroughtest.Kernel) {
			k.Add(passthroughtest.Function{Address: slot + ".0", Vendor: "0x10de", Device: "0x2684", Class: "0x030200", Driver: "nvidia", Group: 17,
				VFs: 4})
		}, 0, "sriov_numvfs"},
		"the driver nouveau": {func(k *passthroughtest.Kernel) {
			k.Add(passthroughtest.Function{Address: slot + ".0", Vendor: "0x10de", Device: "0x2684", Class: "0x030000", Driver: "nouveau",
				Group: 17})
		}, 0, "blacklist nouveau"},
	} {
		t.Run(name, func(t *testing.T) {
			k := passthroughtest.New(t)
			if name != "an IOMMU that is off" { // there is some device in a group on every machine with an IOMMU
				k.Add(passthroughtest.Function{Address: "0000:00:1f.0", Vendor: "0x8086", Device: "0x7a8d", Class: "0x060100", Group: 1})
			}
			c.node(k)
			cards, problems, err := passthrough.Find(t.Context(), k.Places())
			if err != nil || len(cards) != c.cards {
				t.Fatalf("%d cards, %v", len(cards), err)
			}
			if text := fmt.Sprint(errors.Join(problems...)); c.want == "" && len(problems) > 0 || !strings.Contains(text, c.want) {
				t.Errorf("problems %q, want %q", text, c.want)
			}
			for _, card := range cards {
				if !passthrough.IsName(card.Name()) || card.Place.BusID != string(card.GPU.Address) || card.Group == 0 {
					t.Errorf("card %+v", card)
				}
				if len(card.Functions) != 2 || !strings.HasPrefix(card.UUID, "GPU-") || card.Product == "" {
					t.Errorf("card %s has functions %v, identity %v", card.Name(), card.Functions, card.Identity)
				}
			}
		})
	}
}
