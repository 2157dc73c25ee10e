package nvmlstate

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/state"
)

func (g *gpuInstance) GetComputeInstanceProfileInfo(kind, engine int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	return getIn(g, "GpuInstanceGetComputeInstanceProfileInfo", func(_ *state.Model, p *state.MIGProfile,
		_ *state.GPUInstance) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
		if kind < 0 || kind >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT || engine < 0 || engine >= nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT {
			return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
		}
		for _, c := range mig.ComputeProfiles(p) {
			if c.Kind == uint32(kind) {
				return nvml.ComputeInstanceProfileInfo{Id: c.ID, SliceCount: c.Slices, InstanceCount: c.Max, MultiprocessorCount: c.Multiprocessors,
					SharedCopyEngineCount: p.CopyEngines, SharedDecoderCount: p.Decoders, SharedEncoderCount: p.Encoders,
					SharedJpegCount: p.JPEG, SharedOfaCount: p.OFA}, nvml.SUCCESS
			}
		}
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	})
}

// computeProfile finds the state's compute profile for go-nvml's description of one.
func computeProfile(p *state.MIGProfile, info *nvml.ComputeInstanceProfileInfo) (int, nvml.Return) {
	if info == nil {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	i := mig.ComputeProfileIndex(p, info.Id)
	if i < 0 {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return i, nvml.SUCCESS
}

func (g *gpuInstance) GetComputeInstanceRemainingCapacity(info *nvml.ComputeInstanceProfileInfo) (int, nvml.Return) {
	return getIn(g, "GpuInstanceGetComputeInstanceRemainingCapacity",
		func(_ *state.Model, p *state.MIGProfile, gi *state.GPUInstance) (int, nvml.Return) {
			i, r := computeProfile(p, info)
			if r != nvml.SUCCESS {
				return 0, r
			}
			return mig.ComputeCapacity(p, gi, i), nvml.SUCCESS
		})
}

func (g *gpuInstance) GetComputeInstancePossiblePlacements(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstancePlacement,
	nvml.Return) {
	return getIn(g, "GpuInstanceGetComputeInstancePossiblePlacements",
		func(_ *state.Model, p *state.MIGProfile, _ *state.GPUInstance) ([]nvml.ComputeInstancePlacement, nvml.Return) {
			i, r := computeProfile(p, info)
			if r != nvml.SUCCESS {
				return nil, r
			}
			slices := p.CIProfiles[i].Slices
			var all []nvml.ComputeInstancePlacement
			for start := uint32(0); slices > 0 && start+slices <= p.Slices && len(all) < state.MaxPlacements; start++ {
				all = append(all, nvml.ComputeInstancePlacement{Start: start, Size: slices})
			}
			return all, nvml.SUCCESS
		})
}

func (g *gpuInstance) GetComputeInstances(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	return getIn(g, "GpuInstanceGetComputeInstances", func(_ *state.Model, p *state.MIGProfile, gi *state.GPUInstance) ([]nvml.ComputeInstance,
		nvml.Return) {
		i, r := computeProfile(p, info)
		all := []nvml.ComputeInstance{}
		for id := range uint32(mig.ComputeInstanceIDs) {
			if c := mig.FindComputeInstance(gi, id); r == nvml.SUCCESS && c != nil && int(c.Profile) == i {
				all = append(all, g.compute(id))
			}
		}
		return all, r
	})
}

func (g *gpuInstance) GetComputeInstanceById(id int) (nvml.ComputeInstance, nvml.Return) {
	found, r := getIn(g, "GpuInstanceGetComputeInstanceById", func(_ *state.Model, _ *state.MIGProfile,
		gi *state.GPUInstance) (*computeInstance, nvml.Return) {
		if id < 0 || mig.FindComputeInstance(gi, uint32(id)) == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return g.compute(uint32(id)), nvml.SUCCESS
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return found, r
}

func (g *gpuInstance) CreateComputeInstance(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	return g.create("GpuInstanceCreateComputeInstance", info, mig.Anywhere)
}

func (g *gpuInstance) CreateComputeInstanceWithPlacement(info *nvml.ComputeInstanceProfileInfo,
	at *nvml.ComputeInstancePlacement) (nvml.ComputeInstance, nvml.Return) {
	if at == nil || at.Start == mig.Anywhere {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return g.create("GpuInstanceCreateComputeInstanceWithPlacement", info, at.Start)
}

func (g *gpuInstance) create(function string, info *nvml.ComputeInstanceProfileInfo, start uint32) (nvml.ComputeInstance, nvml.Return) {
	if info == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	var id uint32
	r := g.device.change(function, func(m *state.Model, s *state.GPU) (err error) {
		gi := mig.FindGPUInstance(s, g.id)
		if gi == nil || gi.Profile >= state.MaxMIGProfiles {
			return mig.ErrInvalid
		}
		i := mig.ComputeProfileIndex(&m.MIGProfiles[gi.Profile], info.Id)
		if i < 0 {
			return mig.ErrNotSupported
		}
		id, err = mig.CreateComputeInstance(m, s, g.id, i, start)
		return err
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return g.compute(id), r
}

func (g *gpuInstance) compute(id uint32) *computeInstance {
	return &computeInstance{ComputeInstance: g.device.lib.computes, in: g, id: id}
}

// computeInstance is a MIG compute instance; it may have been destroyed since.
type computeInstance struct {
	*mock.ComputeInstance
	in *gpuInstance
	id uint32
}

func (c *computeInstance) Destroy() nvml.Return {
	return c.in.device.change("ComputeInstanceDestroy", func(_ *state.Model, s *state.GPU) error {
		return mig.DestroyComputeInstance(s, c.in.id, c.id)
	})
}

func (c *computeInstance) GetInfo() (nvml.ComputeInstanceInfo, nvml.Return) {
	return getIn(c.in, "ComputeInstanceGetInfo_v2", func(_ *state.Model, p *state.MIGProfile, gi *state.GPUInstance) (nvml.ComputeInstanceInfo,
		nvml.Return) {
		s := mig.FindComputeInstance(gi, c.id)
		if s == nil || s.Profile >= state.MaxCIProfiles {
			return nvml.ComputeInstanceInfo{}, nvml.ERROR_INVALID_ARGUMENT
		}
		cp := &p.CIProfiles[s.Profile]
		return nvml.ComputeInstanceInfo{Device: c.in.device, GpuInstance: c.in, Id: s.ID, ProfileId: cp.ID,
			Placement: nvml.ComputeInstancePlacement{Start: s.Start, Size: cp.Slices}}, nvml.SUCCESS
	})
}
