package record

import (
	"cmp"
	"strings"

	"gpufabric.io/fakes/profile"
)

// details are elements of one value each.
type details struct {
	InfoROM     string `xml:"inforom_version>img_version"`
	OEM         string `xml:"inforom_version>oem_object"`
	ECCObject   string `xml:"inforom_version>ecc_object"`
	Banks       string `xml:"remapped_rows>row_remapper_histogram>row_remapper_histogram_max"`
	MemoryPower string `xml:"gpu_memory_power_readings>average_power_draw"`
	Application string `xml:"default_applications_clocks>graphics_clock"`
	Slot        string `xml:"platformInfo>slot_number"`
	Tray        string `xml:"platformInfo>tray_index"`
	Host        string `xml:"platformInfo>host_id"`
	Peer        string `xml:"platformInfo>peer_type"`
	ModulePower struct {
		Draw    string `xml:"instant_power_draw"`
		Default string `xml:"default_power_limit"`
		Min     string `xml:"min_power_limit"`
		Max     string `xml:"max_power_limit"`
	} `xml:"module_power_readings"`
}

// health is the fabric's; a part that the machine does not report is N/A or missing.
type health struct {
	Summary       string `xml:"summary"`
	Bandwidth     string `xml:"bandwidth"`
	Recovery      string `xml:"route_recovery_in_progress"`
	Unhealthy     string `xml:"route_unhealthy"`
	Timeout       string `xml:"access_timeout_recovery"`
	Configuration string `xml:"incorrect_configuration"`
	Partition     string `xml:"partition_assigned"`
	Manager       string `xml:"gfm_state"`
}

// words lists the machine's health fields, as a profile does (profile.Fabric.Health).
func (h health) words() []string {
	var words []string
	for _, part := range []struct{ word, value string }{{"summary", h.Summary}, {"bandwidth", h.Bandwidth}, {"routeRecovery", h.Recovery},
		{"routeUnhealthy", h.Unhealthy}, {"accessTimeout", h.Timeout}, {"configuration", h.Configuration},
		{"partition", h.Partition}, {"fabricManager", h.Manager}} {
		if known(part.value) != "" {
			words = append(words, part.word)
		}
	}
	if words == nil {
		return []string{"none"}
	}
	return words
}

// boards numbers the serial numbers that several GPUs share, from 1.
func (r report) boards() map[string]int {
	gpus, boards := map[string]int{}, map[string]int{}
	for _, g := range r.GPUs {
		gpus[known(g.Serial)]++
	}
	for _, g := range r.GPUs {
		if s := known(g.Serial); s != "" && gpus[s] > 1 && boards[s] == 0 {
			boards[s] = len(boards) + 1
		}
	}
	return boards
}

// ownMinors reports whether the numbers of device nodes differ from the GPUs' order.
func (r report) ownMinors() bool {
	for i, g := range r.GPUs {
		if known(g.Minor) != "" && number(g.Minor) != i {
			return true
		}
	}
	return false
}

// platform is nil where there is no place in a chassis.
func (g gpu) platform() *profile.Platform {
	peers := map[string]string{"Direct Connected": "direct", "Switch Connected": "switch"}
	if peers[g.Peer] == "" {
		return nil
	}
	return &profile.Platform{Chassis: known(g.Slot) != "", FirstSlot: max(number(g.Slot)-number(g.Tray), 0), Host: number(g.Host),
		Peer: peers[g.Peer]}
}

func (g gpu) pcie() profile.PCIe {
	link := number(cmp.Or(g.PCI.MaxGen, g.PCI.Generation))
	p := profile.PCIe{Generation: cmp.Or(number(g.PCI.DeviceGen), link), LinkGeneration: link, HostGeneration: number(g.PCI.HostGen),
		Width: number(cmp.Or(g.PCI.MaxWidth, g.PCI.Width)), Atomics: "none"}
	switch {
	case strings.Contains(g.PCI.Outbound, "CAS"):
		p.Atomics = "both"
	case strings.Contains(g.PCI.Inbound, "CAS"):
		p.Atomics = "inbound"
	}
	return p
}

// modulePower is nil where it is not reported.
func (g gpu) modulePower() *profile.Power {
	m := g.ModulePower
	if number(m.Max) == 0 {
		return nil
	}
	return &profile.Power{IdleWatts: number(m.Draw), DefaultWatts: number(m.Default), MinWatts: number(m.Min), MaxWatts: number(m.Max)}
}

// temperature reads thresholds, or the distances from the highest temperature that newer models give.
func (g gpu) temperature() profile.Temperature {
	t := g.Temperature
	out := profile.Temperature{Shutdown: number(t.Shutdown), Slowdown: number(t.Slowdown), MaxGPU: number(t.Max), MaxMemory: number(t.Memory)}
	if known(t.Limit) != "" {
		out.MaxGPU = number(t.Now) + number(t.Limit)
		out.Shutdown, out.Slowdown = out.MaxGPU+number(t.ShutdownLimit), out.MaxGPU+number(t.SlowdownLimit)
	}
	return out
}
