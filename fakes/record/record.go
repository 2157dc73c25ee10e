// Package record turns a real machine into a profile, from nvidia-smi's XML and from sysfs. A profile contains nothing that
// identifies the machine: it has no serials, UUIDs, GUIDs, MACs or addresses, and the fabric's cluster UUID and the host's name are
// replaced.
package record

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/fakes/profile"
)

// Machine has the places to read.
type Machine struct {
	// Name is the profile's.
	Name string
	// SMI is the output of nvidia-smi -q -x on the machine whose sysfs is at Sysfs; empty for a machine without GPUs.
	SMI []byte
	// ComputeCapability is the output of nvidia-smi --query-gpu=compute_cap --format=csv,noheader, which the XML does not have.
	ComputeCapability string
	// Sysfs is the root of sysfs, usually /sys.
	Sysfs string
	// IMEXVersion is the version that nvidia-imex reports; empty where there is none.
	IMEXVersion string
}

// report is the part of nvidia-smi's XML that a profile needs.
type report struct {
	XMLName xml.Name `xml:"nvidia_smi_log"`

	Driver string `xml:"driver_version"`
	CUDA   string `xml:"cuda_version"`
	GPUs   []gpu  `xml:"gpu"`
}

type gpu struct {
	ID           string `xml:"id,attr"`
	Name         string `xml:"product_name"`
	Brand        string `xml:"product_brand"`
	Architecture string `xml:"product_architecture"`
	Addressing   string `xml:"addressing_mode"`
	Board        string `xml:"board_part_number"`
	VBIOS        string `xml:"vbios_version"`
	GPUPart      string `xml:"gpu_part_number"`
	Serial       string `xml:"serial"`
	Minor        string `xml:"minor_number"`
	// Module and Clique are N/A where there is none. The first name is that of drivers before 550.
	OldModule string `xml:"gpu_module_id"`
	Module    string `xml:"platformInfo>module_id"`
	details
	PCI struct {
		Device    string `xml:"pci_device_id"`
		Subsystem string `xml:"pci_sub_system_id"`
		// Real machines nest the link's numbers; the maximum counts.
		Generation string `xml:"pcie_gen"`
		MaxGen     string `xml:"pci_gpu_link_info>pcie_gen>max_link_gen"`
		DeviceGen  string `xml:"pci_gpu_link_info>pcie_gen>max_device_link_gen"`
		HostGen    string `xml:"pci_gpu_link_info>pcie_gen>max_host_link_gen"`
		Outbound   string `xml:"atomic_caps_outbound"`
		Inbound    string `xml:"atomic_caps_inbound"`
		Width      string `xml:"link_width"`
		MaxWidth   string `xml:"pci_gpu_link_info>link_widths>max_link_width"`
	} `xml:"pci"`
	Fabric struct {
		State  string `xml:"state"`
		Clique string `xml:"cliqueId"`
		UUID   string `xml:"clusterUuid"`
		Health health `xml:"health"`
	} `xml:"fabric"`
	Memory struct {
		Total    string `xml:"total"`
		Reserved string `xml:"reserved"`
	} `xml:"fb_memory_usage"`
	ECC struct {
		Volatile struct {
			Correctable string `xml:"correctable"`
			Corrected   string `xml:"sram_correctable"`
		} `xml:"volatile"`
	} `xml:"ecc_errors"`
	ECCMode     string `xml:"ecc_mode>current_ecc"`
	Temperature struct {
		Now      string `xml:"gpu_temp"`
		Shutdown string `xml:"gpu_temp_max_threshold"`
		Slowdown string `xml:"gpu_temp_slow_threshold"`
		Max      string `xml:"gpu_temp_max_gpu_threshold"`
		Memory   string `xml:"gpu_temp_max_mem_threshold"`
		// From Ada on they are distances from the highest temperature.
		Limit         string `xml:"gpu_temp_tlimit"`
		ShutdownLimit string `xml:"gpu_temp_max_tlimit_threshold"`
		SlowdownLimit string `xml:"gpu_temp_slow_tlimit_threshold"`
	} `xml:"temperature"`
	Power power `xml:"gpu_power_readings"`
	// OldPower is Power of drivers before 535.
	OldPower power  `xml:"power_readings"`
	Max      clocks `xml:"clock_rates>max_clocks"`
	// Real machines have them directly below the GPU.
	MaxClocks clocks `xml:"max_clocks"`
	MIG       string `xml:"mig_mode>current_mig"`
}

type power struct {
	// From driver 535 on there are two power readings, and one of these names always exists.
	Draw    string `xml:"power_draw"`
	Instant string `xml:"instant_power_draw"`
	Default string `xml:"default_power_limit"`
	Min     string `xml:"min_power_limit"`
	Max     string `xml:"max_power_limit"`
}

type clocks struct {
	Graphics string `xml:"graphics_clock"`
	SM       string `xml:"sm_clock"`
	Memory   string `xml:"mem_clock"`
	Video    string `xml:"video_clock"`
}

// Profile reads the machine. A value that it could not find stays zero, and may have to be added to the profile file.
func Profile(m Machine) (*profile.Profile, error) {
	p := &profile.Profile{Name: m.Name, Summary: "recorded", Source: "fakefabric record on a real machine",
		Host: profile.Host{Architecture: runtime.GOARCH, Hostname: m.Name + "-%d"}}
	s := sysfs{root: m.Sysfs}
	p.Host.NUMA = s.numa()
	p.Host.Vendor, p.Host.Product = s.text("class/dmi/id/sys_vendor"), s.text("class/dmi/id/product_name")
	p.NICs = s.nics()
	if len(m.SMI) > 0 {
		if err := addGPUs(p, m, s); err != nil {
			return nil, err
		}
	}
	if m.IMEXVersion != "" {
		p.IMEX = &profile.IMEX{Version: m.IMEXVersion, Channels: 2048}
	}
	return p, s.err
}

// parse reads one report; what follows it may be white space alone.
func parse(text []byte) (report, error) {
	var r report
	if bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff}) {
		return r, errors.New("it is UTF-16 (convert it: iconv -f UTF-16 -t UTF-8)")
	}
	decoder := xml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&r); err != nil {
		return r, err
	}
	if rest := bytes.TrimSpace(text[decoder.InputOffset():]); len(rest) > 0 {
		return r, fmt.Errorf("%d bytes follow the end of the first report, as where two were written into one file", len(rest))
	}
	for i := range r.GPUs {
		if g := &r.GPUs[i]; g.Power == (power{}) {
			g.Power = g.OldPower
		}
	}
	return r, nil
}

func addGPUs(p *profile.Profile, m Machine, s sysfs) error {
	r, err := parse(m.SMI)
	if err != nil {
		return fmt.Errorf("read the output of nvidia-smi -q -x: %w; the whole XML of one machine, from <?xml to </nvidia_smi_log>, is needed",
			err)
	}
	if len(r.GPUs) == 0 {
		return errors.New("the output of nvidia-smi -q -x has no GPU; omit it for a machine without GPUs (--nvidia-smi= without --xml)")
	}
	p.Driver = profile.Driver{Version: r.Driver, CUDA: r.CUDA}
	first := r.GPUs[0]
	p.GPUs = &profile.GPUs{Model: first.model()}
	capability, _, _ := strings.Cut(strings.TrimSpace(m.ComputeCapability), "\n")
	p.GPUs.Model.ComputeCapability = strings.TrimSpace(capability)
	boards, counted := r.boards(), r.ownMinors()
	for _, g := range r.GPUs {
		if g.Name != first.Name {
			return fmt.Errorf("GPU %s is %s and GPU %s is %s; a profile has one model", first.ID, first.Name, g.ID, g.Name)
		}
		address := strings.ToLower(strings.TrimPrefix(g.ID, "0000"))
		if s.device(address) == "" {
			return fmt.Errorf("GPU %s of nvidia-smi's output is not in %s/bus/pci/devices; give --sysfs the /sys of the machine that the "+
				"output is of", g.ID, s.root)
		}
		d := profile.GPU{PCI: address, Bridges: s.bridges(address), NUMA: s.numaOf(address), Module: number(cmp.Or(g.Module, g.OldModule)),
			Board: boards[g.Serial]}
		if counted {
			d.Minor = number(g.Minor)
		}
		if v := number(g.Temperature.Now); v != p.GPUs.Model.IdleCelsius {
			d.IdleCelsius = v
		}
		if v := g.draw(); v != p.GPUs.Model.Power.IdleWatts {
			d.IdleWatts = v
		}
		p.GPUs.Devices = append(p.GPUs.Devices, d)
	}
	if f := first.Fabric; f.State == "Completed" {
		p.Fabric = &profile.Fabric{ClusterUUID: sanitised(f.UUID), CliqueID: uint32(number(f.Clique)), Health: f.Health.words()}
	}
	p.GPUs.Platform = first.platform()
	borrow(p)
	if link := p.GPUs.NVLink; link != nil {
		own := *link
		own.Switches = s.switches()
		p.GPUs.NVLink = &own
	}
	return nil
}

const noCluster = "00000000-0000-0000-0000-000000000000"

// sanitised keeps the UUID that means no cluster, and replaces every other by one that is the same in every recording.
func sanitised(uuid string) string {
	if uuid == "" || uuid == noCluster {
		return noCluster
	}
	return "fab0fab0-fab0-4ab0-8ab0-fab0fab0fab0"
}

func (g gpu) model() profile.GPUModel {
	max := g.Max
	if max == (clocks{}) {
		max = g.MaxClocks
	}
	architecture, _, _ := strings.Cut(strings.ToLower(g.Architecture), " ")
	m := profile.GPUModel{
		Name: g.Name, Architecture: architecture, Brand: strings.ToLower(g.Brand), PCIID: pciID(g.PCI.Device),
		SubsystemID: pciID(g.PCI.Subsystem),
		MemoryMiB:   int64(number(g.Memory.Total)), ReservedMiB: int64(number(g.Memory.Reserved)), Integrated: known(g.Memory.Total) == "",
		ECC:            g.hasECC(),
		AddressingMode: map[string]string{"HMM": "HMM", "ATS": "ATS", "None": "none"}[g.Addressing],
		BoardPart:      known(g.Board), VBIOS: known(g.VBIOS),
		PCIe: g.pcie(), GPUPart: known(g.GPUPart), RowRemapperBanks: number(g.Banks), ModulePower: g.modulePower(),
		InfoROM: known(g.InfoROM), InfoROMObjects: profile.InfoROMObjects{OEM: known(g.OEM), ECC: known(g.ECCObject)},
		Power: profile.Power{IdleWatts: g.draw(), DefaultWatts: number(g.Power.Default), MinWatts: number(g.Power.Min),
			MaxWatts: number(g.Power.Max), MemoryIdleWatts: number(g.MemoryPower)},
		Clocks: profile.Clocks{GraphicsMHz: number(max.Graphics), SMMHz: number(max.SM), MemoryMHz: number(max.Memory),
			VideoMHz: number(max.Video), ApplicationMHz: cmp.Or(number(g.Application), number(max.Graphics))},
		IdleCelsius: number(g.Temperature.Now),
		Temperature: g.temperature(),
	}
	return m
}

func (g gpu) draw() int { return number(cmp.Or(g.Power.Draw, g.Power.Instant)) }

// hasECC reports whether the model can correct errors, even if that is disabled.
func (g gpu) hasECC() bool {
	if g.ECCMode != "" {
		return g.ECCMode != "N/A"
	}
	counter := g.ECC.Volatile.Correctable + g.ECC.Volatile.Corrected
	return counter != "N/A" && counter != ""
}

// borrow copies the fields that nvidia-smi does not report from the shipped profile of the same model, if there is one.
func borrow(p *profile.Profile) {
	for _, name := range profile.Names() {
		q, err := profile.Load(name)
		if err != nil || q.GPUs == nil || q.GPUs.Model.Name != p.GPUs.Model.Name {
			continue
		}
		m, from := &p.GPUs.Model, q.Filled().GPUs.Model
		m.MIG, m.Multiprocessors, m.Cores, m.MemoryBusBits, m.BAR1MiB = from.MIG, from.Multiprocessors, from.Cores, from.MemoryBusBits,
			from.BAR1MiB
		if m.Integrated {
			m.MemoryMiB = from.MemoryMiB
		}
		m.Coherent, m.InfoROM, m.Clocks.IdleMHz = from.Coherent, cmp.Or(m.InfoROM, from.InfoROM), from.Clocks.IdleMHz
		m.Clocks.IdleVideoMHz, m.Clocks.IdleMemoryMHz = from.Clocks.IdleVideoMHz, from.Clocks.IdleMemoryMHz
		m.Temperature.MaxGPU = cmp.Or(m.Temperature.MaxGPU, from.Temperature.MaxGPU)
		m.Temperature.MaxMemory = cmp.Or(m.Temperature.MaxMemory, from.Temperature.MaxMemory)
		m.ComputeCapability = cmp.Or(m.ComputeCapability, from.ComputeCapability)
		p.GPUs.NVLink = q.GPUs.NVLink
		if p.Fabric != nil && q.Fabric != nil {
			p.Fabric.NodesPerClique = q.Fabric.NodesPerClique
		}
		return
	}
}

func known(s string) string {
	if s == "N/A" {
		return ""
	}
	return s
}

var digits = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// number takes the first number out of a text such as "1200.00 W", rounded; 0 where there is none.
func number(s string) int {
	v, err := strconv.ParseFloat(digits.FindString(s), 64)
	if err != nil {
		return 0
	}
	return int(v + 0.5)
}

// pciID turns 0x294110DE into 10de:2941.
func pciID(s string) string {
	s = strings.ToLower(strings.TrimPrefix(s, "0x"))
	if len(s) != 8 {
		return ""
	}
	return s[4:] + ":" + s[:4]
}

// sysfs reads one machine's sysfs; err keeps the first error that matters.
type sysfs struct {
	root string
	err  error
}

func (s sysfs) text(path string) string {
	data, err := os.ReadFile(filepath.Join(s.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (s sysfs) numa() []profile.NUMANode {
	dirs, _ := filepath.Glob(filepath.Join(s.root, "devices/system/node/node[0-9]*")) // the pattern is right
	var nodes []profile.NUMANode
	for _, dir := range dirs {
		n := number(filepath.Base(dir))
		path := fmt.Sprintf("devices/system/node/node%d/", n)
		var kib int64
		for line := range strings.SplitSeq(s.text(path+"meminfo"), "\n") {
			if _, after, ok := strings.Cut(line, "MemTotal:"); ok {
				kib, _ = strconv.ParseInt(strings.Fields(after)[0], 10, 64) // no number counts as none
			}
		}
		nodes = append(nodes, profile.NUMANode{Node: n, CPUs: s.text(path + "cpulist"), MemoryMiB: kib / 1024})
	}
	slices.SortFunc(nodes, func(a, b profile.NUMANode) int { return cmp.Compare(a.Node, b.Node) })
	return nodes
}

func (s sysfs) device(address string) string {
	real, err := filepath.EvalSymlinks(filepath.Join(s.root, "bus/pci/devices", address))
	if err != nil {
		return ""
	}
	return real
}

// switches are the addresses of NVSwitches: bridges of NVIDIA's that are no PCI bridges.
func (s sysfs) switches() []string {
	devices, _ := filepath.Glob(filepath.Join(s.root, "bus/pci/devices/*")) // the pattern is right
	var found []string
	for _, device := range devices {
		address := filepath.Base(device)
		path := "bus/pci/devices/" + address
		if s.text(path+"/vendor") == "0x10de" && strings.HasPrefix(s.text(path+"/class"), "0x0680") {
			found = append(found, address)
		}
	}
	return found
}

var pciName = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// bridges are the PCI addresses above a device in its path.
func (s sysfs) bridges(address string) []string {
	var above []string
	for part := range strings.SplitSeq(filepath.Dir(s.device(address)), "/") {
		if pciName.MatchString(part) {
			above = append(above, part)
		}
	}
	return above
}

func (s sysfs) numaOf(address string) int {
	n, err := strconv.Atoi(s.text("bus/pci/devices/" + address + "/numa_node"))
	if err != nil {
		return -1
	}
	return n
}
