package nvmlstate

// #include "versioned.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/state"
)

// profileInfo describes the GPU instance profile that is meant, in version 2 or 3: version 3 dropped the flag for peers and ends in
// capabilities.
func (d *device) profileInfo(function string, out unsafe.Pointer, meant func(*state.MIGProfile) bool) nvml.Return {
	p, r := get(d, function, whole, func(p part) (state.MIGProfile, nvml.Return) {
		for _, q := range mig.Profiles(p.model) {
			if meant(&q) {
				return q, nvml.SUCCESS
			}
		}
		return state.MIGProfile{}, nvml.ERROR_NOT_SUPPORTED
	})
	if r != nvml.SUCCESS {
		return r
	}
	peers := one(p.Slices == 7)
	switch version := wanted(out); version {
	case nvml.STRUCT_VERSION(nvml.GpuInstanceProfileInfo_v2{}, 2):
		info := (*nvml.GpuInstanceProfileInfo_v2)(out)
		*info = nvml.GpuInstanceProfileInfo_v2{Version: version, Id: p.ID, IsP2pSupported: peers, SliceCount: p.Slices, InstanceCount: p.Max,
			MultiprocessorCount: p.Multiprocessors, CopyEngineCount: p.CopyEngines, DecoderCount: p.Decoders, EncoderCount: p.Encoders,
			JpegCount: p.JPEG, OfaCount: p.OFA, MemorySizeMB: p.MemoryMiB}
		chars(info.Name[:], "MIG "+state.String(p.Name[:]))
	case nvml.STRUCT_VERSION(nvml.GpuInstanceProfileInfo_v3{}, 3):
		info := (*nvml.GpuInstanceProfileInfo_v3)(out)
		*info = nvml.GpuInstanceProfileInfo_v3{Version: version, Id: p.ID, SliceCount: p.Slices, InstanceCount: p.Max,
			MultiprocessorCount: p.Multiprocessors, CopyEngineCount: p.CopyEngines, DecoderCount: p.Decoders, EncoderCount: p.Encoders,
			JpegCount: p.JPEG, OfaCount: p.OFA, MemorySizeMB: p.MemoryMiB, Capabilities: peers * nvml.GPU_INSTANCE_PROFILE_CAPS_P2P}
		chars(info.Name[:], "MIG "+state.String(p.Name[:]))
	default:
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return nvml.SUCCESS
}

func (g *gpuInstance) versioned(function uint32, kind, engine int, out unsafe.Pointer) nvml.Return {
	switch function {
	case C.FF_COMPUTE_INSTANCE_PROFILE:
		return store(out, func() (nvml.ComputeInstanceProfileInfo, nvml.Return) {
			return g.GetComputeInstanceProfileInfo(kind, engine)
		})
	case C.FF_COMPUTE_INSTANCE_PROFILE_V:
		return g.profileInfo(kind, engine, out)
	}
	return nvml.ERROR_NOT_SUPPORTED
}

// profileInfo describes a compute instance profile; version 3 is version 2 with capabilities at its end.
func (g *gpuInstance) profileInfo(kind, engine int, out unsafe.Pointer) nvml.Return {
	version := wanted(out)
	third := version == nvml.STRUCT_VERSION(nvml.ComputeInstanceProfileInfo_v3{}, 3)
	if !third && version != nvml.STRUCT_VERSION(nvml.ComputeInstanceProfileInfo_v2{}, 2) {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	plain, r := g.GetComputeInstanceProfileInfo(kind, engine)
	if r != nvml.SUCCESS {
		return r
	}
	name, r := getIn(g, "GpuInstanceGetComputeInstanceProfileInfoV",
		func(_ *state.Model, p *state.MIGProfile, _ *state.GPUInstance) (string, nvml.Return) {
			if plain.SliceCount < p.Slices {
				return fmt.Sprintf("MIG %dc.%s", plain.SliceCount, state.String(p.Name[:])), nvml.SUCCESS
			}
			return "MIG " + state.String(p.Name[:]), nvml.SUCCESS
		})
	if r != nvml.SUCCESS {
		return r
	}
	info := nvml.ComputeInstanceProfileInfo_v2{Version: version, Id: plain.Id, SliceCount: plain.SliceCount,
		InstanceCount:       plain.InstanceCount,
		MultiprocessorCount: plain.MultiprocessorCount, SharedCopyEngineCount: plain.SharedCopyEngineCount,
		SharedDecoderCount: plain.SharedDecoderCount,
		SharedEncoderCount: plain.SharedEncoderCount, SharedJpegCount: plain.SharedJpegCount, SharedOfaCount: plain.SharedOfaCount}
	chars(info.Name[:], name)
	*(*nvml.ComputeInstanceProfileInfo_v2)(out) = info
	if third {
		(*nvml.ComputeInstanceProfileInfo_v3)(out).Capabilities = 0
	}
	return nvml.SUCCESS
}
