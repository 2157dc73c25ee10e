package profile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/fakes/internal/strict"
)

// Limits that the state file's layout sets; package state asserts that they agree.
const (
	// MaxGPUs is the most GPUs one node can have.
	MaxGPUs = 32
	// MaxMIGProfiles is the most GPU instance profiles a model can have.
	MaxMIGProfiles = 12
	// HighestCPU and HighestNUMANode are the highest numbers that NVML can report for a GPU's CPUs and NUMA nodes.
	HighestCPU      = 1023
	HighestNUMANode = 255
)

// migKey identifies a MIG profile. IDs alone do not: 14 has two slices of an A100 and one of an A30.
type migKey struct{ slices, id int }

// migEnums are NVML's NVML_GPU_INSTANCE_PROFILE_* numbers (nvml.h), first of GPUs with seven compute slices, then of the A30, which has
// four, and of the RTX PRO 6000 (IDs as NVIDIA's MIG user guide lists them by nvidia-smi mig -lgip).
var migEnums = map[migKey]uint32{
	{1, 19}: 0x0, {2, 14}: 0x1, {3, 9}: 0x2, {4, 5}: 0x3, {7, 0}: 0x4, {1, 20}: 0x7, {2, 13}: 0x8, {1, 15}: 0x9,
	{1, 14}: 0x0, {2, 5}: 0x1, {4, 0}: 0x3, {1, 21}: 0x7, {2, 6}: 0x8,
	{1, 47}: 0xa, {2, 35}: 0xb, {4, 32}: 0xc, {1, 67}: 0xd, {2, 66}: 0xe, {1, 65}: 0xf, {2, 64}: 0x10,
}

// Enum is NVML's NVML_GPU_INSTANCE_PROFILE_* number of the profile.
func (m MIGProfile) Enum() uint32 { return migEnums[migKey{m.Slices, m.ID}] }

// checks are the checks that need the whole profile.
type checks struct{ *strict.Checker }

// semantics checks rules over several values.
func (c *checks) semantics(p *Profile) {
	c.originSemantics(p)
	numa := map[int]bool{}
	for i, n := range p.Host.NUMA {
		path := fmt.Sprintf("host.numa[%d]", i)
		for k := range max(n.Count, 1) {
			if numa[n.Node+k] {
				c.At(path+".node", "node %d occurs twice", n.Node+k)
			}
			numa[n.Node+k] = true
		}
		if _, err := ParseList(n.CPUs); err != nil {
			c.At(path+".cpus", "%v", err)
		}
	}
	addresses := map[string]string{}
	place := func(path, pci string, bridges []string, node int) {
		if other, ok := addresses[pci]; ok {
			c.At(path+".pci", "%s is taken by %s", pci, other)
		}
		addresses[pci] = path
		if node >= 0 && !numa[node] {
			c.At(path+".numa", "NUMA node %d is not in host.numa", node)
		}
		for i, b := range bridges {
			if !pciAddress.MatchString(b) {
				c.At(fmt.Sprintf("%s.bridges[%d]", path, i), "%q is not a PCI address like 0000:00:01.0", b)
			} else if b[:4] != pci[:4] {
				c.At(fmt.Sprintf("%s.bridges[%d]", path, i), "%s is in another PCI domain than %s", b, pci)
			}
		}
	}
	if p.GPUs != nil {
		c.gpuSemantics(p, place)
	} else if p.Fabric != nil {
		c.At("fabric", "needs gpus")
	}
	devices := map[string]bool{}
	for i, n := range p.NICs {
		path := fmt.Sprintf("nics[%d]", i)
		place(path, n.PCI, n.Bridges, n.NUMA)
		for _, name := range []string{n.Device, n.Netdev} {
			if devices[name] {
				c.At(path, "%s occurs twice", name)
			}
			devices[name] = true
		}
		if n.SRIOV != nil && n.SRIOV.Enabled > n.SRIOV.Total {
			c.At(path+".sriov.enabled", "is %d; the NIC has %d in total", n.SRIOV.Enabled, n.SRIOV.Total)
		}
		if n.Switchdev() && n.Link != "Ethernet" {
			c.At(path+".sriov.switchdev", "needs link: Ethernet; an InfiniBand port has no representors")
		}
		if n.DataDirect != nil {
			place(path+".dataDirect", n.DataDirect.PCI, n.DataDirect.Bridges, n.NUMA)
			if n.Model != "ConnectX-8" && n.Model != "ConnectX-9" {
				c.At(path+".dataDirect", "needs model: ConnectX-8 or ConnectX-9; %s has no such function", n.Model)
			}
		}
	}
	for _, f := range p.functions() {
		if f.physical < 0 {
			continue
		}
		path := fmt.Sprintf("nics[%d].sriov.enabled", f.physical)
		for _, name := range []string{f.Device, f.Netdev} {
			if devices[name] {
				c.At(path, "virtual function %d is %s, which occurs twice", f.vf, name)
			}
			devices[name] = true
		}
		if other, ok := addresses[f.PCI]; ok {
			c.At(path, "virtual function %d has %s, which is taken by %s", f.vf, f.PCI, other)
		}
		addresses[f.PCI] = fmt.Sprintf("nics[%d]", f.physical)
	}
}

func (c *checks) gpuSemantics(p *Profile, place func(path, pci string, bridges []string, node int)) {
	if p.Driver.Version == "" || p.Driver.CUDA == "" {
		c.At("driver", "needs version and cuda on a machine with GPUs")
	}
	if n := len(p.GPUs.Devices); n > MaxGPUs {
		c.At("gpus.devices", "lists %d GPUs; at most %d are allowed", n, MaxGPUs)
	}
	if f := p.Fabric; f != nil {
		for i, word := range f.Health {
			if _, ok := healthWords[word]; !ok {
				c.At(fmt.Sprintf("fabric.health[%d]", i), "is %q; allowed: %s", word, strings.Join(slices.Sorted(maps.Keys(healthWords)), ", "))
			}
		}
	}
	modules, minors, counted := map[int]bool{}, map[int]bool{}, slices.ContainsFunc(p.GPUs.Devices, func(g GPU) bool { return g.Minor > 0 })
	for i, g := range p.GPUs.Devices {
		path := fmt.Sprintf("gpus.devices[%d]", i)
		place(path, g.PCI, g.Bridges, g.NUMA)
		if _, err := ParseList(g.CPUs); err != nil {
			c.At(path+".cpus", "%v", err)
		}
		if _, err := ParseList(g.MemoryNodes); err != nil {
			c.At(path+".memoryNodes", "%v", err)
		}
		if g.Module != 0 && modules[g.Module] {
			c.At(path+".module", "%d occurs twice", g.Module)
		}
		modules[g.Module] = true
		if counted && minors[g.Minor] {
			c.At(path+".minor", "%d occurs twice", g.Minor)
		}
		minors[g.Minor] = true
	}
	for i, g := range p.Node(0).GPUs {
		for _, list := range []struct {
			key, text string
			highest   int
		}{{"cpus", g.CPUs, HighestCPU}, {"memoryNodes", g.MemoryNodes, HighestNUMANode}} {
			if n, err := ParseList(list.text); err == nil && len(n) > 0 && slices.Max(n) > list.highest {
				c.At(fmt.Sprintf("gpus.devices[%d].%s", i, list.key), "%d is beyond %d, the highest that NVML can report", slices.Max(n), list.highest)
			}
		}
	}
	for name, w := range map[string]*Power{"power": &p.GPUs.Model.Power, "modulePower": p.GPUs.Model.ModulePower} {
		if w == nil || w.MaxWatts == 0 || w.DefaultWatts == 0 { // not reported
			continue
		}
		if w.MinWatts > w.DefaultWatts || w.DefaultWatts > w.MaxWatts {
			c.At("gpus.model."+name, "has minWatts %d, defaultWatts %d and maxWatts %d; none may be above the next", w.MinWatts, w.DefaultWatts,
				w.MaxWatts)
		}
	}
	if m := p.GPUs.Model; m.ReservedMiB > m.MemoryMiB {
		c.At("gpus.model.reservedMiB", "is %d; the GPU has %d", m.ReservedMiB, m.MemoryMiB)
	}
	if l := p.GPUs.NVLink; l != nil {
		for i, s := range l.Switches {
			if !pciAddress.MatchString(s) {
				c.At(fmt.Sprintf("gpus.nvlink.switches[%d]", i), "%q is not a PCI address like 0000:00:01.0", s)
			} else {
				place(fmt.Sprintf("gpus.nvlink.switches[%d]", i), s, nil, -1)
			}
		}
		if !l.Switched && len(p.GPUs.Devices) > 1 && l.Links < len(p.GPUs.Devices)-1 {
			c.At("gpus.nvlink.links", "is %d; without switches each of %d GPUs needs a link to every other", l.Links, len(p.GPUs.Devices))
		}
	}
	if m := p.GPUs.Model.MIG; m != nil {
		c.migSemantics(m, p.GPUs.Model)
	}
}

func (c *checks) migSemantics(m *MIG, model GPUModel) {
	if len(m.Profiles) > MaxMIGProfiles {
		c.At("gpus.model.mig.profiles", "lists %d; at most %d are allowed", len(m.Profiles), MaxMIGProfiles)
	}
	ids := map[int]bool{}
	for i, q := range m.Profiles {
		path := fmt.Sprintf("gpus.model.mig.profiles[%d]", i)
		if _, ok := migEnums[migKey{q.Slices, q.ID}]; !ok {
			c.At(path+".id", "%d is no GPU instance profile of %d slices; known: 0, 5, 9, 13, 14, 15, 19, 20; 0, 5, 6, 14, 21 of an A30; "+
				"0, 5, 14, 21, 32, 35, 47, 64 to 67 of an RTX PRO 6000", q.ID,
				q.Slices)
		}
		if ids[q.ID] {
			c.At(path+".id", "%d occurs twice", q.ID)
		}
		ids[q.ID] = true
		if len(q.Starts) > 8 {
			c.At(path+".starts", "lists %d placements; at most 8 are allowed", len(q.Starts))
		}
		for _, s := range q.Starts {
			if s < 0 || s+q.Size > m.MemorySlices {
				c.At(path+".starts", "placement %d:%d is outside the %d memory slices", s, q.Size, m.MemorySlices)
			}
		}
		if q.MemoryMiB > model.MemoryMiB {
			c.At(path+".memoryMiB", "is %d; the GPU has %d", q.MemoryMiB, model.MemoryMiB)
		}
	}
}

// ParseList reads a list such as "0-3,8" (sysfs's cpulist format); empty text is an empty list. At most 65,536 numbers are taken.
func ParseList(s string) ([]int, error) {
	var list []int
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA != nil || errB != nil || a < 0 || b < a || b > 65535 {
			return nil, fmt.Errorf("%q is not a list like 0-71,144", s)
		}
		for v := a; v <= b; v++ {
			list = append(list, v)
		}
		if len(list) > 65536 {
			return nil, fmt.Errorf("%q lists too many numbers; at most 65536", s)
		}
	}
	return list, nil
}
