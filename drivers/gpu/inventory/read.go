package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/uuid"
)

// Reader reads a node.
type Reader struct {
	// NVML must be initialised.
	NVML nvml.Interface
	// Locate finds a PCI device's place by its bus ID.
	Locate func(busID string) (Place, error)
}

// Read reads everything from NVML and sysfs. It fails only where NVML itself does. It leaves out a GPU that cannot be read and
// reports it in Node.Problems.
func (r Reader) Read() (*Node, error) {
	n := &Node{}
	var ret nvml.Return
	if n.DriverVersion, ret = r.NVML.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("query NVML for the driver's version: %w", ret)
	}
	if n.CUDAVersion, ret = r.NVML.SystemGetCudaDriverVersion(); ret != nvml.SUCCESS {
		n.Problems = append(n.Problems, fmt.Errorf("query NVML for the CUDA version: %w", ret))
	}
	count, ret := r.NVML.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("query NVML for the number of GPUs: %w", ret)
	}
	lib := device.New(r.NVML)
	for index := range count {
		handle, ret := r.NVML.DeviceGetHandleByIndex(index)
		if ret != nvml.SUCCESS {
			n.Problems = append(n.Problems, fmt.Errorf("GPU %d: get its handle from NVML: %w", index, ret))
			n.Missing = append(n.Missing, index)
			continue
		}
		g, err := r.gpu(lib, index, handle)
		if err != nil {
			n.Problems = append(n.Problems, fmt.Errorf("GPU %d: %w", index, err))
		}
		if g == nil {
			n.Missing = append(n.Missing, index)
			continue
		}
		n.GPUs = append(n.GPUs, g)
	}
	slices.SortFunc(n.GPUs, func(a, b *GPU) int { return cmp.Compare(a.Minor, b.Minor) })
	nameNVLinkIslands(r.NVML, n.GPUs)
	return n, nil
}

// gpu reads one GPU. It returns none where its identity cannot be read, and both a GPU and an error where only an attribute is
// missing.
func (r Reader) gpu(lib device.Interface, index int, handle nvml.Device) (*GPU, error) {
	g := &GPU{Handle: handle, Index: index}
	dev, err := lib.NewDevice(handle)
	if err != nil {
		return nil, err
	}
	var ret nvml.Return
	if g.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read its UUID: %w", ret)
	}
	if g.Minor, ret = handle.GetMinorNumber(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%s: read its minor number: %w", g.UUID, ret)
	}
	memory, ret := handle.GetMemoryInfo()
	switch ret {
	case nvml.SUCCESS:
		g.MemoryBytes = memory.Total
	case nvml.ERROR_NOT_SUPPORTED: // an integrated GPU, which has the machine's memory
	default:
		return nil, fmt.Errorf("%s: read its memory: %w", g.UUID, ret)
	}

	var missing []error
	note := func(what string, err error) {
		if err != nil {
			missing = append(missing, fmt.Errorf("%s: read its %s: %w", g.UUID, what, err))
		}
	}
	g.ProductName, ret = handle.GetName()
	note("name", failure(ret))
	g.Brand, err = dev.GetBrandAsString()
	note("brand", err)
	g.Architecture, err = dev.GetArchitectureAsString()
	note("architecture", err)
	g.ComputeCapability[0], g.ComputeCapability[1], ret = handle.GetCudaComputeCapability()
	note("compute capability", failure(ret))
	g.AddressingMode, err = addressingMode(r.NVML, dev)
	note("addressing mode", err)
	mode, ret := handle.GetVirtualizationMode()
	note("virtualization mode", failure(ret))
	g.VGPU = ret == nvml.SUCCESS && mode == nvml.GPU_VIRTUALIZATION_MODE_VGPU
	if info, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
		g.PCIDevice = info.PciDeviceId
	}
	g.Place = Place{NUMANode: -1}
	if busID, err := busID(dev); err != nil {
		note("PCI address", err)
	} else if g.Place, err = r.Locate(busID); err != nil {
		note("place on the PCI bus", err)
		g.Place = Place{BusID: busID, NUMANode: -1}
	}
	g.Clique, g.NVLinkDomain, err = fabric(r.NVML, handle)
	note("NVLink fabric", err)
	g.MIG, err = readMIG(r.NVML, lib, g)
	note("MIG geometry", err)
	return g, errors.Join(missing...)
}

// failure is nil for success, and for a feature that a GPU or driver of this kind does not have.
func failure(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil
	default:
		return ret
	}
}

// has reports whether the library has a symbol: calling a missing one ends the process.
func has(lib nvml.Interface, symbol string) bool {
	return lib.Extensions().LookupSymbol(symbol) == nil
}

func addressingMode(lib nvml.Interface, dev device.Device) (string, error) {
	if !has(lib, "nvmlDeviceGetAddressingMode") {
		return "", nil
	}
	mode, ret := nvml.Device(dev).GetAddressingMode()
	if ret != nvml.SUCCESS {
		return "", failure(ret)
	}
	switch nvml.DeviceAddressingModeType(mode.Value) {
	case nvml.DEVICE_ADDRESSING_MODE_HMM:
		return "HMM", nil
	case nvml.DEVICE_ADDRESSING_MODE_ATS:
		return "ATS", nil
	default:
		return "None", nil
	}
}

// busID is the GPU's address with sysfs's four-digit domain; NVML writes eight digits.
func busID(dev device.Device) (string, error) {
	id, err := dev.GetPCIBusID()
	if err != nil {
		return "", err
	}
	if id == "" {
		return "", errors.New("NVML returned an empty value")
	}
	return strings.ToLower(id), nil
}

// fabric reads the GPU's clique and cluster. Both are empty without a fabric, and until the fabric manager has registered the GPU.
func fabric(lib nvml.Interface, handle nvml.Device) (clique, domain string, err error) {
	if !has(lib, "nvmlDeviceGetGpuFabricInfo") {
		return "", "", nil
	}
	info, ret := handle.GetGpuFabricInfo()
	if ret != nvml.SUCCESS {
		return "", "", failure(ret)
	}
	if info.State != nvml.GPU_FABRIC_STATE_COMPLETED || info.ClusterUuid == [16]uint8{} {
		return "", "", nil
	}
	if status := nvml.Return(info.Status); status != nvml.SUCCESS {
		return "", "", fmt.Errorf("registration ended with %w", status)
	}
	cluster := uuid.UUID(info.ClusterUuid).String()
	return fmt.Sprintf("%s.%d", cluster, info.CliqueId), cluster, nil
}

// normalBusID turns NVML's 00000000:3B:00.0 into sysfs's 0000:3b:00.0.
func normalBusID(id string) string {
	id = strings.ToLower(id)
	if len(id) == len("dddddddd:bb:dd.f") && strings.HasPrefix(id, "0000") {
		id = id[len("0000"):]
	}
	return id
}
