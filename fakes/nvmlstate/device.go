package nvmlstate

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

// device is a GPU, or a MIG device of it.
type device struct {
	*mock.Device
	lib *library
	gpu int
	// isMIG devices are the compute instance ci of the GPU instance gi; both are state.None otherwise.
	isMIG  bool
	gi, ci uint32
}

func (l *library) device(gpu int) *device {
	return &device{Device: l.devices, lib: l, gpu: gpu, gi: state.None, ci: state.None}
}

// part is the object of a handle in one view of the state; gi and ci are nil for a whole GPU.
type part struct {
	body  *state.Body
	node  *state.Node
	model *state.Model
	gpu   *state.GPU
	gi    *state.GPUInstance
	ci    *state.ComputeInstance
}

func (d *device) in(b *state.Body) (part, nvml.Return) {
	g, err := b.GPU(d.gpu)
	if err != nil {
		return part{}, nvml.ERROR_INVALID_ARGUMENT
	}
	p := part{body: b, node: b.Node, model: &b.Node.Model, gpu: g}
	if d.isMIG {
		p.gi = mig.FindGPUInstance(g, d.gi)
		p.ci = mig.FindComputeInstance(p.gi, d.ci)
	}
	return p, alive(g)
}

// gpuOnly is in for functions that only work on whole GPUs. For them a MIG device is an invalid argument.
func (d *device) gpuOnly(b *state.Body) (part, nvml.Return) {
	p, r := d.in(b)
	if r == nvml.SUCCESS && d.isMIG {
		r = nvml.ERROR_INVALID_ARGUMENT
	}
	return p, r
}

// get reads one value. kinds selects the handles for which the function works: whole GPUs, or any.
func get[T any](d *device, function string, kind kind, fn func(part) (T, nvml.Return)) (T, nvml.Return) {
	var v T
	r := d.lib.read(function, func(b *state.Body) nvml.Return {
		p, r := d.in(b)
		if r != nvml.SUCCESS {
			return r
		}
		if d.isMIG && kind == whole {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		if d.isMIG && kind == anyLive && p.ci == nil {
			return nvml.ERROR_NOT_FOUND
		}
		v, r = fn(p)
		return r
	})
	if r != nvml.SUCCESS {
		var zero T
		return zero, r
	}
	return v, r
}

// kind is the kind of handles that a function accepts.
type kind int

const (
	whole    kind = iota // GPUs only
	anyPlace             // MIG devices too, also ones that are gone
	anyLive              // MIG devices too, as long as they exist
)

// core and model make getters of plain numbers.
func core[T any](fn func(*state.Core) T) func(part) (T, nvml.Return) {
	return func(p part) (T, nvml.Return) { return fn(&p.gpu.Core), nvml.SUCCESS }
}

func model[T any](fn func(*state.Model) T) func(part) (T, nvml.Return) {
	return func(p part) (T, nvml.Return) { return fn(p.model), nvml.SUCCESS }
}

// GetIndex gives a MIG device's number on its GPU, as nvml.h describes for nvmlDeviceGetIndex.
func (d *device) GetIndex() (int, nvml.Return) {
	return get(d, "DeviceGetIndex", anyLive, func(p part) (int, nvml.Return) {
		if !d.isMIG {
			return d.gpu, nvml.SUCCESS
		}
		before := 0
		for gi := range uint32(mig.GPUInstanceIDs) {
			for ci := range uint32(mig.ComputeInstanceIDs) {
				switch {
				case mig.FindComputeInstance(mig.FindGPUInstance(p.gpu, gi), ci) == nil:
				case gi == d.gi && ci == d.ci:
					return before, nvml.SUCCESS
				default:
					before++
				}
			}
		}
		return 0, nvml.ERROR_NOT_FOUND
	})
}

func (d *device) GetUUID() (string, nvml.Return) {
	return get(d, "DeviceGetUUID", anyLive, func(p part) (string, nvml.Return) {
		if p.ci != nil {
			return "MIG-" + profile.FormatUUID(p.ci.UUID), nvml.SUCCESS
		}
		return "GPU-" + profile.FormatUUID(p.gpu.Core.UUID), nvml.SUCCESS
	})
}

func (d *device) GetName() (string, nvml.Return) {
	return get(d, "DeviceGetName", anyLive, func(p part) (string, nvml.Return) {
		name := state.String(p.model.Name[:])
		gp, cp, ok := p.profiles()
		switch {
		case p.ci == nil:
			return name, nvml.SUCCESS
		case !ok:
			return "", nvml.ERROR_UNKNOWN
		case cp.Slices < gp.Slices:
			return fmt.Sprintf("%s MIG %dc.%s", name, cp.Slices, state.String(gp.Name[:])), nvml.SUCCESS
		}
		return name + " MIG " + state.String(gp.Name[:]), nvml.SUCCESS
	})
}

// profiles are the profiles of a MIG device's instances.
func (p part) profiles() (*state.MIGProfile, *state.CIProfile, bool) {
	if p.ci == nil || p.gi.Profile >= state.MaxMIGProfiles || p.ci.Profile >= state.MaxCIProfiles {
		return nil, nil, false
	}
	gp := &p.model.MIGProfiles[p.gi.Profile]
	return gp, &gp.CIProfiles[p.ci.Profile], true
}

func (d *device) GetMinorNumber() (int, nvml.Return) {
	return get(d, "DeviceGetMinorNumber", whole, core(func(c *state.Core) int { return int(c.Minor) }))
}

func (d *device) GetModuleId() (int, nvml.Return) {
	return get(d, "DeviceGetModuleId", whole, core(func(c *state.Core) int { return int(c.Module) }))
}

func (d *device) GetSerial() (string, nvml.Return) {
	return get(d, "DeviceGetSerial", whole, core(func(c *state.Core) string { return state.String(c.Serial[:]) }))
}

func (d *device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return get(d, "DeviceGetArchitecture", anyPlace,
		model(func(m *state.Model) nvml.DeviceArchitecture { return nvml.DeviceArchitecture(m.Architecture) }))
}

func (d *device) GetBrand() (nvml.BrandType, nvml.Return) {
	return get(d, "DeviceGetBrand", anyPlace, model(func(m *state.Model) nvml.BrandType { return nvml.BrandType(m.Brand) }))
}

func (d *device) GetCudaComputeCapability() (int, int, nvml.Return) {
	v, r := get(d, "DeviceGetCudaComputeCapability", anyPlace, model(func(m *state.Model) [2]int {
		return [2]int{int(m.ComputeMajor), int(m.ComputeMinor)}
	}))
	return v[0], v[1], r
}

func (d *device) GetBoardPartNumber() (string, nvml.Return) {
	return get(d, "DeviceGetBoardPartNumber", whole, func(p part) (string, nvml.Return) { return text(p.model.BoardPart[:]) })
}

func (d *device) GetVbiosVersion() (string, nvml.Return) {
	return get(d, "DeviceGetVbiosVersion", whole, func(p part) (string, nvml.Return) { return text(p.model.VBIOS[:]) })
}

func (d *device) GetInforomImageVersion() (string, nvml.Return) {
	return get(d, "DeviceGetInforomImageVersion", whole, func(p part) (string, nvml.Return) { return text(p.model.InfoROM[:]) })
}

// text is a field that not every profile fills.
func text(field []byte) (string, nvml.Return) {
	s := state.String(field)
	if s == "" {
		return "", nvml.ERROR_NOT_SUPPORTED
	}
	return s, nvml.SUCCESS
}

func (d *device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return get(d, "DeviceGetPciInfo_v3", whole, func(p part) (nvml.PciInfo, nvml.Return) {
		c := &p.gpu.Core
		info := pciInfo(c.Domain, c.Bus, c.Device, p.model.PCIDevice)
		info.PciSubSystemId = p.model.PCISubsystem
		return info, nvml.SUCCESS
	})
}

func pciInfo(domain, bus, device, id uint32) nvml.PciInfo {
	info := nvml.PciInfo{Domain: domain, Bus: bus, Device: device, PciDeviceId: id}
	chars(info.BusIdLegacy[:], fmt.Sprintf("%04X:%02X:%02X.0", domain&0xffff, bus&0xff, device&0xff))
	chars(info.BusId[:], fmt.Sprintf("%08X:%02X:%02X.0", domain, bus&0xff, device&0xff))
	return info
}

// chars copies text into a field of C characters.
func chars(field []int8, text string) {
	for i := range min(len(text), len(field)-1) {
		field[i] = int8(text[i])
	}
}

func (d *device) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	return get(d, "DeviceGetAddressingMode", anyPlace, model(func(m *state.Model) nvml.DeviceAddressingMode {
		v := nvml.DeviceAddressingMode{Value: m.AddressingMode}
		v.Version = nvml.STRUCT_VERSION(v, 1)
		return v
	}))
}

func (d *device) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	return get(d, "DeviceGetVirtualizationMode", anyPlace, model(func(m *state.Model) nvml.GpuVirtualizationMode {
		return nvml.GpuVirtualizationMode(m.Virtualization)
	}))
}

func (d *device) GetNumaNodeId() (int, nvml.Return) {
	return get(d, "DeviceGetNumaNodeId", whole, func(p part) (int, nvml.Return) {
		if p.gpu.Core.MemoryNUMANode < 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return int(p.gpu.Core.MemoryNUMANode), nvml.SUCCESS
	})
}

func (d *device) GetCpuAffinity(cpus int) ([]uint, nvml.Return) {
	return d.GetCpuAffinityWithinScope(cpus, nvml.AFFINITY_SCOPE_NODE)
}

func (d *device) GetCpuAffinityWithinScope(cpus int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
	return get(d, "DeviceGetCpuAffinityWithinScope", whole, core(func(c *state.Core) []uint { return bits(c.CPUs[:], cpus) }))
}

func (d *device) GetMemoryAffinity(nodes int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
	return get(d, "DeviceGetMemoryAffinity", whole, core(func(c *state.Core) []uint { return bits(c.MemoryNodes[:], nodes) }))
}

// bits copies a set. go-nvml passes a number of CPUs or nodes, and expects one word for every eight of them.
func bits(from []uint64, count int) []uint {
	out := make([]uint, max(count-1, 0)/8+1)
	for i := range min(len(out), len(from)) {
		out[i] = uint(from[i])
	}
	return out
}

func (d *device) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return get(d, "DeviceGetMaxPcieLinkGeneration", anyPlace, model(func(m *state.Model) int { return int(m.PCIeLink) }))
}

func (d *device) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return get(d, "DeviceGetCurrPcieLinkGeneration", anyPlace, model(func(m *state.Model) int { return int(m.PCIeLink) }))
}

func (d *device) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return get(d, "DeviceGetMaxPcieLinkWidth", anyPlace, model(func(m *state.Model) int { return int(m.PCIeWidth) }))
}

func (d *device) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return get(d, "DeviceGetCurrPcieLinkWidth", anyPlace, model(func(m *state.Model) int { return int(m.PCIeWidth) }))
}

func (d *device) GetNumGpuCores() (int, nvml.Return) {
	return get(d, "DeviceGetNumGpuCores", anyPlace, model(func(m *state.Model) int { return int(m.Cores) }))
}

func (d *device) GetMemoryBusWidth() (uint32, nvml.Return) {
	return get(d, "DeviceGetMemoryBusWidth", anyPlace, model(func(m *state.Model) uint32 { return m.MemoryBusBits }))
}
