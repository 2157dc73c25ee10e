package nvmlstate

import (
	"os"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

// The getters here return values that are the same for all profiles, or repeat others under another name.

func (l *library) UnitGetCount() (int, nvml.Return) {
	return 0, l.read("UnitGetCount", func(*state.Body) nvml.Return { return nvml.SUCCESS })
}

func (l *library) GetExcludedDeviceCount() (int, nvml.Return) {
	return 0, l.read("GetExcludedDeviceCount", func(*state.Body) nvml.Return { return nvml.SUCCESS })
}

func (l *library) SystemGetDriverBranch() (nvml.SystemDriverBranchInfo, nvml.Return) {
	version, r := l.SystemGetDriverVersion()
	major, _, _ := strings.Cut(version, ".")
	v := nvml.SystemDriverBranchInfo{}
	v.Version = nvml.STRUCT_VERSION(v, 1)
	chars(v.Branch[:], "r"+major+"_00")
	return v, r
}

func (l *library) SystemGetProcessName(pid int) (string, nvml.Return) {
	if _, r := l.call("SystemGetProcessName"); r != nvml.SUCCESS {
		return "", r
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return "", nvml.ERROR_NOT_FOUND
	}
	name, _, _ := strings.Cut(string(data), "\x00")
	return name, nvml.SUCCESS
}

func (l *library) SystemGetTopologyGpuSet(cpu int) ([]nvml.Device, nvml.Return) {
	var set []nvml.Device
	r := l.read("SystemGetTopologyGpuSet", func(b *state.Body) nvml.Return {
		set = nil
		if cpu < 0 || cpu >= state.CPUWords*64 {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		for i, g := range b.GPUs {
			if g.Core.Lost == 0 && g.Core.CPUs[cpu/64]>>(cpu%64)&1 == 1 {
				set = append(set, l.device(i))
			}
		}
		return nvml.SUCCESS
	})
	return set, r
}

// same answers every living GPU with one value.
func same[T any](d *device, function string, v T) (T, nvml.Return) {
	return get(d, function, whole, func(part) (T, nvml.Return) { return v, nvml.SUCCESS })
}

func (d *device) GetAccountingMode() (nvml.EnableState, nvml.Return) {
	return same[nvml.EnableState](d, "DeviceGetAccountingMode", nvml.FEATURE_DISABLED)
}

func (d *device) GetBoardId() (uint32, nvml.Return) {
	return get(d, "DeviceGetBoardId", whole, core(func(c *state.Core) uint32 { return c.Domain<<16 | c.Bus<<8 | c.Device<<3 }))
}

func (d *device) GetMultiGpuBoard() (int, nvml.Return) {
	return same(d, "DeviceGetMultiGpuBoard", 0)
}

func (d *device) GetDisplayActive() (nvml.EnableState, nvml.Return) {
	return same[nvml.EnableState](d, "DeviceGetDisplayActive", nvml.FEATURE_DISABLED)
}

func (d *device) GetDisplayMode() (nvml.EnableState, nvml.Return) {
	return same[nvml.EnableState](d, "DeviceGetDisplayMode", nvml.FEATURE_ENABLED)
}

func (d *device) GetInforomConfigurationChecksum() (uint32, nvml.Return) {
	return same[uint32](d, "DeviceGetInforomConfigurationChecksum", 0)
}

func (d *device) GetGpcClkVfOffset() (int, nvml.Return) { return same(d, "DeviceGetGpcClkVfOffset", 0) }

func (d *device) GetMemClkVfOffset() (int, nvml.Return) { return same(d, "DeviceGetMemClkVfOffset", 0) }

func (d *device) GetGpcClkMinMaxVfOffset() (int, int, nvml.Return) {
	v, r := same(d, "DeviceGetGpcClkMinMaxVfOffset", 0)
	return v, v, r
}

func (d *device) GetMemClkMinMaxVfOffset() (int, int, nvml.Return) {
	v, r := same(d, "DeviceGetMemClkMinMaxVfOffset", 0)
	return v, v, r
}

func (d *device) GetLastBBXFlushTime() (uint64, uint, nvml.Return) {
	if _, r := same(d, "DeviceGetLastBBXFlushTime", 0); r != nvml.SUCCESS {
		return 0, 0, r
	}
	return 0, 0, nvml.ERROR_NOT_READY
}

func (d *device) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return get(d, "DeviceGetCurrentClocksEventReasons", whole, core(func(c *state.Core) uint64 { return c.ClockReasons }))
}

func (d *device) GetCurrentClocksThrottleReasons() (uint64, nvml.Return) {
	return d.GetCurrentClocksEventReasons()
}

func (d *device) GetSupportedClocksEventReasons() (uint64, nvml.Return) {
	return same[uint64](d, "DeviceGetSupportedClocksEventReasons", 0x1ff) // as an H200 of driver 580
}

func (d *device) GetSupportedClocksThrottleReasons() (uint64, nvml.Return) {
	return d.GetSupportedClocksEventReasons()
}

// enginePeriod is how long engines' utilisation is averaged, in microseconds.
const enginePeriod = 100000

func (d *device) engine(function string) (uint32, uint32, nvml.Return) {
	_, r := same(d, function, 0)
	return 0, enginePeriod, r
}

func (d *device) GetEncoderUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("DeviceGetEncoderUtilization")
}

func (d *device) GetDecoderUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("DeviceGetDecoderUtilization")
}

func (d *device) GetJpgUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("DeviceGetJpgUtilization")
}

func (d *device) GetOfaUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("DeviceGetOfaUtilization")
}

func (d *device) GetDefaultEccMode() (nvml.EnableState, nvml.Return) {
	_, _, r := d.GetEccMode()
	return nvml.FEATURE_ENABLED, r
}

func (d *device) GetGpuMaxPcieLinkGeneration() (int, nvml.Return) {
	return get(d, "DeviceGetGpuMaxPcieLinkGeneration", anyPlace, model(func(m *state.Model) int { return int(m.PCIeGeneration) }))
}

func (d *device) GetGspFirmwareMode() (bool, bool, nvml.Return) {
	v, r := same(d, "DeviceGetGspFirmwareMode", true)
	return v, v, r
}

func (d *device) GetGspFirmwareVersion() (string, nvml.Return) {
	return get(d, "DeviceGetGspFirmwareVersion", whole, func(p part) (string, nvml.Return) {
		return state.String(p.node.DriverVersion[:]), nvml.SUCCESS
	})
}

func (d *device) GetIrqNum() (int, nvml.Return) {
	return same(d, "DeviceGetIrqNum", 64+d.gpu)
}

func (d *device) GetPciInfoExt() (nvml.PciInfoExt, nvml.Return) {
	p, r := d.GetPciInfo()
	v := nvml.PciInfoExt{Domain: p.Domain, Bus: p.Bus, Device: p.Device, PciDeviceId: p.PciDeviceId, PciSubSystemId: p.PciSubSystemId,
		BaseClass: 3, SubClass: 2, BusId: p.BusId}
	v.Version = nvml.STRUCT_VERSION(v, 1)
	return v, r
}

func (d *device) GetPcieReplayCounter() (int, nvml.Return) {
	return get(d, "DeviceGetPcieReplayCounter", whole, core(func(c *state.Core) int { return int(c.PCIeReplays) }))
}

func (d *device) GetPowerManagementLimitConstraints() (uint32, uint32, nvml.Return) {
	v, r := get(d, "DeviceGetPowerManagementLimitConstraints", whole,
		model(func(m *state.Model) [2]uint32 { return [2]uint32{m.PowerMin, m.PowerMax} }))
	return v[0], v[1], r
}

func (d *device) GetPowerManagementMode() (nvml.EnableState, nvml.Return) {
	return same[nvml.EnableState](d, "DeviceGetPowerManagementMode", nvml.FEATURE_ENABLED)
}

func (d *device) GetPowerState() (nvml.Pstates, nvml.Return) { return d.GetPerformanceState() }
