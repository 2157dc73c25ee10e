// Package inventory joins the PCI functions, RDMA devices and network devices in a node's sysfs into HCAs.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
)

// Inventory is the result of one discovery.
type Inventory struct {
	HCAs    []HCA     // by RDMA device name
	Skipped []Skipped // unusable devices that look like HCAs, with the reason
	// GPUDirect describes how an HCA can access a GPU's memory.
	GPUDirect GPUDirect
}

// HCA is an RDMA device with its place on the PCI bus.
type HCA struct {
	infiniband.Device
	Function *pci.Function // of a scalable function, its parent; nil: a software device (rxe, siw)
	// Direct is the data-direct function of a ConnectX-8, which reads and writes GPU memory for it and may be on another root complex;
	// nil: it has none.
	Direct *pci.Function
	// Management are umad devices of the HCA's planes. The kernel gives a multi-plane HCA (XDR) a device of type SMI for them.
	Management []infiniband.CharDevice
	// PhysicalNets are the network interfaces of the physical function; for a physical function its own.
	PhysicalNets []string
	// PKeys are the partition keys of each InfiniBand port, by port number.
	PKeys map[int][]uint16
	// Rail is the HCA's number among the physical functions that share a PCIe switch with a GPU, by PCI address; -1: it shares none.
	// On all nodes, NICs with one rail number are cabled to the same rail switch.
	Rail int
}

// Skipped is a PCI function or an RDMA device that is no HCA of the inventory.
type Skipped struct {
	Name   string // mlx5_0, or the PCI address where there is no RDMA device
	PCI    pci.Address
	Reason string
	// Damaged: an attribute could not be read or understood. The device may just be appearing, or its firmware may be resetting:
	// another read may succeed.
	Damaged bool
}

// Damaged reports whether anything was skipped because it could not be read.
func (v *Inventory) Damaged() bool {
	return slices.ContainsFunc(v.Skipped, func(s Skipped) bool { return s.Damaged })
}

// Key identifies the HCA across reboots: its PCI address, with the scalable function where it is one, else its name. RDMA device
// names may change between boots.
func (h *HCA) Key() string {
	if h.PCI != "" && h.Auxiliary != "" {
		return string(h.PCI) + "/" + h.Auxiliary
	}
	if h.PCI != "" {
		return string(h.PCI)
	}
	return h.Name
}

// NUMANode is the HCA's NUMA node, pci.NUMAUnknown where none is known.
func (h *HCA) NUMANode() int {
	if h.Function == nil {
		return pci.NUMAUnknown
	}
	return h.Function.NUMANode
}

// Nets are the names of the network interfaces on all ports.
func (h *HCA) Nets() []string {
	var names []string
	for _, port := range h.Ports {
		for _, net := range port.Nets {
			names = append(names, net.Name)
		}
	}
	return names
}

// CharDevices are the HCA's character devices: its uverbs, and each port's umad and issm where there are any.
func (h *HCA) CharDevices() []infiniband.CharDevice {
	var devices []infiniband.CharDevice
	add := func(c infiniband.CharDevice) {
		if c.Name != "" {
			devices = append(devices, c)
		}
	}
	add(h.Verbs)
	for _, port := range h.Ports {
		add(port.UMAD)
		add(port.ISSM)
	}
	return append(devices, h.Management...)
}

// Roots is where a node's files are.
type Roots struct {
	Sysfs string // /sys
	Proc  string // /proc
}

// display is the PCI base class of GPUs.
const display = 0x03

// wanted are the functions that an inventory is made of.
func wanted(is pci.Identity) bool {
	return is.Class.Network() || is.Class>>16 == display || isDirect(is)
}

// Discover reads the node. Devices that cannot be read are in Skipped; the error is for a tree that cannot be read at all.
func Discover(ctx context.Context, roots Roots) (*Inventory, error) {
	bus, err := pci.NewFS(roots.Sysfs).ScanIdentities(ctx, wanted)
	if err != nil {
		return nil, err
	}
	fs := infiniband.NewFS(roots.Sysfs)
	found, err := fs.Scan(ctx)
	if err != nil {
		return nil, err
	}
	inventory := &Inventory{GPUDirect: gpuDirect(roots)}
	for _, s := range found.Skipped {
		inventory.Skipped = append(inventory.Skipped, Skipped{Name: s.Name, PCI: s.PCI, Reason: s.Reason.Error(), Damaged: true})
	}
	unreadable := make(map[pci.Address]error)
	for _, s := range bus.Skipped {
		unreadable[pci.Address(s.Name)] = s.Reason
	}
	nets := make(map[pci.Address][]string) // of functions with RDMA devices
	planes := planesOf(found)
	for i := range found.Devices {
		h := HCA{Device: found.Devices[i], Function: bus.Function(found.Devices[i].PCI), Rail: -1}
		if h.Verbs.Name != "" && h.Auxiliary == "" { // A scalable function's interfaces are its own.
			nets[h.PCI] = h.Nets()
		}
		switch {
		case h.PCI != "" && unreadable[h.PCI] != nil:
			inventory.skip(h, fmt.Sprintf("its PCI function cannot be read: %v", unreadable[h.PCI]), true)
		case h.PCI != "" && h.Function == nil:
			inventory.skip(h, fmt.Sprintf("its PCI function %s is not on the bus, or is no network controller", h.PCI), false)
		case planes[h.PCI].of(h.Name):
			continue
		case h.Verbs.Name == "":
			inventory.skip(h, "no program can open it, since it has no uverbs device"+missingModule(roots.Sysfs, "ib_uverbs"), false)
		case h.RawOnly:
			inventory.skip(h, "it is in switchdev mode and has no GIDs, so RoCE cannot work on it: use its virtual or scalable functions, which "+
				"are devices of their own", false)
		default:
			h.Management = planes[h.PCI].umads
			inventory.HCAs = append(inventory.HCAs, h)
		}
	}
	inventory.addWithoutRDMA(roots.Sysfs, bus, found)
	inventory.addPhysicalNets(fs, bus, nets)
	inventory.addDirect(ctx, pci.NewFS(roots.Sysfs), bus)
	inventory.addRails(bus)
	if err := inventory.addPKeys(ctx, fs); err != nil {
		return nil, err
	}
	inventory.dropVanished(roots.Sysfs)
	return inventory, nil
}

// dropVanished drops devices that were removed while they were read, such as a virtual function: there is nothing to report about it.
func (v *Inventory) dropVanished(sysfs string) {
	gone := func(path string) bool {
		_, err := os.Lstat(filepath.Join(sysfs, path))
		return errors.Is(err, os.ErrNotExist)
	}
	v.Skipped = slices.DeleteFunc(v.Skipped, func(s Skipped) bool {
		return s.PCI != "" && gone("bus/pci/devices/"+string(s.PCI)) && gone("class/infiniband/"+s.Name)
	})
}

func (v *Inventory) skip(h HCA, reason string, damaged bool) {
	v.Skipped = append(v.Skipped, Skipped{Name: h.Name, PCI: h.PCI, Reason: reason, Damaged: damaged})
}

// addPhysicalNets finds the interfaces of each HCA's physical function, which pfNames select by.
func (v *Inventory) addPhysicalNets(fs infiniband.FS, bus *pci.Bus, nets map[pci.Address][]string) {
	for i := range v.HCAs {
		h := &v.HCAs[i]
		if h.Function == nil {
			continue
		}
		address := h.physical()
		names, known := nets[address]
		if physical := bus.Function(address); !known && physical != nil {
			// The physical function has no RDMA device of its own, or one that was skipped.
			names = fs.Interfaces(physical.Path)
			nets[address] = names
		}
		h.PhysicalNets = names
	}
}

// physical is the address of an HCA's physical function, which may be its own. Call it where h.Function is set.
func (h *HCA) physical() pci.Address {
	if h.Function.Virtual() {
		return h.Function.PhysicalFunction
	}
	return h.PCI
}

// addPKeys reads the partition keys of the InfiniBand ports. It skips an HCA whose keys cannot be read.
func (v *Inventory) addPKeys(ctx context.Context, fs infiniband.FS) error {
	var group errgroup.Group
	group.SetLimit(4)
	failures := make([]error, len(v.HCAs))
	for i := range v.HCAs {
		h := &v.HCAs[i]
		for _, port := range h.Ports {
			if port.LinkLayer != infiniband.InfiniBand {
				continue // Ethernet has no partitions.
			}
			if h.PKeys == nil {
				h.PKeys = make(map[int][]uint16)
				group.Go(func() error {
					failures[i] = h.readPKeys(fs)
					return ctx.Err()
				})
			}
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	kept := v.HCAs[:0]
	for i, h := range v.HCAs {
		if failures[i] != nil {
			v.skip(h, failures[i].Error(), true)
			continue
		}
		kept = append(kept, h)
	}
	v.HCAs = kept
	return nil
}

func (h *HCA) readPKeys(fs infiniband.FS) error {
	for _, port := range h.Ports {
		if port.LinkLayer != infiniband.InfiniBand {
			continue
		}
		keys, err := fs.PKeys(h.Path, port.Number)
		if err != nil {
			return err
		}
		h.PKeys[port.Number] = keys
	}
	return nil
}

// GPUDirect describes how an HCA can access a GPU's memory.
type GPUDirect string

// The ways of GPUDirect RDMA.
const (
	GPUDirectPeerMem GPUDirect = "peermem" // the module nvidia_peermem is loaded, and ib_core takes memory of other devices
	GPUDirectDMABuf  GPUDirect = "dmabuf"  // NVIDIA's open kernel modules export memory as dma-buf
	GPUDirectNone    GPUDirect = "none"
)

// gpuDirect finds the available ways. Peer memory modules register with an interface of MLNX_OFED and DOCA-OFED: their ib_core
// makes /sys/kernel/mm/memory_peers. Linux has never had it, so with Linux's own ib_core the module may be loaded and do nothing.
func gpuDirect(roots Roots) GPUDirect {
	_, noPeers := os.Stat(filepath.Join(roots.Sysfs, "kernel/mm/memory_peers"))
	for _, module := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if _, err := os.Stat(filepath.Join(roots.Sysfs, "module", module)); err == nil && noPeers == nil {
			return GPUDirectPeerMem
		}
	}
	version, err := os.ReadFile(filepath.Join(roots.Proc, "driver/nvidia/version"))
	if err == nil && strings.Contains(string(version), "Open Kernel Module") {
		return GPUDirectDMABuf
	}
	return GPUDirectNone
}
