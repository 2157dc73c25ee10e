package inventory

import (
	"context"
	"slices"

	"gpufabric.io/drivers/hardware/pci"
)

// mellanox is the PCI vendor ID of ConnectX NICs, and dataDirect the device ID of a ConnectX-8's data-direct function
// (drivers/infiniband/hw/mlx5/data_direct.c of Linux).
const mellanox, dataDirect = 0x15b3, 0x2100

func isDirect(is pci.Identity) bool { return is.Vendor == mellanox && is.Device == dataDirect }

// Nearest is the function whose place counts for transfers to and from a GPU's memory: the data-direct function, where there is one.
// It is nil for a software device.
func (h *HCA) Nearest() *pci.Function {
	if h.Direct != nil {
		return h.Direct
	}
	return h.Function
}

// addDirect finds the data-direct functions of HCAs. On Grace the NIC is on a root complex of its own, and its data-direct function is
// beside the GPU, below one switch. All functions of a card have the same V3 field in their Vital Product Data, which is how
// rdma_topo of rdma-core joins them. A card whose VPD cannot be read has none.
func (v *Inventory) addDirect(ctx context.Context, fs pci.FS, bus *pci.Bus) {
	byCard := make(map[string]*pci.Function)
	for i := range bus.Functions {
		f := &bus.Functions[i]
		if !isDirect(pci.Identity{Vendor: f.Vendor, Device: f.Device}) || ctx.Err() != nil {
			continue
		}
		if card := fs.VPD(f.Path, "V3"); card != "" {
			byCard[card] = f
		}
	}
	if len(byCard) == 0 {
		return
	}
	cards := make(map[pci.Address]string) // by physical function
	for i := range v.HCAs {
		h := &v.HCAs[i]
		if h.Function == nil || h.Function.Vendor != mellanox || ctx.Err() != nil {
			continue
		}
		address := h.physical()
		card, known := cards[address]
		if physical := bus.Function(address); !known && physical != nil {
			card = fs.VPD(physical.Path, "V3")
			cards[address] = card
		}
		h.Direct = byCard[card]
	}
}

// addRails numbers the physical functions that share a switch with a GPU, by their own switch or their data-direct function's. A
// virtual function uses the cable of its physical function, which may have no RDMA device that can be used.
func (v *Inventory) addRails(bus *pci.Bus) {
	gpus := make(map[pci.Address]bool)
	for i := range bus.Functions {
		if f := &bus.Functions[i]; f.Class>>16 == display {
			gpus[f.Switch] = true
		}
	}
	var rails []pci.Address
	for i := range v.HCAs {
		h := &v.HCAs[i]
		if h.Function == nil {
			continue
		}
		near := h.Direct
		if near == nil {
			near = bus.Function(h.physical())
		}
		if near != nil && gpus[near.Switch] {
			rails = append(rails, h.physical())
		}
	}
	slices.Sort(rails)
	rails = slices.Compact(rails)
	for i := range v.HCAs {
		if h := &v.HCAs[i]; h.Function != nil {
			h.Rail = slices.Index(rails, h.physical())
		}
	}
}
