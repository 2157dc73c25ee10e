package gputest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// instance is a GPU instance with at most one compute instance.
type instance struct {
	mock.GpuInstance
	gpu     *GPU
	info    nvml.GpuInstanceInfo
	profile profile
	number  int
	compute *mock.ComputeInstance
}

func newGPU(minor int) *GPU {
	g := &GPU{Minor: minor, UUID: fmt.Sprintf("GPU-%08x-0000-4000-8000-000000000000", minor+1), instances: map[uint32]*instance{}}
	const total = 40 << 30
	g.GetUUIDFunc = func() (string, nvml.Return) { return g.UUID, nvml.SUCCESS }
	g.GetIndexFunc = func() (int, nvml.Return) { return minor, nvml.SUCCESS }
	g.GetMinorNumberFunc = func() (int, nvml.Return) { return minor, nvml.SUCCESS }
	g.GetNameFunc = func() (string, nvml.Return) { return "NVIDIA A100-SXM4-40GB", nvml.SUCCESS }
	g.GetBrandFunc = func() (nvml.BrandType, nvml.Return) { return nvml.BRAND_NVIDIA, nvml.SUCCESS }
	// The MIG mode of a real A100 changes only by a reset; fakes/profiles/a100-40.yaml is one. These GPUs change it at once, as from
	// Hopper on.
	g.GetArchitectureFunc = func() (nvml.DeviceArchitecture, nvml.Return) { return nvml.DEVICE_ARCH_HOPPER, nvml.SUCCESS }
	g.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 8, 0, nvml.SUCCESS }
	g.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: total}, g.answer() }
	g.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		return make([]nvml.ProcessInfo, g.Processes), nvml.SUCCESS
	}
	none := func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	g.GetGraphicsRunningProcessesFunc, g.GetMPSComputeRunningProcessesFunc = none, none
	g.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
		info := pciInfo(fmt.Sprintf("00000000:%02X:00.0", minor+0x10))
		info.PciDeviceId = 0x20B010DE
		return info, nvml.SUCCESS
	}
	g.GetVirtualizationModeFunc = func() (nvml.GpuVirtualizationMode, nvml.Return) {
		return nvml.GPU_VIRTUALIZATION_MODE_NONE, nvml.SUCCESS
	}
	g.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	g.GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) { return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED }
	g.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if link >= 2 {
			return nvml.FEATURE_DISABLED, nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	g.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
		return pciInfo(fmt.Sprintf("00000000:%02X:00.0", 0xC0+link)), nvml.SUCCESS // two NVSwitches that every GPU reaches
	}
	g.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) {
		return nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeSingleBitEccError |
			nvml.EventTypeGpuRecoveryAction, nvml.SUCCESS
	}
	g.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	g.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		g.mu.Lock()
		defer g.mu.Unlock()
		for i := range values {
			if values[i].FieldId != nvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
				values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				continue
			}
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			binary.NativeEndian.PutUint32(values[i].Value[:], g.Recovery)
		}
		return nvml.SUCCESS
	}
	g.SetComputeModeFunc = func(mode nvml.ComputeMode) nvml.Return {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.lost {
			return nvml.ERROR_GPU_IS_LOST
		}
		g.mode = mode
		return nvml.SUCCESS
	}
	g.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return g.ComputeMode(), nvml.SUCCESS }
	g.migFuncs()
	return g
}

// ComputeMode returns the last mode set.
func (g *GPU) ComputeMode() nvml.ComputeMode {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mode
}

// SetProcesses sets how many processes run on the GPU.
func (g *GPU) SetProcesses(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Processes = n
}

// SetLost makes the GPU fall off the bus, or brings it back after a reset without its MIG instances.
func (g *GPU) SetLost(lost bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost && !lost {
		g.instances, g.mode = map[uint32]*instance{}, nvml.COMPUTEMODE_DEFAULT
	}
	g.lost = lost
}

// answer is the return code of a call that needs the GPU itself.
func (g *GPU) answer() nvml.Return {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost {
		return nvml.ERROR_GPU_IS_LOST
	}
	return nvml.SUCCESS
}

// SetRecovery sets which recovery action the GPU reports.
func (g *GPU) SetRecovery(action uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Recovery = action
}

func pciInfo(id string) nvml.PciInfo {
	var info nvml.PciInfo
	for i, c := range []byte(id) {
		info.BusId[i] = int8(c)
	}
	return info
}

func (g *GPU) migFuncs() {
	g.GetMigModeFunc = func() (int, int, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.lost {
			return 0, 0, nvml.ERROR_GPU_IS_LOST
		}
		mode := nvml.DEVICE_MIG_DISABLE
		if g.mig {
			mode = nvml.DEVICE_MIG_ENABLE
		}
		return mode, mode, nvml.SUCCESS
	}
	g.SetMigModeFunc = func(mode int) (nvml.Return, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.instances) > 0 {
			return nvml.SUCCESS, nvml.ERROR_IN_USE
		}
		g.mig = mode == nvml.DEVICE_MIG_ENABLE
		return nvml.SUCCESS, nvml.SUCCESS
	}
	g.GetGpuInstanceProfileInfoFunc = func(number int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
		p, ok := profiles()[number]
		if !ok {
			return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return p.info, nvml.SUCCESS
	}
	g.GetGpuInstancePossiblePlacementsFunc = func(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
		var out []nvml.GpuInstancePlacement
		for _, p := range profiles() {
			if p.info.Id != info.Id {
				continue
			}
			for _, at := range p.at {
				out = append(out, nvml.GpuInstancePlacement{Start: at, Size: p.size})
			}
		}
		return out, nvml.SUCCESS
	}
	g.GetGpuInstancesFunc = func(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.lost {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		var out []nvml.GpuInstance
		for _, i := range g.sorted() {
			if i.info.ProfileId == info.Id {
				out = append(out, i)
			}
		}
		return out, nvml.SUCCESS
	}
	g.CreateGpuInstanceWithPlacementFunc = g.create
	g.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	g.GetMigDeviceHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, i := range g.sorted() {
			if i.compute == nil {
				continue
			}
			if index--; index < 0 {
				return i.device(), nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
}

func (g *GPU) sorted() []*instance {
	var out []*instance
	for _, i := range g.instances {
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b *instance) int { return int(a.info.Id) - int(b.info.Id) })
	return out
}

// Instances describes the existing instances: "19@0" is profile 19 at memory slice 0, with a "-" where its compute instance is
// missing.
func (g *GPU) Instances() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := []string{}
	for _, i := range g.sorted() {
		text := fmt.Sprintf("%d@%d", i.info.ProfileId, i.info.Placement.Start)
		if i.compute == nil {
			text += "-"
		}
		out = append(out, text)
	}
	return out
}

func (g *GPU) beforeMIG() {
	if g.BeforeMIG != nil {
		g.BeforeMIG()
	}
}

func (g *GPU) create(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	g.beforeMIG()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mig {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	for number, p := range profiles() {
		if p.info.Id != info.Id {
			continue
		}
		if p.size != at.Size || !slices.Contains(p.at, at.Start) {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		for _, other := range g.instances {
			o := other.info.Placement
			if o.Start < at.Start+at.Size && at.Start < o.Start+o.Size {
				return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
			}
		}
		g.nextID++
		i := &instance{gpu: g, profile: p, number: number, info: nvml.GpuInstanceInfo{Device: g, Id: g.nextID, ProfileId: info.Id,
			Placement: *at}}
		i.funcs()
		g.instances[i.info.Id] = i
		return i, nvml.SUCCESS
	}
	return nil, nvml.ERROR_INVALID_ARGUMENT
}

func (i *instance) funcs() {
	g := i.gpu
	i.GetInfoFunc = func() (nvml.GpuInstanceInfo, nvml.Return) { return i.info, nvml.SUCCESS }
	i.GetComputeInstanceProfileInfoFunc = func(number, _ int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
		if number != computeNumber(i.profile.info.SliceCount) {
			return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.ComputeInstanceProfileInfo{Id: uint32(number), SliceCount: i.profile.info.SliceCount, InstanceCount: 1}, nvml.SUCCESS
	}
	i.GetComputeInstancesFunc = func(*nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if i.compute == nil {
			return nil, nvml.SUCCESS
		}
		return []nvml.ComputeInstance{i.compute}, nvml.SUCCESS
	}
	i.CreateComputeInstanceFunc = func(*nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.FailCompute > 0 {
			g.FailCompute--
			return nil, nvml.ERROR_UNKNOWN
		}
		ci := &mock.ComputeInstance{}
		ci.GetInfoFunc = func() (nvml.ComputeInstanceInfo, nvml.Return) {
			return nvml.ComputeInstanceInfo{Device: g, GpuInstance: i}, nvml.SUCCESS
		}
		ci.DestroyFunc = func() nvml.Return {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.Busy > 0 {
				g.Busy--
				return nvml.ERROR_IN_USE
			}
			i.compute = nil
			return nvml.SUCCESS
		}
		i.compute = ci
		return ci, nvml.SUCCESS
	}
	i.DestroyFunc = func() nvml.Return {
		g.beforeMIG()
		g.mu.Lock()
		defer g.mu.Unlock()
		if i.compute != nil {
			return nvml.ERROR_IN_USE
		}
		delete(g.instances, i.info.Id)
		return nvml.SUCCESS
	}
}

// computeNumber is the number of the compute profile that fills an instance. It plays the driver, so it is written independently of
// inventory.ComputeProfile, which tests compare with it.
func computeNumber(slices uint32) int {
	switch slices {
	case 1:
		return nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE
	case 2:
		return nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE
	case 3:
		return nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE
	case 4:
		return nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE
	default:
		return nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE
	}
}

// device is the MIG device of an instance.
func (i *instance) device() nvml.Device {
	d := &mock.Device{}
	id := int(i.info.Id)
	d.GetGpuInstanceIdFunc = func() (int, nvml.Return) { return id, nvml.SUCCESS }
	d.GetComputeInstanceIdFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
	d.GetUUIDFunc = func() (string, nvml.Return) {
		return fmt.Sprintf("MIG-%08x-%04x-4000-8000-000000000000", i.gpu.Minor+1, id), nvml.SUCCESS
	}
	return d
}

// DropCompute removes the compute instances, like a crash between making a GPU instance and filling it.
func (g *GPU) DropCompute() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, i := range g.instances {
		i.compute = nil
	}
}
