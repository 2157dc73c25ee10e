package nvmlstate

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

// The functions of this file are those of nvml/health.c and nvml/engine.c, with their sources.

func (d *device) GetPlatformInfo() (nvml.PlatformInfo, nvml.Return) {
	return get(d, "DeviceGetPlatformInfo", whole, func(p part) (nvml.PlatformInfo, nvml.Return) {
		var v nvml.PlatformInfo
		if p.model.PlatformKnown == 0 {
			return v, nvml.ERROR_NOT_SUPPORTED
		}
		c := &p.gpu.Core
		v = nvml.PlatformInfo{ChassisSerialNumber: c.Chassis, SlotNumber: uint8(c.Slot), TrayIndex: uint8(c.Tray),
			HostId: uint8(p.model.PlatformHost), PeerType: uint8(p.model.PlatformPeer), ModuleId: uint8(c.Module)}
		binary.BigEndian.PutUint64(v.IbGuid[8:], c.FabricGUID)
		v.Version = nvml.STRUCT_VERSION(v, 1)
		return v, nvml.SUCCESS
	})
}

func (d *device) c2c(out *nvml.C2cModeInfo_v1) nvml.Return {
	v, r := get(d, "DeviceGetC2cModeInfoV", whole, func(p part) (nvml.C2cModeInfo_v1, nvml.Return) {
		m := p.model
		if m.Coherent == 0 && (m.Architecture < nvml.DEVICE_ARCH_HOPPER || m.LinkCount == 0) {
			return nvml.C2cModeInfo_v1{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.C2cModeInfo_v1{IsC2cEnabled: m.Coherent}, nvml.SUCCESS
	})
	if r == nvml.SUCCESS {
		*out = v
	}
	return r
}

func (d *device) GetSramEccErrorStatus() (nvml.EccSramErrorStatus, nvml.Return) {
	return get(d, "DeviceGetSramEccErrorStatus", whole, func(p part) (nvml.EccSramErrorStatus, nvml.Return) {
		if p.model.ECC == 0 || p.model.Architecture < nvml.DEVICE_ARCH_AMPERE {
			return nvml.EccSramErrorStatus{}, nvml.ERROR_NOT_SUPPORTED
		}
		now, ever := p.gpu.Core.ECC.VolatileSRAM, p.gpu.Core.ECC.AggregateSRAM
		v := nvml.EccSramErrorStatus{AggregateUncParity: ever.Parity, AggregateUncSecDed: ever.SECDED, AggregateCor: ever.Corrected,
			VolatileUncParity: now.Parity, VolatileUncSecDed: now.SECDED, VolatileCor: now.Corrected,
			AggregateUncBucketSm: ever.Parity + ever.SECDED}
		v.Version = nvml.STRUCT_VERSION(v, 1)
		return v, nvml.SUCCESS
	})
}

func (d *device) GetRowRemapperHistogram() (nvml.RowRemapperHistogramValues, nvml.Return) {
	return get(d, "DeviceGetRowRemapperHistogram", whole, func(p part) (nvml.RowRemapperHistogramValues, nvml.Return) {
		banks, e := p.model.RemapperBanks, &p.gpu.Core.ECC
		if banks == 0 {
			return nvml.RowRemapperHistogramValues{}, nvml.ERROR_NOT_SUPPORTED
		}
		remapped := min(banks, e.RemappedCorrectable+e.RemappedUncorrectable)
		return nvml.RowRemapperHistogramValues{Max: banks - remapped, High: remapped}, nvml.SUCCESS
	})
}

func (d *device) GetRetiredPagesPendingStatus() (nvml.EnableState, nvml.Return) {
	return get(d, "DeviceGetRetiredPagesPendingStatus", whole, func(p part) (nvml.EnableState, nvml.Return) {
		if p.model.ECC == 0 || p.model.Architecture >= nvml.DEVICE_ARCH_AMPERE {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.FEATURE_DISABLED, nvml.SUCCESS
	})
}

func (d *device) GetMarginTemperature() (nvml.MarginTemperature, nvml.Return) {
	return get(d, "DeviceGetMarginTemperature", whole, func(p part) (nvml.MarginTemperature, nvml.Return) {
		if p.model.TempMax == 0 || p.model.Architecture < nvml.DEVICE_ARCH_ADA {
			return nvml.MarginTemperature{}, nvml.ERROR_NOT_SUPPORTED
		}
		v := nvml.MarginTemperature{MarginTemperature: int32(p.model.TempMax) - int32(p.gpu.Core.Temperature)}
		v.Version = nvml.STRUCT_VERSION(v, 1)
		return v, nvml.SUCCESS
	})
}

func (d *device) GetNumFans() (int, nvml.Return) { return same(d, "DeviceGetNumFans", 0) }

func (d *device) GetBusType() (nvml.BusType, nvml.Return) {
	return same(d, "DeviceGetBusType", nvml.BusType(nvml.BUS_TYPE_PCIE))
}

func (d *device) GetPowerSource() (nvml.PowerSource, nvml.Return) {
	return same(d, "DeviceGetPowerSource", nvml.PowerSource(nvml.POWER_SOURCE_AC))
}

func (d *device) GetAdaptiveClockInfoStatus() (uint32, nvml.Return) {
	return same(d, "DeviceGetAdaptiveClockInfoStatus", uint32(nvml.ADAPTIVE_CLOCKING_INFO_STATUS_ENABLED))
}

func (d *device) GetAccountingBufferSize() (int, nvml.Return) {
	return same(d, "DeviceGetAccountingBufferSize", 4000)
}

func (d *device) GetPcieSpeed() (int, nvml.Return) {
	return get(d, "DeviceGetPcieSpeed", whole, func(p part) (int, nvml.Return) {
		if g := p.model.PCIeLink; g > 0 && g < 8 {
			return []int{2500, 5000, 8000, 16000, 32000, 64000, 128000}[g-1], nvml.SUCCESS
		}
		return 0, nvml.SUCCESS
	})
}

func (d *device) GetPcieLinkMaxSpeed() (uint32, nvml.Return) {
	return get(d, "DeviceGetPcieLinkMaxSpeed", anyPlace, func(p part) (uint32, nvml.Return) { return p.model.PCIeLink, nvml.SUCCESS })
}

func (d *device) GetEncoderStats() (int, uint32, uint32, nvml.Return) {
	v, r := same(d, "DeviceGetEncoderStats", 0)
	return v, 0, 0, r
}

func (d *device) GetEncoderSessions() ([]nvml.EncoderSessionInfo, nvml.Return) {
	return same(d, "DeviceGetEncoderSessions", []nvml.EncoderSessionInfo{})
}

func (d *device) GetFBCStats() (nvml.FBCStats, nvml.Return) {
	return same(d, "DeviceGetFBCStats", nvml.FBCStats{})
}

func (d *device) GetFBCSessions() ([]nvml.FBCSessionInfo, nvml.Return) {
	return same(d, "DeviceGetFBCSessions", []nvml.FBCSessionInfo{})
}

// GetSupportedMemoryClocks cannot give the list: go-nvml passes no room for it to C, which then reports the size.
func (d *device) GetSupportedMemoryClocks() (int, uint32, nvml.Return) {
	_, r := get(d, "DeviceGetSupportedMemoryClocks", whole, func(part) (int, nvml.Return) { return 0, nvml.ERROR_INSUFFICIENT_SIZE })
	return 0, 0, r
}

func (d *device) GpmQueryDeviceSupport() (nvml.GpmSupport, nvml.Return) {
	return get(d, "GpmQueryDeviceSupport", whole, func(p part) (nvml.GpmSupport, nvml.Return) {
		v := nvml.GpmSupport{Version: nvml.GPM_SUPPORT_VERSION}
		if p.model.Architecture >= nvml.DEVICE_ARCH_HOPPER {
			v.IsSupportedDevice = 1
		}
		return v, nvml.SUCCESS
	})
}

// applicationClock gives the clocks of impl_nvmlDeviceGetApplicationsClock.
func (d *device) applicationClock(function string, kind nvml.ClockType, graphics func(*state.Model) uint32) (uint32, nvml.Return) {
	return get(d, function, whole, func(p part) (uint32, nvml.Return) {
		switch kind {
		case nvml.CLOCK_GRAPHICS, nvml.CLOCK_SM:
			return graphics(p.model), nvml.SUCCESS
		case nvml.CLOCK_MEM:
			return p.model.ClockMemory, nvml.SUCCESS
		case nvml.CLOCK_VIDEO:
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	})
}

func (d *device) GetApplicationsClock(kind nvml.ClockType) (uint32, nvml.Return) {
	return d.applicationClock("DeviceGetApplicationsClock", kind, func(m *state.Model) uint32 { return m.ClockApp })
}

func (d *device) GetDefaultApplicationsClock(kind nvml.ClockType) (uint32, nvml.Return) {
	return d.applicationClock("DeviceGetDefaultApplicationsClock", kind, func(m *state.Model) uint32 { return m.ClockApp })
}

func (d *device) GetMaxCustomerBoostClock(kind nvml.ClockType) (uint32, nvml.Return) {
	return d.applicationClock("DeviceGetMaxCustomerBoostClock", kind, func(m *state.Model) uint32 { return m.ClockGraphics })
}
