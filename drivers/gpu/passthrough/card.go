// Package passthrough gives whole GPUs to virtual machines (KubeVirt, Kata): it takes a GPU from its kernel driver, binds it to
// vfio-pci, and gives it back when the claim ends. Everything that it changes is in sysfs:
//
//   - drivers/base/bus.c: bind and unbind of a driver, drivers_probe of a bus
//   - drivers/pci/pci-sysfs.c and drivers/pci/pci-driver.c: driver_override of a function
//   - drivers/iommu/iommu.c: iommu_group of a function, devices of a group
//   - drivers/vfio: /dev/vfio/GROUP, and with iommufd /dev/vfio/devices/vfioN and /dev/iommu
//
// It does not open NVML: NVIDIA's driver does not let a GPU go while a process has it open, this one included.
package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/hardware/pci"
)

const (
	// Driver is the kernel's driver of functions that are passed through.
	Driver = "vfio-pci"
	// GraceDriver is the driver of GPUs whose memory is coherent with the CPU's: with vfio-pci a virtual machine has none of it, and
	// CUDA does not start (drivers/vfio/pci/nvgrace-gpu, from Linux 6.8).
	GraceDriver = "nvgrace_gpu_vfio_pci"
	// gpuDriver is NVIDIA's kernel driver.
	gpuDriver = "nvidia"
	nvidia    = 0x10de
	// display is the base class of GPUs. switches is the class (other bridge) of NVSwitches.
	display, nvSwitch = 0x03, 0x0680
)

// Name is the device name of the GPU at an address: gpu-vfio-0000-3b-00-0. It does not depend on the other GPUs of the node.
func Name(gpu pci.Address) string {
	return namePrefix + strings.NewReplacer(":", "-", ".", "-").Replace(string(gpu))
}

const namePrefix = "gpu-vfio-"

// IsName reports whether a device's name belongs to a GPU that is passed through.
func IsName(device string) bool { return strings.HasPrefix(device, namePrefix) }

// Card is a GPU that can be passed through, with the other functions of its card (audio, USB), which are in its IOMMU group.
type Card struct {
	GPU   pci.Function
	Place inventory.Place
	// Functions are those that a virtual machine gets; the GPU comes first.
	Functions []pci.Address
	// Group is the number of their IOMMU group.
	Group int
	// VFIO is the driver that the GPU gets: Driver or GraceDriver. The other functions get Driver.
	VFIO string
	// Switched: the node has NVSwitches on its PCI bus: the GPU needs a partition of Fabric Manager.
	Switched bool
	Identity
}

// Name is the card's device name.
func (c *Card) Name() string { return Name(c.GPU.Address) }

// Identity is NVIDIA's driver's description of a GPU while it has it. Every field may be empty.
type Identity struct {
	UUID    string `json:"uuid,omitempty"`
	Product string `json:"product,omitempty"`
}

// Places are where the node's hardware is.
type Places struct {
	// Sysfs is used in place of /sys, Dev of /dev and Proc of /proc. HostProc is the node's own /proc, which shows the processes of all
	// containers; the other files of /proc are the same everywhere.
	Sysfs, Dev, Proc, HostProc string
	// Partitions: GPUs behind NVSwitches can have a partition of Fabric Manager.
	Partitions bool
}

func (p Places) function(a pci.Address, attribute string) string {
	return filepath.Join(p.Sysfs, "bus/pci/devices", string(a), attribute)
}

func (p Places) driver(name, attribute string) string {
	return filepath.Join(p.Sysfs, "bus/pci/drivers", name, attribute)
}

// Find returns the node's GPUs that can be passed through, by address, and why the others cannot. Its error is for a PCI bus that
// cannot be read.
func Find(ctx context.Context, p Places) (cards []*Card, problems []error, err error) {
	bus, err := pci.NewFS(p.Sysfs).Scan(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	locate, err := inventory.Locator(ctx, p.Sysfs)
	if err != nil {
		return nil, nil, err
	}
	var gpus []*pci.Function
	switches := 0
	for i := range bus.Functions {
		f := &bus.Functions[i]
		switch {
		case f.Vendor != nvidia:
		case f.Class>>16 == display && !f.Virtual():
			gpus = append(gpus, f)
		case f.Class>>8 == nvSwitch:
			switches++
		}
	}
	for _, s := range bus.Skipped {
		problems = append(problems, fmt.Errorf("PCI function %s cannot be read: %w", s.Name, s.Reason))
	}
	if len(gpus) == 0 {
		return nil, problems, nil
	}
	if err := p.ready(switches); err != nil {
		return nil, append(problems, err), nil
	}
	for _, f := range gpus {
		card, err := p.card(bus, f)
		if err == nil {
			card.Place, err = locate(string(f.Address))
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("GPU %s is not passed through: %w", f.Address, err))
			continue
		}
		card.Switched = switches > 0
		cards = append(cards, card)
	}
	return cards, problems, nil
}

// ready returns the reason why no GPU of the node can be passed through.
func (p Places) ready(switches int) error {
	groups, err := os.ReadDir(filepath.Join(p.Sysfs, "kernel/iommu_groups"))
	switch {
	case err != nil || len(groups) == 0:
		return errors.New("GPUs are not passed through: the kernel has no IOMMU groups, so the IOMMU is off: switch it on in the firmware " +
			"(VT-d, " +
			"AMD-Vi, SMMU), and boot an Intel machine with intel_iommu=on")
	case switches > 0 && !p.Partitions:
		return fmt.Errorf("GPUs are not passed through: the node has %d NVSwitches, and a GPU behind them works in a virtual machine only "+
			"with a "+
			"partition of Fabric Manager: set gpus.passthrough.fabricManager, or offer its GPUs in another form", switches)
	}
	if _, err := os.Stat(p.driver(Driver, "bind")); err != nil {
		return fmt.Errorf("GPUs are not passed through: the kernel's driver %s is not loaded (%w): modprobe vfio-pci on the node", Driver, err)
	}
	return nil
}

// card checks a GPU and its IOMMU group. A virtual machine gets all functions of a group, or none works: VFIO refuses to open a group
// of which a function has another driver (drivers/iommu/iommu.c, iommu_group_claim_dma_owner). Bridges are exempt, since their
// driver does no DMA (driver_managed_dma of drivers/pci/pcie/portdrv.c).
func (p Places) card(bus *pci.Bus, gpu *pci.Function) (*Card, error) {
	target, err := os.Readlink(p.function(gpu.Address, "iommu_group"))
	if err != nil {
		return nil, fmt.Errorf("it has no IOMMU group (%w)", err)
	}
	card := &Card{GPU: *gpu, Functions: []pci.Address{gpu.Address}, VFIO: Driver}
	if coherent(gpu.Device) {
		card.VFIO = GraceDriver
		if _, err := os.Stat(p.driver(GraceDriver, "bind")); err != nil {
			return nil, fmt.Errorf("its memory is coherent with the CPU's, and the kernel's driver %s is not loaded (%w): modprobe "+
				"nvgrace-gpu-vfio-pci on the node (Linux 6.8 and later)", GraceDriver, err)
		}
	}
	if card.Identity, err = p.identity(gpu.Address); err != nil {
		return nil, err
	}
	if card.Group, err = strconv.Atoi(filepath.Base(target)); err != nil {
		return nil, fmt.Errorf("its link iommu_group leads to %q, which does not end in a number", target)
	}
	if gpu.NumVFs > 0 {
		return nil, fmt.Errorf("it has %d virtual functions, and %s does not accept such a GPU: set sriov_numvfs to 0", gpu.NumVFs, Driver)
	}
	if d := gpu.Driver; d != "" && d != gpuDriver && !passes(d) {
		return nil, fmt.Errorf("its driver is %s: only GPUs of the drivers %s and %s, or without a driver, are passed through; keep %s off it "+
			"(modprobe.d: blacklist %s)", d, gpuDriver, Driver, d, d)
	}
	members, err := os.ReadDir(filepath.Join(p.Sysfs, "kernel/iommu_groups", strconv.Itoa(card.Group), "devices"))
	if err != nil {
		return nil, fmt.Errorf("list its IOMMU group: %w", err)
	}
	for _, m := range members {
		f := bus.Function(pci.Address(m.Name()))
		switch {
		case m.Name() == string(gpu.Address):
		case f == nil:
			return nil, fmt.Errorf("its IOMMU group %d has %s, which cannot be read", card.Group, m.Name())
		case f.Class.Bridge():
		case f.Vendor == nvidia && slot(f.Address) == slot(gpu.Address):
			card.Functions = append(card.Functions, f.Address)
		default:
			return nil, fmt.Errorf("its IOMMU group %d also has %s (%s): a virtual machine would get it too; put one of the two into another "+
				"slot, or switch on ACS in the firmware", card.Group, f.Address, describe(f))
		}
	}
	slices.Sort(card.Functions[1:])
	return card, nil
}

// passes reports whether a driver is one of VFIO's.
func passes(driver string) bool { return driver == Driver || driver == GraceDriver }

// coherent reports whether a GPU of this PCI device ID has a driver of VFIO of its own (nvgrace_gpu_vfio_pci_table of
// drivers/vfio/pci/nvgrace-gpu/main.c). driver_override would bind that driver to any other function too.
func coherent(device uint16) bool {
	switch device {
	case 0x2342, 0x2345, 0x2348, // GH200
		0x2941, // GB200
		0x31c2: // GB300
		return true
	}
	return false
}

// describe names the kind of a function for a message.
func describe(f *pci.Function) string {
	kind := fmt.Sprintf("a device of PCI class %06x", uint32(f.Class))
	switch {
	case f.Class.Network():
		kind = "a NIC"
	case f.Class>>16 == display:
		kind = "another GPU"
	case f.Class>>16 == 0x01:
		kind = "a storage controller"
	}
	if f.Driver == "" {
		return kind + " without a driver"
	}
	return kind + " of driver " + f.Driver
}

// slot is an address without its function's number.
func slot(a pci.Address) string { return strings.TrimRight(string(a), "01234567") }

// identity reads the facts that NVIDIA's driver reports of a GPU (/proc/driver/nvidia/gpus/ADDRESS/information).
func (p Places) identity(gpu pci.Address) (id Identity, err error) {
	if id.UUID, err = p.information(gpu, "GPU UUID"); err == nil {
		id.Product, err = p.information(gpu, "Model")
	}
	return id, err
}

// information is a field of that file; empty where NVIDIA's driver does not have the GPU.
func (p Places) information(gpu pci.Address, key string) (string, error) {
	text, err := os.ReadFile(filepath.Join(p.Proc, "driver/nvidia/gpus", string(gpu), "information"))
	switch {
	case ended(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read NVIDIA's driver's description of GPU %s: %w", gpu, err)
	}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found && name == key {
			return strings.TrimSpace(value), nil
		}
	}
	return "", nil
}
