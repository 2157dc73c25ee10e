package nvmlstate

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

// Limits of memory by cgroup: the rules are those of nvml/memory_limits.c.

const setMemoryLimits, getMemoryLimits = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"

// limitable returns the GPU's part of the state where the GPU supports limits.
func (d *device) limitable(b *state.Body) (part, nvml.Return) {
	p, r := d.gpuOnly(b)
	switch {
	case r != nvml.SUCCESS:
		return p, r
	case p.model.Integrated != 0 || p.gpu.Core.MIGCurrent != 0:
		return p, nvml.ERROR_NOT_SUPPORTED
	}
	return p, nvml.SUCCESS
}

// SetMemoryLimits_v1 answers FUNCTION_NOT_FOUND in drivers before r615, where go-nvml's own ends the process: look up the name
// first.
func (d *device) SetMemoryLimits_v1(cgroup string, soft, hard uint64) nvml.Return {
	if d.lib.LookupSymbol(setMemoryLimits) != nil {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.lib.write("DeviceSetMemoryLimits_v1", func(b *state.Body) nvml.Return {
		p, r := d.limitable(b)
		if r != nvml.SUCCESS {
			return r
		}
		total := p.model.MemoryTotal
		if soft > hard || soft > total || hard > total && hard != state.NoMemoryLimit {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		id, err := state.CgroupOf(cgroup)
		if err != nil {
			return nvml.ERROR_OPERATING_SYSTEM
		}
		return limit(p.gpu, state.MemoryLimit{Cgroup: id, Soft: soft, Hard: hard})
	})
}

// limit puts a limit into the GPU's table, in place of the cgroup's last one.
func limit(g *state.GPU, to state.MemoryLimit) nvml.Return {
	place := find(g, func(l state.MemoryLimit) bool { return l.Cgroup == to.Cgroup })
	if place == nil {
		place = find(g, func(l state.MemoryLimit) bool { return l.Cgroup == 0 || l.Soft == 0 })
	}
	if place == nil {
		return nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	*place = to
	if to.Soft == 0 && to.Hard == state.NoMemoryLimit {
		*place = state.MemoryLimit{}
	}
	g.Core.MemoryLimits = 0
	for _, l := range g.Limits {
		if l.Cgroup != 0 {
			g.Core.MemoryLimits++
		}
	}
	return nvml.SUCCESS
}

func find(g *state.GPU, what func(state.MemoryLimit) bool) *state.MemoryLimit {
	for i := range g.Limits {
		if what(g.Limits[i]) {
			return &g.Limits[i]
		}
	}
	return nil
}

func (d *device) GetMemoryLimits_v1(cgroup string) (nvml.MemoryLimits_v1, nvml.Return) {
	limits := nvml.MemoryLimits_v1{NameSpace: cgroup}
	if d.lib.LookupSymbol(getMemoryLimits) != nil {
		return limits, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return limits, d.lib.read("DeviceGetMemoryLimits_v1", func(b *state.Body) nvml.Return {
		p, r := d.limitable(b)
		if r != nvml.SUCCESS {
			return r
		}
		id, err := state.CgroupOf(cgroup)
		if err != nil {
			return nvml.ERROR_OPERATING_SYSTEM
		}
		l := find(p.gpu, func(l state.MemoryLimit) bool { return l.Cgroup == id })
		if l == nil {
			return nvml.ERROR_NOT_FOUND
		}
		limits.SoftLimit, limits.HardLimit, limits.CurrentUsed = l.Soft, l.Hard, d.usedBy(p, id)
		return nvml.SUCCESS
	})
}

// usedBy is the use of the GPU by the processes of a cgroup.
func (d *device) usedBy(p part, cgroup uint64) (bytes uint64) {
	for _, q := range d.processes(p) {
		if q.In(cgroup) {
			bytes += q.Memory
		}
	}
	return bytes
}

// slice is the memory as this process sees it, where its own cgroup has a limit. A limit of a cgroup above is enforced and not shown.
func (d *device) slice(p part, m memory) memory {
	if d.isMIG || p.gpu.Core.MemoryLimits == 0 {
		return m
	}
	own := state.Cgroups()[0]
	l := find(p.gpu, func(l state.MemoryLimit) bool { return own != 0 && l.Cgroup == own && l.Hard != state.NoMemoryLimit })
	if l == nil {
		return m
	}
	return memory{total: l.Hard, used: d.usedBy(p, own)}
}
