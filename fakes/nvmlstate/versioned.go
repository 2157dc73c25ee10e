package nvmlstate

/*
#cgo LDFLAGS: -ldl
#include "versioned.h"
*/
import "C"

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

// fakefabricVersioned answers one call of C's; out begins with the version of the structure that the caller wants, except where there is
// but one.
//
//export fakefabricVersioned
func fakefabricVersioned(handle unsafe.Pointer, function, first, second C.uint, out unsafe.Pointer) C.int {
	switch of := held(handle).(type) {
	case *device:
		return C.int(of.versioned(uint32(function), uint32(first), out))
	case *gpuInstance:
		return C.int(of.versioned(uint32(function), int(first), int(second), out))
	}
	return C.FF_NOT_OURS
}

func (d *device) versioned(function, number uint32, out unsafe.Pointer) nvml.Return {
	switch function {
	case C.FF_FABRIC_INFO:
		return store(out, func() (nvml.GpuFabricInfo, nvml.Return) { return d.GetGpuFabricInfo() })
	case C.FF_FABRIC_INFO_V:
		return d.fabricInfo(out)
	case C.FF_TEMPERATURE_V:
		return d.temperature((*nvml.Temperature)(out))
	case C.FF_C2C_MODE:
		return d.c2c((*nvml.C2cModeInfo_v1)(out))
	case C.FF_GPU_INSTANCE_PROFILE:
		return store(out, func() (nvml.GpuInstanceProfileInfo, nvml.Return) { return d.GetGpuInstanceProfileInfo(int(number)) })
	case C.FF_GPU_INSTANCE_PROFILE_V:
		if number >= nvml.GPU_INSTANCE_PROFILE_COUNT {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		return d.profileInfo("DeviceGetGpuInstanceProfileInfoV", out, func(p *state.MIGProfile) bool { return p.Kind == number })
	case C.FF_GPU_INSTANCE_PROFILE_BY_ID_V:
		return d.profileInfo("DeviceGetGpuInstanceProfileInfoByIdV", out, func(p *state.MIGProfile) bool { return p.ID == number })
	}
	return nvml.ERROR_NOT_SUPPORTED
}

// store writes a plain answer where C wants it.
func store[T any](out unsafe.Pointer, get func() (T, nvml.Return)) nvml.Return {
	v, r := get()
	if r == nvml.SUCCESS {
		*(*T)(out) = v
	}
	return r
}

// wanted is the version that the caller wrote at the start of a structure.
func wanted(out unsafe.Pointer) uint32 { return *(*uint32)(out) }

func (d *device) fabricInfo(out unsafe.Pointer) nvml.Return {
	version := wanted(out)
	third := version == nvml.STRUCT_VERSION(nvml.GpuFabricInfo_v3{}, 3)
	if !third && version != nvml.STRUCT_VERSION(nvml.GpuFabricInfo_v2{}, 2) {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	info, r := get(d, "DeviceGetGpuFabricInfoV", whole, func(p part) (nvml.GpuFabricInfo_v3, nvml.Return) {
		c := &p.gpu.Core
		if c.FabricState == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
			return nvml.GpuFabricInfo_v3{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.GpuFabricInfo_v3{Version: version, ClusterUuid: c.FabricCluster, Status: c.FabricStatus, CliqueId: c.FabricClique,
			State: uint8(c.FabricState), HealthMask: c.FabricHealth, HealthSummary: uint8(c.FabricSummary)}, nvml.SUCCESS
	})
	switch {
	case r != nvml.SUCCESS:
	case third:
		*(*nvml.GpuFabricInfo_v3)(out) = info
	default:
		*(*nvml.GpuFabricInfo_v2)(out) = nvml.GpuFabricInfo_v2{Version: version, ClusterUuid: info.ClusterUuid, Status: info.Status,
			CliqueId: info.CliqueId, State: info.State, HealthMask: info.HealthMask}
	}
	return r
}

func (d *device) temperature(out *nvml.Temperature) nvml.Return {
	if out.Version != nvml.STRUCT_VERSION(nvml.Temperature{}, 1) {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	celsius, r := d.GetTemperature(nvml.TemperatureSensors(out.SensorType))
	if r == nvml.SUCCESS {
		out.Temperature = int32(celsius)
	}
	return r
}
