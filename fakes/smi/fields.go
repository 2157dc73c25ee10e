package smi

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// column is a field of --query-gpu that prints an element of -q.
type column struct {
	// names are the field's, the first of which --help-query-gpu prints first.
	names string
	unit  string
	// path is the element's, below the GPU.
	path string
}

// columns are fields of --help-query-gpu beyond those of fields.
func columns() []column {
	all := []column{
		{"pci.baseClass", "", "pci/pci_base_class"}, {"pci.subClass", "", "pci/pci_sub_class"},
		{"pcie.link.gen.current", "", "pci/pci_gpu_link_info/pcie_gen/current_link_gen"},
		{"pcie.link.gen.gpucurrent", "", "pci/pci_gpu_link_info/pcie_gen/device_current_link_gen"},
		{"pcie.link.gen.max", "", "pci/pci_gpu_link_info/pcie_gen/max_link_gen"},
		{"pcie.link.gen.gpumax", "", "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen"},
		{"pcie.link.gen.hostmax", "", "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen"},
		{"pcie.link.width.current", "x", "pci/pci_gpu_link_info/link_widths/current_link_width"},
		{"display_mode", "", "display_mode"}, {"display_attached", "", "display_attached"}, {"display_active", "", "display_active"},
		{"addressing_mode", "", "addressing_mode"}, {"accounting.mode", "", "accounting_mode"},
		{"accounting.buffer_size", "", "accounting_mode_buffer_size"}, {"driver_model.current", "", "driver_model/current_dm"},
		{"driver_model.pending", "", "driver_model/pending_dm"}, {"inforom.img inforom.image", "", "inforom_version/img_version"},
		{"inforom.oem", "", "inforom_version/oem_object"}, {"inforom.ecc", "", "inforom_version/ecc_object"},
		{"inforom.pwr inforom.power", "", "inforom_version/pwr_object"},
		{"gpu_recovery_action", "", "gpu_recovery_action"}, {"gom.current gpu_operation_mode.current", "", "gpu_operation_mode/current_gom"},
		{"gom.pending gpu_operation_mode.pending", "", "gpu_operation_mode/pending_gom"}, {"fan.speed", "%", "fan_speed"},
		{"utilization.encoder", "%", "utilization/encoder_util"}, {"utilization.decoder", "%", "utilization/decoder_util"},
		{"utilization.jpeg", "%", "utilization/jpeg_util"}, {"utilization.ofa", "%", "utilization/ofa_util"},
		{"encoder.stats.sessionCount", "", "encoder_stats/session_count"}, {"encoder.stats.averageFps", "", "encoder_stats/average_fps"},
		{"encoder.stats.averageLatency", "", "encoder_stats/average_latency"},
		{"dramEncryption.mode.current", "", "dram_encryption_mode/current_dram_encryption"},
		{"dramEncryption.mode.pending", "", "dram_encryption_mode/pending_dram_encryption"}, {"ecc.mode.pending", "", "ecc_mode/pending_ecc"},
		{"retired_pages.single_bit_ecc.count retired_pages.sbe", "", "retired_pages/multiple_single_bit_retirement/retired_count"},
		{"retired_pages.double_bit.count retired_pages.dbe", "", "retired_pages/double_bit_retirement/retired_count"},
		{"retired_pages.pending", "", "retired_pages/pending_retirement"}, {"remapped_rows.correctable", "", "remapped_rows/remapped_row_corr"},
		{"remapped_rows.sbe", "", "remapped_rows/remapped_row_corr"}, {"remapped_rows.dbe", "", "remapped_rows/remapped_row_unc"},
		{"remapped_rows.uncorrectable", "", "remapped_rows/remapped_row_unc"},
		{"remapped_rows.correctable_inactive", "", "remapped_rows/remapped_row_corr_inactive"},
		{"remapped_rows.uncorrectable_inactive", "", "remapped_rows/remapped_row_unc_inactive"},
		{"remapped_rows.pending", "", "remapped_rows/remapped_row_pending"},
		{"remapped_rows.failure", "", "remapped_rows/remapped_row_failure"},
		{"temperature.gpu.tlimit", "C", "temperature/gpu_temp_tlimit"},
		{"power.draw.average gpu.power.draw.average", "W", "gpu_power_readings/average_power_draw"},
		{"power.draw.instant gpu.power.draw.instant", "W", "gpu_power_readings/instant_power_draw"},
		{"enforced.power.limit gpu.power.current_limit", "W", "gpu_power_readings/current_power_limit"},
		{"gpu.power.requested_limit", "W", "gpu_power_readings/requested_power_limit"},
		{"gpu.power.default_limit", "W", "gpu_power_readings/default_power_limit"},
		{"power.min_limit gpu.power.min_limit", "W", "gpu_power_readings/min_power_limit"},
		{"power.max_limit gpu.power.max_limit", "W", "gpu_power_readings/max_power_limit"},
		{"clocks.current.graphics", "MHz", "clocks/graphics_clock"},
		{"clocks.current.sm", "MHz", "clocks/sm_clock"}, {"clocks.current.memory", "MHz", "clocks/mem_clock"},
		{"clocks.current.video clocks.video", "MHz", "clocks/video_clock"},
		{"clocks.applications.graphics clocks.applications.gr", "MHz", "applications_clocks/graphics_clock"},
		{"clocks.applications.memory clocks.applications.mem", "MHz", "applications_clocks/mem_clock"},
		{"clocks.default_applications.graphics clocks.default_applications.gr", "MHz", "default_applications_clocks/graphics_clock"},
		{"clocks.default_applications.memory clocks.default_applications.mem", "MHz", "default_applications_clocks/mem_clock"},
		{"clocks.max.graphics clocks.max.gr", "MHz", "max_clocks/graphics_clock"}, {"clocks.max.memory", "MHz", "max_clocks/mem_clock"},
		{"gsp.mode.current", "", ""}, {"gsp.mode.default", "", ""}, {"c2c.mode", "", "c2c_mode"},
		{"protected_memory.total", "MiB", "cc_protected_memory_usage/total"}, {"protected_memory.used", "MiB", "cc_protected_memory_usage/used"},
		{"protected_memory.free", "MiB", "cc_protected_memory_usage/free"}, {"fabric.state", "", "fabric/state"},
		{"fabric.status", "", "fabric/status"}, {"fabric.cliqueId", "", "fabric/cliqueId"}, {"fabric.clusterUuid", "", "fabric/clusterUuid"},
		{"fabric.health.summary", "", "fabric/health/summary"}, {"fabric.health.bandwidth", "", "fabric/health/bandwidth"},
		{"fabric.health.route_recovery_in_progress", "", "fabric/health/route_recovery_in_progress"},
		{"fabric.health.route_unhealthy", "", "fabric/health/route_unhealthy"},
		{"fabric.health.access_timeout_recovery", "", "fabric/health/access_timeout_recovery"},
		{"fabric.health.incorrect_configuration", "", "fabric/health/incorrect_configuration"},
		{"fabric.health.partition_assigned", "", "fabric/health/partition_assigned"}, {"hostname", "", ""},
		{"platform.chassis_serial_number", "", "platformInfo/chassis_serial_number"}, {"platform.slot_number", "", "platformInfo/slot_number"},
		{"platform.tray_index", "", "platformInfo/tray_index"}, {"platform.host_id", "", "platformInfo/host_id"},
		{"platform.peer_type", "", "platformInfo/peer_type"}, {"platform.module_id", "", "platformInfo/module_id"},
		{"platform.gpu_fabric_guid", "", "platformInfo/gpu_fabric_guid"},
		{"module.power.draw.average", "W", "module_power_readings/average_power_draw"},
		{"module.power.draw.instant", "W", "module_power_readings/instant_power_draw"},
		{"module.power.limit module.power.requested_limit", "W", "module_power_readings/requested_power_limit"},
		{"module.enforced.power.limit module.power.current_limit", "W", "module_power_readings/current_power_limit"},
		{"module.power.default_limit", "W", "module_power_readings/default_power_limit"},
		{"module.power.min_limit", "W", "module_power_readings/min_power_limit"},
		{"module.power.max_limit", "W", "module_power_readings/max_power_limit"},
		{"gpu_serial", "", "serial"},
		// Of vGPU hosts, and nothing on other machines.
		{"vgpu_driver_capability.heterogenous_multivGPU", "", ""}, {"vgpu_device_capability.fractional_multiVgpu", "", ""},
		{"vgpu_device_capability.heterogeneous_timeSlice_profile", "", ""}, {"vgpu_device_capability.heterogeneous_timeSlice_sizes", "", ""},
		{"vgpu_device_capability.homogeneous_placements", "", ""}, {"vgpu_device_capability.mig_timeSlicing", "", ""},
		{"vgpu_device_capability.mig_timeSlicing_mode", "", ""},
	}
	for _, field := range [][2]string{{"delayed_power_smoothing_supported", ""}, {"primary_power_floor", "W"}, {"secondary_power_floor", "W"},
		{"min_primary_floor_activation_offset", "W"}, {"min_primary_floor_activation_point", "W"}, {"window_multiplier", "ms"},
		{"curr_profile.secondary_power_floor", "W"}, {"curr_profile.primary_floor_act_window_multiplier", ""},
		{"curr_profile.primary_floor_tar_window_multiplier", ""}, {"curr_profile.primary_floor_act_offset", "W"},
		{"admin_override.secondary_power_floor", "W"}, {"admin_override.primary_floor_act_window_multiplier", ""},
		{"admin_override.primary_floor_tar_window_multiplier", ""}, {"admin_override.primary_floor_act_offset", "W"}} {
		all = append(all, column{"power_smoothing." + field[0], field[1], ""})
	}
	for _, level := range []string{"max", "high", "partial", "low", "none"} {
		all = append(all, column{"remapped_rows.histogram." + level, "", "remapped_rows/row_remapper_histogram/row_remapper_histogram_" + level})
	}
	for _, r := range reasons() {
		if r.tag == "display_clocks_setting" {
			continue // -q has it alone
		}
		all = append(all, column{"clocks_event_reasons." + r.tag + " clocks_throttle_reasons." + r.tag, "",
			"clocks_event_reasons/clocks_event_reason_" + r.tag})
	}
	for _, counter := range []string{"sw_power_cap", "sync_boost", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake"} {
		name := strings.Replace(strings.Replace(counter, "therm_", "thermal_", 1), "power_brake", "power_brake_slowdown", 1)
		all = append(all, column{"clocks_event_reasons_counters." + name, "us",
			"clocks_event_reasons_counters/clocks_event_reasons_counters_" + counter})
	}
	return append(all, eccColumns()...)
}

// eccColumns are the counters by place. From Ampere on a driver gives those of DRAM and SRAM, and N/A for single caches.
func eccColumns() []column {
	var all []column
	for _, when := range []string{"volatile", "aggregate"} {
		for _, kind := range [][2]string{{"corrected", "correctable"}, {"uncorrected", "uncorrectable"}} {
			prefix := "ecc.errors." + kind[0] + "." + when + "."
			all = append(all, column{prefix + "device_memory", "", "ecc_errors/" + when + "/dram_" + kind[1]},
				column{prefix + "dram", "", "ecc_errors/" + when + "/dram_" + kind[1]})
			for _, place := range []string{"register_file", "l1_cache", "l2_cache", "texture_memory", "cbu"} {
				all = append(all, column{prefix + place, "", ""})
			}
			if kind[0] == "corrected" {
				all = append(all, column{prefix + "sram", "", "ecc_errors/" + when + "/sram_correctable"})
				continue
			}
			all = append(all, column{prefix + "sram", "", "ecc_errors/" + when + "/sram_uncorrectable"},
				column{prefix + "sram.parity", "", "ecc_errors/" + when + "/sram_uncorrectable_parity"},
				column{prefix + "sram.secded", "", "ecc_errors/" + when + "/sram_uncorrectable_secded"})
		}
	}
	for _, place := range []string{"l2", "sm", "microcontroller", "pcie", "other"} {
		name := strings.Replace(place, "microcontroller", "mcu", 1)
		all = append(all, column{"ecc.errors.uncorrected.aggregate.sram." + name, "",
			"ecc_errors/aggregate_uncorrectable_sram_sources/sram_" + place})
	}
	return append(all, column{"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "", "ecc_errors/aggregate/sram_threshold_exceeded"})
}

// addColumns adds them to known under each of their names; a field that known has stays.
func addColumns(known map[string]field) {
	for _, col := range columns() {
		f := field{strings.TrimSuffix(col.unit, "x"), func(c *Command, g gpu) string { return c.element(g, col) }}
		if col.unit == "C" {
			f.unit = "" // temperatures are printed without their unit
		}
		for name := range strings.FieldsSeq(col.names) {
			if _, ok := known[name]; !ok {
				known[name] = f
			}
		}
	}
}

// element is the text of -q at a column's path, without its unit; empty where there is none or N/A.
func (c *Command) element(g gpu, col column) string {
	items := c.describe(g)
	for part := range strings.SplitSeq(col.path, "/") {
		i := slices.IndexFunc(items, func(i item) bool { return i.tag == part })
		if i < 0 {
			return ""
		}
		if items[i].children == nil {
			value := plain(items[i].value, col.unit)
			if value == "" && strings.HasPrefix(col.path, "fabric/") && !strings.HasSuffix(col.path, "Id") && !strings.HasSuffix(col.path, "Uuid") {
				return "N/A" // without brackets
			}
			return value
		}
		items = items[i].children
	}
	return ""
}

func plain(value, unit string) string {
	value = strings.TrimSpace(strings.TrimSuffix(strings.TrimSuffix(value, unit), " bank(s)"))
	switch value {
	case "N/A", "":
		return ""
	case deprecated:
		return "[" + deprecated + "]"
	}
	return value
}

// queryFields are the fields of --help-query-gpu of driver 580.159.04, each with its other names, in its order.
//
//go:embed queryfields.txt
var queryFields string

// helpQueryGPU lists the fields of --query-gpu.
func (c *Command) helpQueryGPU() error {
	if err := c.print("List of valid properties to query for the switch \"--query-gpu\":\n"); err != nil {
		return err
	}
	for names := range strings.Lines(queryFields) {
		quoted := strings.ReplaceAll(fmt.Sprintf("%q", strings.TrimSpace(names)), " ", `" or "`)
		if err := c.print("\n%s\n", quoted); err != nil {
			return err
		}
	}
	return nil
}
