package smi

import (
	"encoding/xml"
	"fmt"
	"strings"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

// item is one line of -q, or a section of lines: the same tree is printed as text and as XML.
type item struct {
	label, tag, value string
	children          []item
}

func line(label, tag string, value any) item {
	return item{label: label, tag: tag, value: fmt.Sprint(value)}
}

func section(label, tag string, children ...item) item {
	return item{label: label, tag: tag, children: children}
}

// known gives N/A for what the machine does not have.
func known(has bool, v any) any {
	if !has {
		return "N/A"
	}
	return v
}

func mebibytes(v uint64) string { return fmt.Sprintf("%d MiB", v>>20) }

func (c *Command) query(gpus []gpu, asXML bool) error {
	head := []item{
		line("Timestamp", "timestamp", c.Now.Format("Mon Jan _2 15:04:05 2006")),
		line("Driver Version", "driver_version", c.driver()),
		line("CUDA Version", "cuda_version", c.cuda()),
		line("Attached GPUs", "attached_gpus", len(gpus)),
	}
	var b strings.Builder
	if asXML {
		b.WriteString("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n")
		for _, i := range head {
			i.writeXML(&b, 1)
		}
		for _, g := range gpus {
			fmt.Fprintf(&b, "\t<gpu id=\"%s\">\n", g.busID())
			for _, i := range c.describe(g) {
				i.writeXML(&b, 2)
			}
			b.WriteString("\t</gpu>\n")
		}
		b.WriteString("</nvidia_smi_log>\n")
		return c.print("%s", b.String())
	}
	b.WriteString("\n==============NVSMI LOG==============\n\n")
	for _, i := range head {
		i.writeText(&b, 0)
	}
	for _, g := range gpus {
		fmt.Fprintf(&b, "\nGPU %s\n", g.busID())
		for _, i := range c.describe(g) {
			i.writeText(&b, 1)
		}
	}
	return c.print("%s", b.String())
}

func (i item) writeText(b *strings.Builder, depth int) {
	indent := strings.Repeat("    ", depth)
	if i.children == nil {
		fmt.Fprintf(b, "%s%-*s : %s\n", indent, 50-4*depth, i.label, i.value)
		return
	}
	fmt.Fprintf(b, "%s%s\n", indent, i.label)
	for _, child := range i.children {
		child.writeText(b, depth+1)
	}
}

func (i item) writeXML(b *strings.Builder, depth int) {
	indent := strings.Repeat("\t", depth)
	if i.children == nil {
		fmt.Fprintf(b, "%s<%s>", indent, i.tag)
		_ = xml.EscapeText(b, []byte(i.value)) // a strings.Builder takes everything
		fmt.Fprintf(b, "</%s>\n", i.tag)
		return
	}
	fmt.Fprintf(b, "%s<%s>\n", indent, i.tag)
	for _, child := range i.children {
		child.writeXML(b, depth+1)
	}
	fmt.Fprintf(b, "%s</%s>\n", indent, i.tag)
}

// describe is everything that is reported of one GPU.
func (c *Command) describe(g gpu) []item {
	return append(c.identity(g), g.migItem(), g.pciItem(), g.fabricItem(), g.memoryItem(), c.usageItem(g), g.eccItem(), g.remappedItem(),
		g.temperatureItem(), g.powerItem(), g.clockItem(), g.processItem())
}

func (c *Command) identity(g gpu) []item {
	brands := map[uint32]string{1: "Quadro", 2: "Tesla", 5: "GeForce", 14: "NVIDIA"}
	architectures := map[uint32]string{6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell"}
	return []item{
		line("Product Name", "product_name", g.name()),
		line("Product Brand", "product_brand", brands[g.model.Brand]),
		line("Product Architecture", "product_architecture", architectures[g.model.Architecture]),
		line("Display Mode", "display_mode", "Disabled"),
		line("Display Active", "display_active", "Disabled"),
		line("Persistence Mode", "persistence_mode", enabled(g.Core.Persistence)),
		line("Addressing Mode", "addressing_mode", []string{"None", "HMM", "ATS"}[min(g.model.AddressingMode, 2)]),
		line("Serial Number", "serial", state.String(g.Core.Serial[:])),
		line("GPU UUID", "uuid", g.uuid()),
		line("Minor Number", "minor_number", g.Core.Minor),
		line("VBIOS Version", "vbios_version", state.String(g.model.VBIOS[:])),
		line("Board ID", "board_id", fmt.Sprintf("0x%x", g.Core.Domain<<16|g.Core.Bus<<8|g.Core.Device<<3)),
		line("Board Part Number", "board_part_number", state.String(g.model.BoardPart[:])),
		line("Module ID", "gpu_module_id", g.Core.Module),
		line("Compute Mode", "compute_mode", computeMode(g.Core.ComputeMode)),
		line("Performance State", "performance_state", fmt.Sprintf("P%d", g.Core.PerformanceState)),
	}
}

func (g gpu) migItem() item {
	has := g.model.MIGProfileCount > 0
	mode := section("MIG Mode", "mig_mode", line("Current", "current_mig", known(has, enabled(g.Core.MIGCurrent))),
		line("Pending", "pending_mig", known(has, enabled(g.Core.MIGPending))))
	for i, m := range g.migDevices() {
		mode.children = append(mode.children, section(fmt.Sprintf("MIG Device %d", i), "mig_device",
			line("Index", "index", i), line("GPU Instance ID", "gpu_instance_id", m.gi.ID),
			line("Compute Instance ID", "compute_instance_id", m.ci.ID),
			line("UUID", "uuid", "MIG-"+profile.FormatUUID(m.ci.UUID)), line("Multiprocessor count", "multiprocessor_count",
				m.compute.Multiprocessors),
			line("FB Total", "fb_total", fmt.Sprintf("%d MiB", m.profile.MemoryMiB)), line("FB Used", "fb_used", mebibytes(g.usedBy(m)))))
	}
	return mode
}

func (g gpu) pciItem() item {
	return section("PCI", "pci",
		line("Bus", "pci_bus", fmt.Sprintf("0x%02X", g.Core.Bus)),
		line("Device", "pci_device", fmt.Sprintf("0x%02X", g.Core.Device)),
		line("Domain", "pci_domain", fmt.Sprintf("0x%04X", g.Core.Domain)),
		line("Device Id", "pci_device_id", fmt.Sprintf("0x%08X", g.model.PCIDevice)),
		line("Bus Id", "pci_bus_id", g.busID()),
		line("Sub System Id", "pci_sub_system_id", fmt.Sprintf("0x%08X", g.model.PCISubsystem)),
		line("Link Generation", "pcie_gen", g.model.PCIeGeneration), line("Link Width", "link_width", fmt.Sprintf("%dx", g.model.PCIeWidth)))
}

func (g gpu) fabricItem() item {
	c := &g.Core
	states := []string{"N/A", "Not Started", "In Progress", "Completed"}
	children := []item{line("State", "state", states[c.FabricState&3])}
	if c.FabricState != 0 {
		status := "Success"
		if c.FabricStatus != 0 {
			status = fmt.Sprint("Error ", c.FabricStatus)
		}
		children = append(children, line("Status", "status", status), line("CliqueId", "cliqueId", c.FabricClique),
			line("ClusterUUID", "clusterUuid", profile.FormatUUID(c.FabricCluster)))
	}
	return section("Fabric", "fabric", children...)
}

func (g gpu) memoryItem() item {
	m := g.model
	if m.Integrated != 0 { // NVML does not report its memory
		return section("FB Memory Usage", "fb_memory_usage", line("Total", "total", "N/A"), line("Reserved", "reserved", "N/A"),
			line("Used", "used", "N/A"), line("Free", "free", "N/A"))
	}
	return section("FB Memory Usage", "fb_memory_usage", line("Total", "total", mebibytes(m.MemoryTotal)),
		line("Reserved", "reserved", mebibytes(m.MemoryReserved)),
		line("Used", "used", mebibytes(g.used())), line("Free", "free", mebibytes(m.MemoryTotal-m.MemoryReserved-g.used())))
}

func (c *Command) usageItem(g gpu) item {
	return section("Utilization", "utilization", line("GPU", "gpu_util", fmt.Sprintf("%d %%", g.utilisation(c.Now))),
		line("Memory", "memory_util", fmt.Sprintf("%d %%", g.Core.UtilizationMem)))
}

func (g gpu) eccItem() item {
	e, has := &g.Core.ECC, g.model.ECC != 0
	part := func(label, tag string, corrected, uncorrected uint64) item {
		return section(label, tag, line("Correctable", "correctable", known(has, corrected)),
			line("Uncorrectable", "uncorrectable", known(has, uncorrected)))
	}
	return section("ECC Errors", "ecc_errors", part("Volatile", "volatile", e.VolatileCorrected, e.VolatileUncorrected),
		part("Aggregate", "aggregate", e.AggregateCorrected, e.AggregateUncorrected))
}

// firstRemapping is the first architecture that remaps rows (Ampere).
const firstRemapping = 7

func (g gpu) remappedItem() item {
	e, has := &g.Core.ECC, g.model.Architecture >= firstRemapping
	yes := func(v uint32) string { return []string{"No", "Yes"}[v&1] }
	return section("Remapped Rows", "remapped_rows", line("Correctable Error", "remapped_row_corr", known(has, e.RemappedCorrectable)),
		line("Uncorrectable Error", "remapped_row_unc", known(has, e.RemappedUncorrectable)),
		line("Pending", "remapped_row_pending", known(has, yes(e.RemapPending))),
		line("Remapping Failure Occurred", "remapped_row_failure", known(has, yes(e.RemapFailed))))
}

func (g gpu) temperatureItem() item {
	celsius := func(v uint32) any { return known(v > 0, fmt.Sprintf("%d C", v)) }
	return section("Temperature", "temperature", line("GPU Current Temp", "gpu_temp", celsius(g.Core.Temperature)),
		line("GPU Shutdown Temp", "gpu_temp_max_threshold", celsius(g.model.TempShutdown)),
		line("GPU Slowdown Temp", "gpu_temp_slow_threshold", celsius(g.model.TempSlowdown)))
}

func (g gpu) powerItem() item {
	return section("GPU Power Readings", "gpu_power_readings", line("Power Draw", "power_draw", watts(g.Core.Power)+" W"),
		line("Current Power Limit", "current_power_limit", watts(g.Core.PowerLimit)+" W"),
		line("Default Power Limit", "default_power_limit", watts(g.model.PowerDefault)+" W"),
		line("Min Power Limit", "min_power_limit", watts(g.model.PowerMin)+" W"),
		line("Max Power Limit", "max_power_limit", watts(g.model.PowerMax)+" W"))
}

func (g gpu) clockItem() item {
	part := func(label, tag string, graphics, sm, memory, video uint32) item {
		mhz := func(v uint32) string { return fmt.Sprintf("%d MHz", v) }
		return section(label, tag, line("Graphics", "graphics_clock", mhz(graphics)), line("SM", "sm_clock", mhz(sm)),
			line("Memory", "mem_clock", mhz(memory)), line("Video", "video_clock", mhz(video)))
	}
	c, m := &g.Core, g.model
	return section("Clock Rates", "clock_rates", part("Clocks", "clocks", c.ClockGraphics, c.ClockSM, c.ClockMemory, c.ClockVideo),
		part("Max Clocks", "max_clocks", m.ClockGraphics, m.ClockSM, m.ClockMemory, m.ClockVideo))
}

func (g gpu) processItem() item {
	if len(g.processes()) == 0 {
		return line("Processes", "processes", "None")
	}
	s := section("Processes", "processes")
	for _, p := range g.processes() {
		s.children = append(s.children, section("Process", "process_info", line("GPU instance ID", "gpu_instance_id", instance(p.GPUInstance)),
			line("Compute instance ID", "compute_instance_id", instance(p.ComputeInstance)), line("Process ID", "pid", p.PID),
			line("Type", "type", processType(p)), line("Name", "process_name", processName(p)),
			line("Used GPU Memory", "used_memory", mebibytes(p.Memory))))
	}
	return s
}
