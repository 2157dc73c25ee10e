package nvmlstate

import (
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/state"
)

// code returns the NVML return code of an error of the rules.
func code(err error) nvml.Return {
	switch {
	case err == nil:
		return nvml.SUCCESS
	case errors.Is(err, mig.ErrNotSupported):
		return nvml.ERROR_NOT_SUPPORTED
	case errors.Is(err, mig.ErrInvalid):
		return nvml.ERROR_INVALID_ARGUMENT
	case errors.Is(err, mig.ErrInUse):
		return nvml.ERROR_IN_USE
	case errors.Is(err, mig.ErrInsufficientResources):
		return nvml.ERROR_INSUFFICIENT_RESOURCES
	case errors.Is(err, mig.ErrResetRequired):
		return nvml.ERROR_RESET_REQUIRED
	}
	return nvml.ERROR_UNKNOWN
}

func (l *library) migDevice(gpu int, gi, ci uint32) *device {
	return &device{Device: l.devices, lib: l, gpu: gpu, isMIG: true, gi: gi, ci: ci}
}

func (l *library) findMIG(function string, uuid [16]byte) (nvml.Device, nvml.Return) {
	var found *device
	r := l.read(function, func(b *state.Body) nvml.Return {
		for i, g := range b.GPUs {
			for j := range g.Instances {
				gi := &g.Instances[j]
				for k := range gi.Computes {
					if c := &gi.Computes[k]; gi.Used != 0 && c.Used != 0 && c.UUID == uuid {
						found = l.migDevice(i, gi.ID, c.ID)
						return nvml.SUCCESS
					}
				}
			}
		}
		return nvml.ERROR_NOT_FOUND
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return found, r
}

// change runs one of the rules on the GPU as the only writer, then brings the capability files up to date.
func (d *device) change(function string, fn func(*state.Model, *state.GPU) error) nvml.Return {
	return d.changeBeside(function, func(m *state.Model, g *state.GPU, _ bool) error { return fn(m, g) })
}

// changeBeside is change for rules that depend on whether other NVML clients have the GPUs open.
func (d *device) changeBeside(function string, fn func(m *state.Model, g *state.GPU, others bool) error) nvml.Return {
	r := d.lib.write(function, func(b *state.Body) nvml.Return {
		p, r := d.gpuOnly(b)
		if r != nvml.SUCCESS {
			return r
		}
		b.Sweep(p.gpu)
		return code(fn(p.model, p.gpu, b.OtherClients()))
	})
	if r == nvml.SUCCESS {
		d.lib.syncMIG()
	}
	return r
}

func (d *device) SetMigMode(mode int) (nvml.Return, nvml.Return) {
	if mode != nvml.DEVICE_MIG_DISABLE && mode != nvml.DEVICE_MIG_ENABLE {
		return nvml.SUCCESS, nvml.ERROR_INVALID_ARGUMENT
	}
	var activation error
	r := d.changeBeside("DeviceSetMigMode", func(m *state.Model, g *state.GPU, others bool) (err error) {
		err, activation = mig.SetMode(m, g, mode == nvml.DEVICE_MIG_ENABLE, others)
		return err
	})
	return code(activation), r
}

func (d *device) GetMigMode() (int, int, nvml.Return) {
	v, r := get(d, "DeviceGetMigMode", whole, func(p part) ([2]int, nvml.Return) {
		if p.model.MIGProfileCount == 0 {
			return [2]int{}, nvml.ERROR_NOT_SUPPORTED
		}
		return [2]int{int(p.gpu.Core.MIGCurrent), int(p.gpu.Core.MIGPending)}, nvml.SUCCESS
	})
	return v[0], v[1], r
}

func (d *device) GetMaxMigDeviceCount() (int, nvml.Return) {
	return get(d, "DeviceGetMaxMigDeviceCount", whole, func(p part) (int, nvml.Return) {
		if p.gpu.Core.MIGCurrent == 0 {
			return 0, nvml.SUCCESS
		}
		return int(p.model.MIGMaxInstances), nvml.SUCCESS
	})
}

func (d *device) IsMigDeviceHandle() (bool, nvml.Return) {
	return get(d, "DeviceIsMigDeviceHandle", anyPlace, func(part) (bool, nvml.Return) { return d.isMIG, nvml.SUCCESS })
}

func (d *device) instanceID(function string, id uint32) (int, nvml.Return) {
	return get(d, function, anyPlace, func(p part) (int, nvml.Return) {
		switch {
		case !d.isMIG && p.model.MIGMaxInstances > 0:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case !d.isMIG:
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return int(id), nvml.SUCCESS
	})
}

func (d *device) GetGpuInstanceId() (int, nvml.Return) {
	return d.instanceID("DeviceGetGpuInstanceId", d.gi)
}

func (d *device) GetComputeInstanceId() (int, nvml.Return) {
	return d.instanceID("DeviceGetComputeInstanceId", d.ci)
}

func (d *device) GetDeviceHandleFromMigDeviceHandle() (nvml.Device, nvml.Return) {
	if !d.isMIG {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return d.lib.device(d.gpu), nvml.SUCCESS
}

func (d *device) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	found, r := get(d, "DeviceGetMigDeviceHandleByIndex", whole, func(p part) (*device, nvml.Return) {
		switch {
		case p.model.MIGProfileCount == 0 || p.gpu.Core.MIGCurrent == 0:
			return nil, nvml.ERROR_NOT_SUPPORTED
		case index < 0 || index >= int(p.model.MIGMaxInstances):
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		left := index
		for gi := range uint32(mig.GPUInstanceIDs) {
			for ci := range uint32(mig.ComputeInstanceIDs) {
				if mig.FindComputeInstance(mig.FindGPUInstance(p.gpu, gi), ci) == nil {
					continue
				}
				if left == 0 {
					return d.lib.migDevice(d.gpu, gi, ci), nvml.SUCCESS
				}
				left--
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return found, r
}

func (d *device) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	if !d.isMIG {
		return nvml.DeviceAttributes{}, nvml.ERROR_NOT_SUPPORTED
	}
	return get(d, "DeviceGetAttributes_v2", anyLive, func(p part) (nvml.DeviceAttributes, nvml.Return) {
		gp, cp, ok := p.profiles()
		if !ok {
			return nvml.DeviceAttributes{}, nvml.ERROR_UNKNOWN
		}
		return nvml.DeviceAttributes{MultiprocessorCount: cp.Multiprocessors, SharedCopyEngineCount: gp.CopyEngines,
			SharedDecoderCount: gp.Decoders, SharedEncoderCount: gp.Encoders, SharedJpegCount: gp.JPEG, SharedOfaCount: gp.OFA,
			GpuInstanceSliceCount: gp.Slices, ComputeInstanceSliceCount: cp.Slices, MemorySizeMB: gp.MemoryMiB}, nvml.SUCCESS
	})
}

func (d *device) GetGpuInstanceProfileInfo(kind int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	if kind < 0 || kind >= nvml.GPU_INSTANCE_PROFILE_COUNT {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	return get(d, "DeviceGetGpuInstanceProfileInfo", whole, func(p part) (nvml.GpuInstanceProfileInfo, nvml.Return) {
		for _, q := range mig.Profiles(p.model) {
			if q.Kind == uint32(kind) {
				return nvml.GpuInstanceProfileInfo{Id: q.ID, IsP2pSupported: one(q.Slices == 7), SliceCount: q.Slices, InstanceCount: q.Max,
					MultiprocessorCount: q.Multiprocessors, CopyEngineCount: q.CopyEngines, DecoderCount: q.Decoders,
					EncoderCount: q.Encoders, JpegCount: q.JPEG, OfaCount: q.OFA, MemorySizeMB: q.MemoryMiB}, nvml.SUCCESS
			}
		}
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	})
}

func one(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// profile finds the state's profile for go-nvml's description of one; enabled: MIG must be on.
func (p part) profile(info *nvml.GpuInstanceProfileInfo, enabled bool) (int, nvml.Return) {
	if info == nil {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	i := mig.ProfileIndex(p.model, info.Id)
	if i < 0 || enabled && p.gpu.Core.MIGCurrent == 0 {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return i, nvml.SUCCESS
}

func (d *device) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	return get(d, "DeviceGetGpuInstancePossiblePlacements_v2", whole, func(p part) ([]nvml.GpuInstancePlacement, nvml.Return) {
		i, r := p.profile(info, false)
		if r != nvml.SUCCESS {
			return nil, r
		}
		q := &p.model.MIGProfiles[i]
		var all []nvml.GpuInstancePlacement
		for _, s := range q.Starts[:min(q.PlacementCount, state.MaxPlacements)] {
			all = append(all, nvml.GpuInstancePlacement{Start: s, Size: q.Size})
		}
		return all, nvml.SUCCESS
	})
}

func (d *device) GetGpuInstanceRemainingCapacity(info *nvml.GpuInstanceProfileInfo) (int, nvml.Return) {
	return get(d, "DeviceGetGpuInstanceRemainingCapacity", whole, func(p part) (int, nvml.Return) {
		i, r := p.profile(info, true)
		if r != nvml.SUCCESS {
			return 0, r
		}
		return mig.Capacity(p.model, p.gpu, i), nvml.SUCCESS
	})
}

func (d *device) GetGpuInstances(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	return get(d, "DeviceGetGpuInstances", whole, func(p part) ([]nvml.GpuInstance, nvml.Return) {
		i, r := p.profile(info, true)
		all := []nvml.GpuInstance{}
		for id := range uint32(mig.GPUInstanceIDs) {
			if gi := mig.FindGPUInstance(p.gpu, id); r == nvml.SUCCESS && gi != nil && int(gi.Profile) == i {
				all = append(all, d.instance(id))
			}
		}
		return all, r
	})
}

func (d *device) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) {
	found, r := get(d, "DeviceGetGpuInstanceById", whole, func(p part) (*gpuInstance, nvml.Return) {
		switch {
		case p.gpu.Core.MIGCurrent == 0:
			return nil, nvml.ERROR_NOT_SUPPORTED
		case id < 0 || mig.FindGPUInstance(p.gpu, uint32(id)) == nil:
			return nil, nvml.ERROR_NOT_FOUND
		}
		return d.instance(uint32(id)), nvml.SUCCESS
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return found, r
}

func (d *device) CreateGpuInstance(info *nvml.GpuInstanceProfileInfo) (nvml.GpuInstance, nvml.Return) {
	return d.createInstance("DeviceCreateGpuInstance", info, mig.Anywhere)
}

func (d *device) CreateGpuInstanceWithPlacement(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance,
	nvml.Return) {
	if at == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return d.createInstance("DeviceCreateGpuInstanceWithPlacement", info, at.Start)
}

func (d *device) createInstance(function string, info *nvml.GpuInstanceProfileInfo, start uint32) (nvml.GpuInstance, nvml.Return) {
	if info == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	var id uint32
	r := d.change(function, func(m *state.Model, g *state.GPU) (err error) {
		i := mig.ProfileIndex(m, info.Id)
		if i < 0 {
			return mig.ErrInvalid
		}
		id, err = mig.CreateGPUInstance(m, g, i, start)
		return err
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return d.instance(id), r
}

func (d *device) instance(id uint32) *gpuInstance {
	return &gpuInstance{GpuInstance: d.lib.instances, device: &device{Device: d.lib.devices, lib: d.lib, gpu: d.gpu, gi: state.None,
		ci: state.None}, id: id}
}

// gpuInstance is a MIG GPU instance; it may have been destroyed since.
type gpuInstance struct {
	*mock.GpuInstance
	device *device
	id     uint32
}

// getIn reads something of a GPU instance.
func getIn[T any](g *gpuInstance, function string, fn func(*state.Model, *state.MIGProfile, *state.GPUInstance) (T, nvml.Return)) (T,
	nvml.Return) {
	return get(g.device, function, whole, func(p part) (T, nvml.Return) {
		gi := mig.FindGPUInstance(p.gpu, g.id)
		if gi == nil || gi.Profile >= min(p.model.MIGProfileCount, state.MaxMIGProfiles) {
			var zero T
			return zero, nvml.ERROR_INVALID_ARGUMENT
		}
		return fn(p.model, &p.model.MIGProfiles[gi.Profile], gi)
	})
}

func (g *gpuInstance) Destroy() nvml.Return {
	return g.device.change("GpuInstanceDestroy", func(_ *state.Model, s *state.GPU) error { return mig.DestroyGPUInstance(s, g.id) })
}

func (g *gpuInstance) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	return getIn(g, "GpuInstanceGetInfo", func(_ *state.Model, p *state.MIGProfile, gi *state.GPUInstance) (nvml.GpuInstanceInfo,
		nvml.Return) {
		return nvml.GpuInstanceInfo{Device: g.device, Id: gi.ID, ProfileId: p.ID,
			Placement: nvml.GpuInstancePlacement{Start: gi.Start, Size: p.Size}}, nvml.SUCCESS
	})
}
