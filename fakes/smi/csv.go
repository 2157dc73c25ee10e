package smi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpufabric.io/fakes/state"
)

// field is one column of --query-gpu: how it is read, and its unit. An empty value is printed as [N/A].
type field struct {
	unit string
	read func(*Command, gpu) string
}

func enabled(v uint32) string { return []string{"Disabled", "Enabled"}[v&1] }

func watts(milli uint32) string { return fmt.Sprintf("%.2f", float64(milli)/1000) }

// of makes a reader of anything that needs only the GPU.
func of[T any](fn func(gpu) T) func(*Command, gpu) string {
	return func(_ *Command, g gpu) string { return fmt.Sprint(fn(g)) }
}

func memoryOf(fn func(gpu) uint64) func(*Command, gpu) string {
	return func(_ *Command, g gpu) string { return fmt.Sprint(fn(g) >> 20) }
}

// eccOf and migOf are empty on a model without them.
func eccOf(fn func(*state.ECC) uint64) func(*Command, gpu) string {
	return func(_ *Command, g gpu) string {
		if g.model.ECC == 0 {
			return ""
		}
		return fmt.Sprint(fn(&g.Core.ECC))
	}
}

func migOf(fn func(*state.Core) uint32) func(*Command, gpu) string {
	return func(_ *Command, g gpu) string {
		if g.model.MIGProfileCount == 0 {
			return ""
		}
		return enabled(fn(&g.Core))
	}
}

// fields are the known columns; other names are refused with this list.
func fields() map[string]field {
	name, uuid, busID := of(gpu.name), of(gpu.uuid), of(gpu.busID)
	known := map[string]field{
		"index":              {"", of(func(g gpu) int { return g.index })},
		"count":              {"", func(c *Command, _ gpu) string { return fmt.Sprint(len(c.body.GPUs)) }},
		"name":               {"", name},
		"gpu_name":           {"", name},
		"uuid":               {"", uuid},
		"gpu_uuid":           {"", uuid},
		"pci.bus_id":         {"", busID},
		"gpu_bus_id":         {"", busID},
		"serial":             {"", of(func(g gpu) string { return state.String(g.Core.Serial[:]) })},
		"driver_version":     {"", func(c *Command, _ gpu) string { return c.driver() }},
		"timestamp":          {"", func(c *Command, _ gpu) string { return c.Now.Format("2006/01/02 15:04:05.000") }},
		"vbios_version":      {"", of(func(g gpu) string { return state.String(g.model.VBIOS[:]) })},
		"pci.domain":         {"", of(func(g gpu) string { return fmt.Sprintf("0x%04X", g.Core.Domain) })},
		"pci.bus":            {"", of(func(g gpu) string { return fmt.Sprintf("0x%02X", g.Core.Bus) })},
		"pci.device":         {"", of(func(g gpu) string { return fmt.Sprintf("0x%02X", g.Core.Device) })},
		"pci.device_id":      {"", of(func(g gpu) string { return fmt.Sprintf("0x%08X", g.model.PCIDevice) })},
		"pci.sub_device_id":  {"", of(func(g gpu) string { return fmt.Sprintf("0x%08X", g.model.PCISubsystem) })},
		"memory.total":       {"MiB", memoryOf(func(g gpu) uint64 { return g.total() })},
		"memory.reserved":    {"MiB", memoryOf(func(g gpu) uint64 { return g.model.MemoryReserved })},
		"memory.used":        {"MiB", memoryOf(gpu.used)},
		"memory.free":        {"MiB", memoryOf(func(g gpu) uint64 { return g.free() })},
		"utilization.gpu":    {"%", func(c *Command, g gpu) string { return fmt.Sprint(g.utilisation(c.Now)) }},
		"utilization.memory": {"%", of(func(g gpu) uint32 { return g.Core.UtilizationMem })},
		"temperature.gpu":    {"", of(func(g gpu) uint32 { return g.Core.Temperature })},
		"temperature.memory": {"", of(func(g gpu) string {
			if g.model.TempMemory == 0 {
				return ""
			}
			return fmt.Sprint(g.Core.TemperatureMem)
		})},
		"power.draw":          {"W", of(func(g gpu) string { return watts(g.Core.Power) })},
		"power.limit":         {"W", of(func(g gpu) string { return watts(g.Core.PowerLimit) })},
		"power.default_limit": {"W", of(func(g gpu) string { return watts(g.model.PowerDefault) })},
		"persistence_mode":    {"", of(func(g gpu) string { return enabled(g.Core.Persistence) })},
		"compute_mode":        {"", of(func(g gpu) string { return computeMode(g.Core.ComputeMode) })},
		"compute_cap":         {"", of(func(g gpu) string { return fmt.Sprintf("%d.%d", g.model.ComputeMajor, g.model.ComputeMinor) })},
		"pstate":              {"", of(func(g gpu) string { return fmt.Sprintf("P%d", g.Core.PerformanceState) })},
		"clocks.sm":           {"MHz", of(func(g gpu) uint32 { return g.Core.ClockSM })},
		"clocks.gr":           {"MHz", of(func(g gpu) uint32 { return g.Core.ClockGraphics })},
		"clocks.mem":          {"MHz", of(func(g gpu) uint32 { return g.Core.ClockMemory })},
		"clocks.max.sm":       {"MHz", of(func(g gpu) uint32 { return g.model.ClockSM })},
		"clocks.max.mem":      {"MHz", of(func(g gpu) uint32 { return g.model.ClockMemory })},
		"mig.mode.current":    {"", migOf(func(c *state.Core) uint32 { return c.MIGCurrent })},
		"mig.mode.pending":    {"", migOf(func(c *state.Core) uint32 { return c.MIGPending })},
		"pcie.link.width.max": {"", of(func(g gpu) uint32 { return g.model.PCIeWidth })},

		"ecc.mode.current":                    {"", of(func(g gpu) string { return enabled(g.model.ECC) })},
		"ecc.errors.corrected.volatile.total": {"", eccOf(func(e *state.ECC) uint64 { return e.VolatileCorrected + e.VolatileSRAM.Corrected })},
		"ecc.errors.corrected.aggregate.total": {"", eccOf(func(e *state.ECC) uint64 {
			return e.AggregateCorrected + e.AggregateSRAM.Corrected
		})},
		"ecc.errors.uncorrected.volatile.total": {"", eccOf(func(e *state.ECC) uint64 {
			return e.VolatileUncorrected + e.VolatileSRAM.Parity + e.VolatileSRAM.SECDED
		})},
		"ecc.errors.uncorrected.aggregate.total": {"", eccOf(func(e *state.ECC) uint64 {
			return e.AggregateUncorrected + e.AggregateSRAM.Parity + e.AggregateSRAM.SECDED
		})},
		"clocks_event_reasons.supported":       {"", func(*Command, gpu) string { return fmt.Sprintf("0x%016X", 0x1ff) }},
		"clocks_event_reasons.active":          {"", of(func(g gpu) string { return fmt.Sprintf("0x%016X", g.Core.ClockReasons) })},
		"ecc.errors.uncorrected.volatile.sram": {"", eccOf(func(e *state.ECC) uint64 { return e.VolatileSRAM.Parity + e.VolatileSRAM.SECDED })},
		"ecc.errors.uncorrected.aggregate.sram": {"", eccOf(func(e *state.ECC) uint64 {
			return e.AggregateSRAM.Parity + e.AggregateSRAM.SECDED
		})},
		"inforom.checksum_validation": {"", of(func(g gpu) string {
			if state.String(g.model.InfoROM[:]) == "" {
				return ""
			}
			return "valid"
		})},
		"power.management": {"", func(*Command, gpu) string { return "Enabled" }},
		"gsp.mode.current": {"", func(*Command, gpu) string { return "Enabled" }},
		"gsp.mode.default": {"", func(*Command, gpu) string { return "Enabled" }},
	}
	for _, name := range []string{"supported", "active"} {
		known["clocks_throttle_reasons."+name] = known["clocks_event_reasons."+name]
	}
	addColumns(known)
	return known
}

func fieldNames() []string { return slices.Sorted(maps.Keys(fields())) }

func computeMode(v uint32) string {
	return []string{"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"}[v&3]
}

// csvStyle has the options of --format.
type csvStyle struct{ header, units bool }

func style(format []string) (csvStyle, error) {
	if !slices.Contains(format, "csv") {
		return csvStyle{}, fmt.Errorf("--format=csv is needed, with noheader and nounits if wished")
	}
	return csvStyle{header: !slices.Contains(format, "noheader"), units: !slices.Contains(format, "nounits")}, nil
}

func (c *Command) csv(gpus []gpu, o options) error {
	s, err := style(o.format)
	if err != nil {
		return err
	}
	known := fields()
	var head []string
	for _, name := range o.queryGPU {
		f, ok := known[name]
		if !ok {
			return fmt.Errorf("field %q is not a valid field to query; known: %s", name, strings.Join(fieldNames(), ", "))
		}
		if f.unit != "" && s.units {
			name += " [" + f.unit + "]"
		}
		head = append(head, name)
	}
	if s.header {
		if err := c.print("%s\n", strings.Join(head, ", ")); err != nil {
			return err
		}
	}
	for _, g := range gpus {
		var row []string
		for _, name := range o.queryGPU {
			f := known[name]
			cell := f.read(c, g)
			switch {
			case cell == "":
				cell = "[N/A]"
			case strings.HasPrefix(cell, "["): // a value that the driver no longer gives has no unit
			case f.unit != "" && s.units:
				cell += " " + f.unit
			}
			row = append(row, cell)
		}
		if err := c.print("%s\n", strings.Join(row, ", ")); err != nil {
			return err
		}
	}
	return nil
}

func (c *Command) processesCSV(gpus []gpu, o options) error {
	s, err := style(o.format)
	if err != nil {
		return err
	}
	head := map[string]string{"gpu_uuid": "gpu_uuid", "gpu_name": "gpu_name", "gpu_bus_id": "gpu_bus_id", "pid": "pid",
		"process_name": "process_name",
		"used_memory":  "used_gpu_memory [MiB]", "used_gpu_memory": "used_gpu_memory [MiB]"}
	var names []string
	for _, f := range o.queryComputeApps {
		if head[f] == "" {
			return fmt.Errorf("field %q is not a valid field to query; known: %s", f, strings.Join(slices.Sorted(maps.Keys(head)), ", "))
		}
		names = append(names, head[f])
	}
	if s.header {
		if err := c.print("%s\n", strings.Join(names, ", ")); err != nil {
			return err
		}
	}
	for _, g := range gpus {
		for _, p := range g.processes() {
			memory := fmt.Sprint(p.Memory >> 20)
			if s.units {
				memory += " MiB"
			}
			cells := map[string]string{"gpu_uuid": g.uuid(), "gpu_name": g.name(), "gpu_bus_id": g.busID(), "pid": fmt.Sprint(p.PID),
				"process_name": processName(p), "used_memory": memory, "used_gpu_memory": memory}
			var row []string
			for _, f := range o.queryComputeApps {
				row = append(row, cells[f])
			}
			if err := c.print("%s\n", strings.Join(row, ", ")); err != nil {
				return err
			}
		}
	}
	return nil
}
