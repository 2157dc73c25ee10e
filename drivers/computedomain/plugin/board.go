package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/hardware/pci"
)

// board is a node's GPUs as PCI shows them, with and without a driver.
type board struct {
	// gpus is the number of NVIDIA GPUs, bound the number that NVIDIA's kernel driver has bound.
	gpus, bound int
	// multiNode means that the GPUs are of a kind whose NVLink leaves the node. A board with its own NVSwitches (HGX, DGX) has NVLink only
	// among its own GPUs, whatever its GPUs report about their fabric: with FABRIC_MODE=1 they report "in progress" for ever (#1263, #1264
	// of NVIDIA's DRA driver).
	multiNode bool
}

const (
	nvidia = 0x10de
	// classDisplay are GPUs (VGA 0300, 3D 0302), classBridgeOther NVSwitches.
	classDisplay     = 0x03
	classBridgeOther = 0x0680
)

// multiNodeGPU reports whether a GPU of this PCI device ID has NVLink to switches outside its node (pci.ids, NVIDIA's public list of device
// IDs). NVML reports that of Blackwell and later (nvml.Driver.InRack), but not of GH200, nor where a platform's firmware does not.
func multiNodeGPU(device uint16) bool {
	switch device {
	case 0x2342, 0x2348, // GH200 (NVL32)
		0x2941, // GB200 (NVL72)
		0x31c2: // GB300 (NVL72)
		return true
	}
	return false
}

// readBoard reads the PCI bus.
func readBoard(ctx context.Context, sysfs pci.FS) (board, error) {
	bus, err := sysfs.Scan(ctx, func(class pci.Class) bool { return class>>16 == classDisplay || class>>8 == classBridgeOther })
	if errors.Is(err, fs.ErrNotExist) {
		return board{}, nil // a machine without PCI
	}
	if err != nil {
		return board{}, fmt.Errorf("look for GPUs on the PCI bus: %w", err)
	}
	var b board
	switches, outward := 0, 0
	for i := range bus.Functions {
		f := &bus.Functions[i]
		switch {
		case f.Vendor != nvidia || f.Virtual():
		case f.Class>>8 == classBridgeOther:
			switches++
		default:
			b.gpus++
			if f.Driver == nvml.KernelDriver {
				b.bound++
			}
			if multiNodeGPU(f.Device) {
				outward++
			}
		}
	}
	b.multiNode = switches == 0 && outward > 0
	return b, nil
}
