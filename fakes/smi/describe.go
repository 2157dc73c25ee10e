package smi

import (
	"fmt"
	"strconv"
	"strings"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

// NVML's numbers of architectures (NVML_DEVICE_ARCH_* of nvml.h).
const (
	ampere    = 7
	ada       = 8
	hopper    = 9
	blackwell = 10
	rubin     = 13
)

// deprecated is printed for a value that the driver no longer gives.
const deprecated = "Requested functionality has been deprecated"

// release is a driver's version, as far as elements of -q came or went with it: seen in outputs of 570.148.08, 580.105.08, 580.173.02
// and 595.91.07, so that the version between two of them in which an element came is a guess.
type release [2]int

// since reports whether the node's driver is of that version or later.
func (c *Command) since(major, minor int) bool {
	parts := append(strings.Split(c.driver(), "."), "0", "0")
	var v release
	for i := range v {
		v[i], _ = strconv.Atoi(parts[i]) // the profile's check has seen to the form
	}
	return v[0] > major || v[0] == major && v[1] >= minor
}

// describe is everything that is reported of one GPU, in the order of the driver's nvidia-smi.
func (c *Command) describe(g gpu) []item {
	all := c.identity(g)
	all = append(all, c.versions(g)...)
	all = append(all, c.pciItem(g), line("Fan Speed", "fan_speed", "N/A"),
		line("Performance State", "performance_state", fmt.Sprintf("P%d", g.Core.PerformanceState)))
	all = append(all, c.reasonItems(g)...)
	all = append(all, line("Sparse Operation Mode", "sparse_operation_mode", orNA(g.model.Architecture == hopper, "Disabled")),
		g.memoryItem(), g.bar1Item(), memorySection("Conf Compute Protected Memory Usage", "cc_protected_memory_usage", 0, 0),
		line("Compute Mode", "compute_mode", computeMode(g.Core.ComputeMode)), c.usageItem(g),
		sessions("Encoder Stats", "encoder_stats"), sessions("FBC Stats", "fbc_stats"),
		pair("DRAM Encryption Mode", "dram_encryption_mode", "current_dram_encryption", "pending_dram_encryption", "N/A", "N/A"),
		pair("ECC Mode", "ecc_mode", "current_ecc", "pending_ecc", orNA(g.model.ECC != 0, enabled(g.model.ECC)),
			orNA(g.model.ECC != 0, enabled(g.Core.ECCPending))), c.eccItem(g), g.retiredItem(), c.remappedItem(g), g.temperatureItem(),
		section("", "supported_gpu_target_temp", line("", "gpu_target_temp_min", "N/A"), line("", "gpu_target_temp_max", "N/A")))
	all = append(all, c.powerItems(g)...)
	all = append(all, c.clockItems(g)...)
	return append(all, c.fabricItem(g), g.supportedClocks(), g.processItem(), line("", "accounted_processes", ""),
		section("Capabilities", "capabilities", line("EGM", "egm", "disabled")))
}

// supportedClocks are in XML alone; text has them with -d SUPPORTED_CLOCKS. A profile has one memory clock.
func (g gpu) supportedClocks() item {
	clocks := []item{line("", "value", fmt.Sprintf("%d MHz", g.model.ClockMemory))}
	for _, mhz := range g.model.GraphicsClocks() {
		clocks = append(clocks, line("", "supported_graphics_clock", fmt.Sprintf("%d MHz", mhz)))
	}
	return section("", "supported_clocks", section("", "supported_mem_clock", clocks...))
}

func pair(label, tag, current, pending string, a, b any) item {
	return section(label, tag, line("Current", current, a), line("Pending", pending, b))
}

func sessions(label, tag string) item {
	return section(label, tag, line("Active Sessions", "session_count", 0), line("Average FPS", "average_fps", 0),
		line("Average Latency", "average_latency", 0))
}

func (c *Command) identity(g gpu) []item {
	displayMode := "Enabled"
	if c.since(580, 0) {
		displayMode = deprecated
	}
	all := []item{
		line("Product Name", "product_name", g.name()),
		line("Product Brand", "product_brand", brand(g.model.Brand)),
		line("Product Architecture", "product_architecture", architecture(g.model.Architecture)),
		line("Display Mode", "display_mode", displayMode),
	}
	if c.since(580, 0) {
		all = append(all, line("Display Attached", "display_attached", "Yes"))
	}
	all = append(all,
		line("Display Active", "display_active", "Disabled"),
		line("Persistence Mode", "persistence_mode", enabled(g.Core.Persistence)),
		line("Addressing Mode", "addressing_mode", []string{"None", "HMM", "ATS"}[min(g.model.AddressingMode, 2)]))
	all = append(all, g.migItems()...)
	all = append(all,
		line("Accounting Mode", "accounting_mode", "Disabled"),
		line("Accounting Mode Buffer Size", "accounting_mode_buffer_size", 4000),
		pair("Driver Model", "driver_model", "current_dm", "pending_dm", "N/A", "N/A"),
		line("Serial Number", "serial", state.String(g.Core.Serial[:])),
		line("GPU UUID", "uuid", g.uuid()))
	if c.since(580, 0) {
		all = append(all, line("GPU PDI", "pdi", fmt.Sprintf("0x%016x", g.Core.PDI)))
	}
	return append(all,
		line("Minor Number", "minor_number", g.Core.Minor),
		line("VBIOS Version", "vbios_version", textOrNA(g.model.VBIOS[:])),
		line("MultiGPU Board", "multigpu_board", "No"),
		line("Board ID", "board_id", fmt.Sprintf("0x%x", g.Core.Domain<<16|g.Core.Bus<<8|g.Core.Device<<3)),
		line("Board Part Number", "board_part_number", textOrNA(g.model.BoardPart[:])),
		line("GPU Part Number", "gpu_part_number", textOrNA(g.model.GPUPart[:])),
		line("FRU Part Number", "gpu_fru_part_number", "N/A"), g.platformItem())
}

func brand(v uint32) string {
	return map[uint32]string{1: "Quadro", 2: "Tesla", 5: "GeForce", 14: "NVIDIA"}[v]
}

func architecture(v uint32) string {
	return map[uint32]string{6: "Turing", ampere: "Ampere", ada: "Ada Lovelace", hopper: "Hopper", blackwell: "Blackwell", rubin: "Rubin"}[v]
}

func textOrNA(field []byte) any {
	s := state.String(field)
	return orNA(s != "", s)
}

func (g gpu) platformItem() item {
	m, c := g.model, &g.Core
	has, rack := m.PlatformKnown != 0, m.PlatformChassis != 0
	chassis := orNA(has, state.String(c.Chassis[:]))
	return section("Platform Info", "platformInfo", line("Chassis Serial Number", "chassis_serial_number", chassis),
		line("Slot Number", "slot_number", orNA(rack, c.Slot)), line("Tray Index", "tray_index", orNA(rack, c.Tray)),
		line("Host ID", "host_id", orNA(has, m.PlatformHost)),
		line("Peer Type", "peer_type", orNA(has, []string{"Direct Connected", "Switch Connected"}[m.PlatformPeer&1])),
		line("Module Id", "module_id", c.Module), line("GPU Fabric GUID", "gpu_fabric_guid", orNA(has, fmt.Sprintf("0x%016x", c.FabricGUID))))
}

// versions are the parts from InfoROM to GSP.
func (c *Command) versions(g gpu) []item {
	m := g.model
	c2c := orNA(m.Coherent != 0 || m.Architecture >= hopper && m.LinkCount > 0, enabled(m.Coherent))
	all := []item{
		section("Inforom Version", "inforom_version", line("Image Version", "img_version", textOrNA(m.InfoROM[:])),
			line("OEM Object", "oem_object", textOrNA(m.InfoROMOEM[:])), line("ECC Object", "ecc_object", textOrNA(m.InfoROMECC[:])),
			line("Power Management Object", "pwr_object", "N/A")),
		section("Inforom BBX Object Flush", "inforom_bbx_flush", line("Latest Timestamp", "latest_timestamp", "N/A"),
			line("Latest Duration", "latest_duration", "N/A")),
		pair("GPU Operation Mode", "gpu_operation_mode", "current_gom", "pending_gom", "N/A", "N/A"),
		line("GPU C2C Mode", "c2c_mode", c2c),
		section("GPU Virtualization Mode", "gpu_virtualization_mode", line("Virtualization Mode", "virtualization_mode",
			map[uint32]string{0: "None", 1: "Pass-Through", 2: "VGPU"}[m.Virtualization]),
			line("Host VGPU Mode", "host_vgpu_mode", "N/A"), line("vGPU Heterogeneous Mode", "vgpu_heterogeneous_mode", "N/A")),
	}
	if !c.since(580, 0) {
		all = append(all, section("GPU Reset Status", "gpu_reset_status", line("Reset Required", "reset_required", deprecated),
			line("Drain and Reset Recommended", "drain_and_reset_recommended", deprecated)))
	}
	return append(all, line("GPU Recovery Action", "gpu_recovery_action", "None"),
		line("GSP Firmware Version", "gsp_firmware_version", c.driver()),
		section("IBMNPU", "ibmnpu", line("Relaxed Ordering Mode", "relaxed_ordering_mode", "N/A")))
}

// migItems are the MIG mode, and the MIG devices.
func (g gpu) migItems() []item {
	has := g.model.MIGProfileCount > 0
	devices := line("", "mig_devices", "None")
	for i, m := range g.migDevices() {
		p, used := m.profile, g.usedBy(m)
		total := p.MemoryMiB << 20
		devices.value = ""
		devices.children = append(devices.children, section("MIG Device", "mig_device",
			line("Index", "index", i), line("GPU Instance ID", "gpu_instance_id", m.gi.ID),
			line("Compute Instance ID", "compute_instance_id", m.ci.ID),
			section("Device Attributes", "device_attributes", section("Shared", "shared",
				line("Multiprocessor count", "multiprocessor_count", m.compute.Multiprocessors),
				line("Copy Engine count", "copy_engine_count", p.CopyEngines), line("Encoder count", "encoder_count", p.Encoders),
				line("Decoder count", "decoder_count", p.Decoders), line("OFA count", "ofa_count", p.OFA),
				line("JPG count", "jpg_count", p.JPEG))),
			section("ECC Errors", "ecc_error_count", section("Volatile", "volatile_count", line("SRAM Uncorrectable", "sram_uncorrectable", 0))),
			section("FB Memory Usage", "fb_memory_usage", line("Total", "total", mebibytes(total)), line("Reserved", "reserved", "0 MiB"),
				line("Used", "used", mebibytes(used)), line("Free", "free", mebibytes(total-min(total, used)))),
			memorySection("BAR1 Memory Usage", "bar1_memory_usage", g.model.BAR1Total*uint64(p.Size)/uint64(max(g.model.MIGMemorySlices, 1)), 0)))
	}
	return []item{pair("MIG Mode", "mig_mode", "current_mig", "pending_mig", orNA(has, enabled(g.Core.MIGCurrent)),
		orNA(has, enabled(g.Core.MIGPending))), devices}
}

func (c *Command) pciItem(g gpu) item {
	m := g.model
	hexadecimal := func(label, tag, digits string) item {
		return item{label: label, tag: tag, value: "0x" + digits, xml: digits}
	}
	atomics := func(bit uint32) any {
		return orNA(m.PCIeAtomics&bit != 0, "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64 ")
	}
	return section("PCI", "pci",
		hexadecimal("Bus", "pci_bus", fmt.Sprintf("%02X", g.Core.Bus)), hexadecimal("Device", "pci_device", fmt.Sprintf("%02X", g.Core.Device)),
		hexadecimal("Domain", "pci_domain", fmt.Sprintf("%04X", g.Core.Domain)), hexadecimal("Base Classcode", "pci_base_class", "3"),
		hexadecimal("Sub Classcode", "pci_sub_class", "2"), hexadecimal("Device Id", "pci_device_id", fmt.Sprintf("%08X", m.PCIDevice)),
		line("Bus Id", "pci_bus_id", g.busID()), hexadecimal("Sub System Id", "pci_sub_system_id", fmt.Sprintf("%08X", m.PCISubsystem)),
		section("GPU Link Info", "pci_gpu_link_info",
			section("PCIe Generation", "pcie_gen", line("Max", "max_link_gen", m.PCIeLink), line("Current", "current_link_gen", m.PCIeLink),
				line("Device Current", "device_current_link_gen", m.PCIeLink), line("Device Max", "max_device_link_gen", m.PCIeGeneration),
				line("Host Max", "max_host_link_gen", orNA(m.PCIeHost != 0, m.PCIeHost))),
			section("Link Width", "link_widths", line("Max", "max_link_width", fmt.Sprintf("%dx", m.PCIeWidth)),
				line("Current", "current_link_width", fmt.Sprintf("%dx", m.PCIeWidth)))),
		section("Bridge Chip", "pci_bridge_chip", line("Type", "bridge_chip_type", "N/A"), line("Firmware", "bridge_chip_fw", "N/A")),
		line("Replays Since Reset", "replay_counter", g.Core.PCIeReplays), line("Replay Number Rollovers", "replay_rollover_counter", 0),
		line("Tx Throughput", "tx_util", "0 KB/s"), line("Rx Throughput", "rx_util", "0 KB/s"),
		line("Atomic Caps Outbound", "atomic_caps_outbound", atomics(2)), line("Atomic Caps Inbound", "atomic_caps_inbound", atomics(1)))
}

// reason is a bit of NVML's clock event reasons (nvmlClocksEventReason* of nvml.h).
type reason struct {
	bit        uint64
	label, tag string
}

func reasons() []reason {
	return []reason{{0x1, "Idle", "gpu_idle"}, {0x2, "Applications Clocks Setting", "applications_clocks_setting"},
		{0x4, "SW Power Cap", "sw_power_cap"}, {0x8, "HW Slowdown", "hw_slowdown"},
		{0x40, "HW Thermal Slowdown", "hw_thermal_slowdown"},
		{0x80, "HW Power Brake Slowdown", "hw_power_brake_slowdown"}, {0x10, "Sync Boost", "sync_boost"},
		{0x20, "SW Thermal Slowdown", "sw_thermal_slowdown"},
		{0x100, "Display Clock Setting", "display_clocks_setting"}}
}

func active(g gpu, bit uint64) string {
	if g.Core.ClockReasons&bit != 0 {
		return "Active"
	}
	return "Not Active"
}

func (c *Command) reasonItems(g gpu) []item {
	s := section("Clocks Event Reasons", "clocks_event_reasons")
	for _, r := range reasons() {
		l := line(r.label, "clocks_event_reason_"+r.tag, active(g, r.bit))
		l.deeper = r.bit&(0x40|0x80) != 0 // text has them below HW Slowdown
		s.children = append(s.children, l)
	}
	if !c.since(580, 0) {
		return []item{s}
	}
	counters := section("Clocks Event Reasons Counters", "clocks_event_reasons_counters")
	for _, n := range [][2]string{{"SW Power Capping", "sw_power_cap"}, {"Sync Boost", "sync_boost"},
		{"SW Thermal Slowdown", "sw_therm_slowdown"},
		{"HW Thermal Slowdown", "hw_therm_slowdown"}, {"HW Power Braking", "hw_power_brake"}} {
		counters.children = append(counters.children, line(n[0], "clocks_event_reasons_counters_"+n[1], "0 us"))
	}
	return []item{s, counters}
}

func memorySection(label, tag string, total, used uint64) item {
	return section(label, tag, line("Total", "total", mebibytes(total)), line("Used", "used", mebibytes(used)),
		line("Free", "free", mebibytes(total-used)))
}

func (g gpu) bar1Item() item {
	return memorySection("BAR1 Memory Usage", "bar1_memory_usage", g.model.BAR1Total, 0)
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
	percent := func(label, tag string, v uint32) item { return line(label, tag, fmt.Sprintf("%d %%", v)) }
	return section("Utilization", "utilization", percent("GPU", "gpu_util", g.utilisation(c.Now)),
		percent("Memory", "memory_util", g.Core.UtilizationMem), percent("Encoder", "encoder_util", 0), percent("Decoder", "decoder_util", 0),
		percent("JPEG", "jpeg_util", 0), percent("OFA", "ofa_util", 0))
}

func (c *Command) eccItem(g gpu) item {
	e, has, turing := &g.Core.ECC, g.model.ECC != 0, g.model.Architecture < ampere
	count := func(label, tag string, v uint64) item { return line(label, tag, orNA(has, v)) }
	part := func(label, tag string, s state.SRAM, corrected, uncorrected uint64) item {
		children := []item{count("SRAM Correctable", "sram_correctable", s.Corrected)}
		if turing {
			children = append(children, count("SRAM Uncorrectable", "sram_uncorrectable", s.Parity+s.SECDED))
		} else {
			children = append(children, count("SRAM Uncorrectable Parity", "sram_uncorrectable_parity", s.Parity),
				count("SRAM Uncorrectable SEC-DED", "sram_uncorrectable_secded", s.SECDED))
		}
		return section(label, tag, append(children, count("DRAM Correctable", "dram_correctable", corrected),
			count("DRAM Uncorrectable", "dram_uncorrectable", uncorrected))...)
	}
	s := section("ECC Errors", "ecc_errors", part("Volatile", "volatile", e.VolatileSRAM, e.VolatileCorrected, e.VolatileUncorrected),
		part("Aggregate", "aggregate", e.AggregateSRAM, e.AggregateCorrected, e.AggregateUncorrected))
	if turing {
		return s
	}
	s.children[1].children = append(s.children[1].children, line("SRAM Threshold Exceeded", "sram_threshold_exceeded", orNA(has, "No")))
	sources := section("Aggregate Uncorrectable SRAM Sources", "aggregate_uncorrectable_sram_sources")
	uncorrected := e.AggregateSRAM.Parity + e.AggregateSRAM.SECDED
	for _, n := range []struct {
		label, tag string
		v          uint64
	}{{"SRAM L2", "sram_l2", 0}, {"SRAM SM", "sram_sm", uncorrected}, {"SRAM Microcontroller", "sram_microcontroller", 0},
		{"SRAM PCIE", "sram_pcie", 0}, {"SRAM Other", "sram_other", 0}} {
		sources.children = append(sources.children, count(n.label, n.tag, n.v))
	}
	s.children = append(s.children, sources)
	if c.since(580, 0) {
		s.children = append(s.children, line("Channel Repair Pending", "channel_repair_pending", orNA(has, "No")),
			line("TPC Repair Pending", "tpc_repair_pending", orNA(has, "No")))
	}
	if c.since(580, 120) {
		s.children = append(s.children, line("Unrepairable Memory", "unrepairable_memory", orNA(has && g.model.Architecture >= hopper, "No")))
	}
	return s
}

func (g gpu) retiredItem() item {
	has, e := g.model.Architecture < ampere && g.model.ECC != 0, &g.Core.ECC
	part := func(label, tag string, n uint32) item {
		if !has { // text has one line then, and XML the same elements
			return item{label: label, tag: tag, value: "N/A",
				children: []item{line("", "retired_count", "N/A"), line("", "retired_pagelist", "N/A")}}
		}
		return section(label, tag, line("Count", "retired_count", n), line("", "retired_pagelist", ""))
	}
	return section("Retired Pages", "retired_pages", part("Single Bit ECC", "multiple_single_bit_retirement", e.RetiredSingleBit),
		part("Double Bit ECC", "double_bit_retirement", e.RetiredDoubleBit), line("", "pending_blacklist", orNA(has, "No")),
		line("Pending Page Blacklist", "pending_retirement", orNA(has, "No")))
}

func (c *Command) remappedItem(g gpu) item {
	e, banks := &g.Core.ECC, g.model.RemapperBanks
	if banks == 0 {
		return line("Remapped Rows", "remapped_rows", "N/A")
	}
	yes := func(v uint32) string { return []string{"No", "Yes"}[v&1] }
	s := section("Remapped Rows", "remapped_rows", line("Correctable Error", "remapped_row_corr", e.RemappedCorrectable))
	inactive := c.since(580, 120)
	if inactive {
		s.children = append(s.children, line("Inactive Correctable Error", "remapped_row_corr_inactive", 0))
	}
	s.children = append(s.children, line("Uncorrectable Error", "remapped_row_unc", e.RemappedUncorrectable))
	if inactive {
		s.children = append(s.children, line("Inactive Uncorrectable Error", "remapped_row_unc_inactive", 0))
	}
	// A bank has several rows to spare, so that one remapping leaves it partly available (NVIDIA's A100 memory error page).
	remapped := min(banks, e.RemappedCorrectable+e.RemappedUncorrectable)
	histogram := section("Bank Remap Availability Histogram", "row_remapper_histogram")
	for _, n := range []struct {
		label string
		v     uint32
	}{{"Max", banks - remapped}, {"High", remapped}, {"Partial", 0}, {"Low", 0}, {"None", 0}} {
		histogram.children = append(histogram.children,
			line(n.label, "row_remapper_histogram_"+strings.ToLower(n.label), fmt.Sprintf("%d bank(s)", n.v)))
	}
	s.children = append(s.children, line("Pending", "remapped_row_pending", yes(e.RemapPending)),
		line("Remapping Failure Occurred", "remapped_row_failure", yes(e.RemapFailed)), histogram)
	return s
}

// limited reports whether the model's thresholds are given as distances from its highest temperature (T.Limit), as from Ada on.
func (g gpu) limited() bool { return g.model.Architecture >= ada && g.model.TempMax > 0 }

func (g gpu) temperatureItem() item {
	m := g.model
	celsius := func(has bool, v int) any { return orNA(has, fmt.Sprintf("%d C", v)) }
	sensor := m.TempMemory > 0
	s := section("Temperature", "temperature", line("GPU Current Temp", "gpu_temp", celsius(g.Core.Temperature > 0, int(g.Core.Temperature))),
		line("GPU T.Limit Temp", "gpu_temp_tlimit", celsius(g.limited(), int(m.TempMax)-int(g.Core.Temperature))))
	add := func(label, tag string, has bool, v int) {
		s.children = append(s.children, line(label, tag, celsius(has, v)))
	}
	if g.limited() {
		add("GPU Shutdown T.Limit Temp", "gpu_temp_max_tlimit_threshold", true, int(m.TempMax)-int(m.TempShutdown))
		add("GPU Slowdown T.Limit Temp", "gpu_temp_slow_tlimit_threshold", true, int(m.TempMax)-int(m.TempSlowdown))
		add("GPU Max Operating T.Limit Temp", "gpu_temp_max_gpu_tlimit_threshold", true, 0)
	} else {
		add("GPU Shutdown Temp", "gpu_temp_max_threshold", m.TempShutdown > 0, int(m.TempShutdown))
		add("GPU Slowdown Temp", "gpu_temp_slow_threshold", m.TempSlowdown > 0, int(m.TempSlowdown))
		add("GPU Max Operating Temp", "gpu_temp_max_gpu_threshold", m.TempMax > 0, int(m.TempMax))
	}
	s.children = append(s.children, line("GPU Target Temperature", "gpu_target_temperature", "N/A"))
	add("Memory Current Temp", "memory_temp", sensor, int(g.Core.TemperatureMem))
	if g.limited() {
		add("Memory Max Operating T.Limit Temp", "gpu_temp_max_mem_tlimit_threshold", sensor, 0)
	} else {
		add("Memory Max Operating Temp", "gpu_temp_max_mem_threshold", sensor, int(m.TempMemory))
	}
	return s
}

func (c *Command) powerItems(g gpu) []item {
	m, core := g.model, &g.Core
	powerState := fmt.Sprintf("P%d", core.PerformanceState)
	if c.since(595, 0) {
		powerState = deprecated
	}
	readings := func(label, tag string, has, average bool, draw, limit, usual, least, most uint32) item {
		w := func(label, tag string, has bool, v uint32) item { return line(label, tag, orNA(has, watts(v)+" W")) }
		return section(label, tag, line("", "power_state", powerState), w("Average Power Draw", "average_power_draw", has && average, draw),
			w("Instantaneous Power Draw", "instant_power_draw", has, draw), w("Current Power Limit", "current_power_limit", has, limit),
			w("Requested Power Limit", "requested_power_limit", has, limit), w("Default Power Limit", "default_power_limit", has, usual),
			w("Min Power Limit", "min_power_limit", has, least), w("Max Power Limit", "max_power_limit", has, most))
	}
	smoothing := orNA(m.Architecture >= blackwell && m.LinkCount > 0, "Insufficient Permissions")
	all := []item{
		readings("GPU Power Readings", "gpu_power_readings", m.PowerMax > 0, m.Architecture >= ada, core.Power, core.PowerLimit, m.PowerDefault,
			m.PowerMin, m.PowerMax),
		section("GPU Memory Power Readings ", "gpu_memory_power_readings",
			line("Average Power Draw", "average_power_draw", orNA(core.MemoryPower > 0, watts(core.MemoryPower)+" W")),
			line("Instantaneous Power Draw", "instant_power_draw", "N/A")),
		readings("Module Power Readings", "module_power_readings", m.ModuleMax > 0, true, core.ModulePower, m.ModuleDefault, m.ModuleDefault,
			m.ModuleMin, m.ModuleMax),
		line("Power Smoothing", "power_smoothing", smoothing),
		section("Workload Power Profiles", "power_profiles", line("Requested Profiles", "power_profile_requested_profiles", "N/A"),
			line("Enforced Profiles", "power_profile_enforced_profiles", "N/A")),
	}
	if c.since(595, 0) {
		all = append(all, line("EDPp Multiplier", "edpp_multiplier", "N/A"))
	}
	return all
}

func (c *Command) clockItems(g gpu) []item {
	mhz := func(label, tag string, v uint32) item { return line(label, tag, fmt.Sprintf("%d MHz", v)) }
	four := func(label, tag string, graphics, sm, memory, video uint32) item {
		return section(label, tag, mhz("Graphics", "graphics_clock", graphics), mhz("SM", "sm_clock", sm), mhz("Memory", "mem_clock", memory),
			mhz("Video", "video_clock", video))
	}
	s, m := &g.Core, g.model
	application := func(label, tag string) item {
		if c.since(595, 0) {
			return section(label, tag, line("Graphics", "graphics_clock", deprecated), line("Memory", "mem_clock", deprecated))
		}
		return section(label, tag, mhz("Graphics", "graphics_clock", m.ClockApp), mhz("Memory", "mem_clock", m.ClockMemory))
	}
	all := []item{four("Clocks", "clocks", s.ClockGraphics, s.ClockSM, s.ClockMemory, s.ClockVideo),
		application("Applications Clocks", "applications_clocks"), application("Default Applications Clocks", "default_applications_clocks"),
		section("Deferred Clocks", "deferred_clocks", line("Memory", "mem_clock", "N/A")),
		four("Max Clocks", "max_clocks", m.ClockGraphics, m.ClockSM, m.ClockMemory, m.ClockVideo),
		section("Max Customer Boost Clocks", "max_customer_boost_clocks", mhz("Graphics", "graphics_clock", m.ClockGraphics)),
		section("Clock Policy", "clock_policy", line("Auto Boost", "auto_boost", "N/A"), line("Auto Boost Default", "auto_boost_default", "N/A"))}
	if !c.since(580, 0) {
		all = append(all, section("Voltage", "voltage", line("Graphics", "graphics_volt", "N/A")))
	}
	return all
}

func (c *Command) fabricItem(g gpu) item {
	core := &g.Core
	has := core.FabricState != 0
	status := "Success"
	if core.FabricStatus != 0 {
		status = fmt.Sprint("Error ", core.FabricStatus)
	}
	// Each field of the health mask has two bits, 0 for an unsupported field; the configuration has four (nvml.h).
	health := func(shift int, yes, no string) any {
		v := core.FabricHealth >> shift & 3
		return orNA(has && v != 0, map[uint32]string{1: yes, 2: no}[v])
	}
	var children []item
	if c.since(580, 0) {
		summary := []string{"", "Healthy", "Unhealthy", "Limited Capacity"}[core.FabricSummary&3]
		children = append(children, line("Summary", "summary", orNA(has && summary != "", summary)))
	}
	children = append(children, line("Bandwidth", "bandwidth", health(0, "Degraded", "Full")),
		line("Route Recovery in progress", "route_recovery_in_progress", health(2, "True", "False")),
		line("Route Unhealthy", "route_unhealthy", health(4, "True", "False")),
		line("Access Timeout Recovery", "access_timeout_recovery", health(6, "True", "False")))
	if c.since(580, 0) {
		configuration := core.FabricHealth >> 8 & 0xf
		word := map[uint32]string{1: "None", 2: "Incorrect SystemGuid", 3: "Incorrect Chassis Serial Number", 4: "No Partition",
			5: "Insufficient Nvlinks", 6: "Incompatible GPU Firmware", 7: "Invalid Location", 8: "GPU State Invalid"}[configuration]
		children = append(children, line("Incorrect Configuration", "incorrect_configuration", orNA(has && word != "", word)))
	}
	if c.since(580, 120) {
		children = append(children, line("Partition Assigned", "partition_assigned", health(12, "True", "False")))
	}
	if c.since(615, 0) {
		children = append(children, line("GFM State", "gfm_state", health(14, "Connected", "Disconnected")))
	}
	return section("Fabric", "fabric", line("State", "state", []string{"N/A", "Not Started", "In Progress", "Completed"}[core.FabricState&3]),
		line("Status", "status", orNA(has, status)), line("CliqueId", "cliqueId", orNA(has, core.FabricClique)),
		line("ClusterUUID", "clusterUuid", orNA(has, profile.FormatUUID(core.FabricCluster))), section("Health", "health", children...))
}

func (g gpu) processItem() item {
	if len(g.processes()) == 0 {
		return item{label: "Processes", tag: "processes", value: "None", xml: " "}
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
