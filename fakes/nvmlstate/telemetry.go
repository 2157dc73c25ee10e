package nvmlstate

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

// memory is the used memory of a GPU or of a MIG device.
type memory struct{ total, reserved, used uint64 }

func (d *device) memory(function string) (memory, nvml.Return) {
	return get(d, function, anyLive, func(p part) (memory, nvml.Return) {
		if p.model.Integrated != 0 {
			return memory{}, nvml.ERROR_NOT_SUPPORTED
		}
		m := memory{total: p.model.MemoryTotal, reserved: p.model.MemoryReserved, used: p.gpu.Core.MemoryUsed}
		if d.isMIG {
			gp, _, ok := p.profiles()
			if !ok {
				return m, nvml.ERROR_UNKNOWN
			}
			m = memory{total: gp.MemoryMiB << 20}
		}
		for _, q := range d.processes(p) {
			m.used += q.Memory
		}
		m = d.slice(p, m)
		m.used = min(m.used, m.total-m.reserved)
		return m, nvml.SUCCESS
	})
}

// processes are those on the GPU or, for a MIG device, on its compute instance.
func (d *device) processes(p part) []state.Process {
	var all []state.Process
	for i := range p.gpu.Processes {
		q := &p.gpu.Processes[i]
		if p.body.Alive(q) && (!d.isMIG || q.GPUInstance == d.gi && q.ComputeInstance == d.ci) {
			all = append(all, *q)
		}
	}
	return all
}

func (d *device) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	m, r := d.memory("DeviceGetMemoryInfo")
	return nvml.Memory{Total: m.total, Free: m.total - m.reserved - m.used, Used: m.used + m.reserved}, r
}

func (d *device) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	m, r := d.memory("DeviceGetMemoryInfo_v2")
	v := nvml.Memory_v2{Total: m.total, Reserved: m.reserved, Free: m.total - m.reserved - m.used, Used: m.used}
	v.Version = nvml.STRUCT_VERSION(v, 2)
	return v, r
}

func (d *device) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return get(d, "DeviceGetBAR1MemoryInfo", anyLive, func(p part) (nvml.BAR1Memory, nvml.Return) {
		total := p.model.BAR1Total
		switch {
		case total == 0:
			return nvml.BAR1Memory{}, nvml.ERROR_NOT_SUPPORTED
		case d.isMIG && (p.gi == nil || p.gi.Profile >= min(p.model.MIGProfileCount, state.MaxMIGProfiles)):
			return nvml.BAR1Memory{}, nvml.ERROR_NOT_FOUND
		case d.isMIG:
			total = instanceBAR1(p)
		}
		return nvml.BAR1Memory{Bar1Total: total, Bar1Free: total - 1<<20, Bar1Used: 1 << 20}, nvml.SUCCESS
	})
}

// instanceBAR1 is a GPU instance's part of BAR1: that of the memory slices, less a MiB (see impl_nvmlDeviceGetBAR1MemoryInfo).
func instanceBAR1(p part) uint64 {
	slices := uint32(1)
	for _, q := range p.model.MIGProfiles[:min(p.model.MIGProfileCount, state.MaxMIGProfiles)] {
		slices = max(slices, q.Size)
	}
	return p.model.BAR1Total/uint64(slices)*uint64(p.model.MIGProfiles[p.gi.Profile].Size) - 1<<20
}

// running lists the processes of one type: 0 compute, 1 graphics, 2 MPS.
func (d *device) running(function string, kind uint32) ([]nvml.ProcessInfo, nvml.Return) {
	return get(d, function, anyPlace, func(p part) ([]nvml.ProcessInfo, nvml.Return) {
		list := []nvml.ProcessInfo{}
		for _, q := range d.processes(p) {
			if q.Type == kind {
				list = append(list, nvml.ProcessInfo{Pid: q.PID, UsedGpuMemory: q.Memory, GpuInstanceId: q.GPUInstance,
					ComputeInstanceId: q.ComputeInstance})
			}
		}
		return list, nvml.SUCCESS
	})
}

func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("DeviceGetComputeRunningProcesses_v3", 0)
}

func (d *device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("DeviceGetGraphicsRunningProcesses_v3", 1)
}

func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("DeviceGetMPSComputeRunningProcesses_v3", 2)
}

func (d *device) GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	now := uint64(time.Now().UnixMicro())
	return get(d, "DeviceGetProcessUtilization", anyPlace, func(p part) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		var list []nvml.ProcessUtilizationSample
		for _, q := range d.processes(p) {
			s := nvml.ProcessUtilizationSample{Pid: q.PID, TimeStamp: now, SmUtil: q.SM}
			if q.BusyUntil > now {
				s.SmUtil = 100
			}
			list = append(list, s)
		}
		if len(list) == 0 || now <= lastSeen {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return list, nvml.SUCCESS
	})
}

func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	if d.isMIG {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	now := uint64(time.Now().UnixMicro())
	return get(d, "DeviceGetUtilizationRates", whole, func(p part) (nvml.Utilization, nvml.Return) {
		u := nvml.Utilization{Gpu: p.gpu.Core.UtilizationGPU, Memory: p.gpu.Core.UtilizationMem}
		if slices.ContainsFunc(d.processes(p), func(q state.Process) bool { return q.BusyUntil > now }) {
			u.Gpu = 100
		}
		return u, nvml.SUCCESS
	})
}

func (d *device) GetTemperature(sensor nvml.TemperatureSensors) (uint32, nvml.Return) {
	if sensor != nvml.TEMPERATURE_GPU {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return get(d, "DeviceGetTemperature", whole, core(func(c *state.Core) uint32 { return c.Temperature }))
}

func (d *device) GetTemperatureThreshold(kind nvml.TemperatureThresholds) (uint32, nvml.Return) {
	return get(d, "DeviceGetTemperatureThreshold", whole, func(p part) (uint32, nvml.Return) {
		var v uint32
		switch kind {
		case nvml.TEMPERATURE_THRESHOLD_SHUTDOWN:
			v = p.model.TempShutdown
		case nvml.TEMPERATURE_THRESHOLD_SLOWDOWN:
			v = p.model.TempSlowdown
		case nvml.TEMPERATURE_THRESHOLD_GPU_MAX:
			v = p.model.TempMax
		case nvml.TEMPERATURE_THRESHOLD_MEM_MAX:
			v = p.model.TempMemory
		}
		if v == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return v, nvml.SUCCESS
	})
}

func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	return get(d, "DeviceGetPowerUsage", whole, core(func(c *state.Core) uint32 { return c.Power }))
}

func (d *device) GetPowerManagementLimit() (uint32, nvml.Return) {
	return get(d, "DeviceGetPowerManagementLimit", whole, core(func(c *state.Core) uint32 { return c.PowerLimit }))
}

func (d *device) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return get(d, "DeviceGetEnforcedPowerLimit", whole, core(func(c *state.Core) uint32 { return c.PowerLimit }))
}

func (d *device) GetPowerManagementDefaultLimit() (uint32, nvml.Return) {
	return get(d, "DeviceGetPowerManagementDefaultLimit", whole, model(func(m *state.Model) uint32 { return m.PowerDefault }))
}

func (d *device) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return get(d, "DeviceGetTotalEnergyConsumption", whole, core(func(c *state.Core) uint64 { return c.Energy }))
}

func (d *device) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return get(d, "DeviceGetPerformanceState", whole, core(func(c *state.Core) nvml.Pstates { return nvml.Pstates(c.PerformanceState) }))
}

func (d *device) GetClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return get(d, "DeviceGetClockInfo", whole, func(p part) (uint32, nvml.Return) {
		c := &p.gpu.Core
		return clock(kind, c.ClockGraphics, c.ClockSM, c.ClockMemory, c.ClockVideo)
	})
}

func (d *device) GetMaxClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return get(d, "DeviceGetMaxClockInfo", whole, func(p part) (uint32, nvml.Return) {
		m := p.model
		return clock(kind, m.ClockGraphics, m.ClockSM, m.ClockMemory, m.ClockVideo)
	})
}

func clock(kind nvml.ClockType, clocks ...uint32) (uint32, nvml.Return) {
	if kind < 0 || int(kind) >= len(clocks) {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return clocks[kind], nvml.SUCCESS
}

func (d *device) GetEccMode() (nvml.EnableState, nvml.EnableState, nvml.Return) {
	v, r := get(d, "DeviceGetEccMode", whole, func(p part) (nvml.EnableState, nvml.Return) {
		if p.model.ECC == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.EnableState(p.gpu.Core.ECCPending), nvml.SUCCESS
	})
	if r != nvml.SUCCESS {
		return 0, 0, r
	}
	return nvml.FEATURE_ENABLED, v, r
}

func (d *device) GetTotalEccErrors(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
	return get(d, "DeviceGetTotalEccErrors", whole, func(p part) (uint64, nvml.Return) {
		e := &p.gpu.Core.ECC
		if p.model.ECC == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		switch {
		case kind >= nvml.MEMORY_ERROR_TYPE_COUNT || counter >= nvml.ECC_COUNTER_TYPE_COUNT:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case kind == nvml.MEMORY_ERROR_TYPE_CORRECTED && counter == nvml.VOLATILE_ECC:
			return e.VolatileCorrected + e.VolatileSRAM.Corrected, nvml.SUCCESS
		case kind == nvml.MEMORY_ERROR_TYPE_CORRECTED:
			return e.AggregateCorrected + e.AggregateSRAM.Corrected, nvml.SUCCESS
		case counter == nvml.VOLATILE_ECC:
			return e.VolatileUncorrected + e.VolatileSRAM.Parity + e.VolatileSRAM.SECDED, nvml.SUCCESS
		}
		return e.AggregateUncorrected + e.AggregateSRAM.Parity + e.AggregateSRAM.SECDED, nvml.SUCCESS
	})
}

func (d *device) GetRemappedRows() (int, int, bool, bool, nvml.Return) {
	e, r := get(d, "DeviceGetRemappedRows", whole, func(p part) (state.ECC, nvml.Return) {
		if p.model.Architecture < nvml.DEVICE_ARCH_AMPERE {
			return state.ECC{}, nvml.ERROR_NOT_SUPPORTED
		}
		return p.gpu.Core.ECC, nvml.SUCCESS
	})
	return int(e.RemappedCorrectable), int(e.RemappedUncorrectable), e.RemapPending != 0, e.RemapFailed != 0, r
}

func (d *device) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return get(d, "DeviceGetPersistenceMode", whole, core(func(c *state.Core) nvml.EnableState { return nvml.EnableState(c.Persistence) }))
}

func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return get(d, "DeviceGetComputeMode", whole, core(func(c *state.Core) nvml.ComputeMode { return nvml.ComputeMode(c.ComputeMode) }))
}

func (d *device) SetPersistenceMode(mode nvml.EnableState) nvml.Return {
	return d.set("DeviceSetPersistenceMode", func(_ *state.Model, c *state.Core) nvml.Return {
		if mode != nvml.FEATURE_DISABLED && mode != nvml.FEATURE_ENABLED {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		c.Persistence = uint32(mode)
		return nvml.SUCCESS
	})
}

func (d *device) SetComputeMode(mode nvml.ComputeMode) nvml.Return {
	return d.set("DeviceSetComputeMode", func(_ *state.Model, c *state.Core) nvml.Return {
		switch {
		case mode < 0 || mode >= nvml.COMPUTEMODE_COUNT:
			return nvml.ERROR_INVALID_ARGUMENT
		case mode == nvml.COMPUTEMODE_EXCLUSIVE_THREAD:
			return nvml.ERROR_NOT_SUPPORTED
		}
		c.ComputeMode = uint32(mode)
		return nvml.SUCCESS
	})
}

func (d *device) SetPowerManagementLimit(limit uint32) nvml.Return {
	return d.set("DeviceSetPowerManagementLimit", func(m *state.Model, c *state.Core) nvml.Return {
		if limit < m.PowerMin || limit > m.PowerMax {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		c.PowerLimit = limit
		return nvml.SUCCESS
	})
}

func (d *device) set(function string, fn func(*state.Model, *state.Core) nvml.Return) nvml.Return {
	return d.lib.write(function, func(b *state.Body) nvml.Return {
		p, r := d.gpuOnly(b)
		if r != nvml.SUCCESS {
			return r
		}
		return fn(p.model, &p.gpu.Core)
	})
}
