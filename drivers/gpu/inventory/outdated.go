package inventory

import (
	"cmp"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Outdated reports whether reading again would give another result. A GPU may answer again, or have joined another NVLink clique (the
// fabric manager may take minutes after the boot), or an administrator may have changed the MIG mode of one that needs a reset for
// it. It makes few calls for each GPU, so it may be called every few seconds. It does not see GPUs plugged in after NVML was
// started, which NVML does not count.
func (r Reader) Outdated(n *Node) bool {
	for _, index := range n.Missing {
		if handle, ret := r.NVML.DeviceGetHandleByIndex(index); ret == nvml.SUCCESS {
			if _, ret := handle.GetMemoryInfo(); ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_SUPPORTED {
				return true
			}
		}
	}
	for _, g := range n.GPUs {
		// There is nothing new about a GPU that cannot be read now.
		if clique, _, err := fabric(r.NVML, g.Handle); err == nil && clique != g.Clique && !lost(g) {
			return true
		}
		if g.modeChanged() {
			return true
		}
	}
	return false
}

// modeChanged reports whether a mode that only a reset changes, or the pending one, differs from the one that was read.
func (g *GPU) modeChanged() bool {
	if g.MIG == nil || !g.MIG.NeedsReset {
		return false
	}
	current, pending, ret := g.Handle.GetMigMode()
	return ret == nvml.SUCCESS && (g.MIG.Enabled != (current == nvml.DEVICE_MIG_ENABLE) ||
		g.MIG.Pending != (pending == nvml.DEVICE_MIG_ENABLE))
}

// Answers queries a value that only the GPU itself can supply. A GPU that does not answer must be reset or plugged in again.
func (g *GPU) Answers() bool {
	_, ret := g.Handle.GetMemoryInfo()
	return ret != nvml.ERROR_GPU_IS_LOST && ret != nvml.ERROR_RESET_REQUIRED
}

func lost(g *GPU) bool {
	_, ret := g.Handle.GetMemoryInfo()
	return ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED
}

// Keeping returns a newer reading of n, together with those of its GPUs that could not be read again: a lost GPU still belongs to
// this node, and claims may have it.
func (n *Node) Keeping(newer *Node) *Node {
	merged := *newer
	merged.GPUs, merged.Missing = slices.Clone(newer.GPUs), slices.Clone(newer.Missing)
	for _, g := range n.GPUs {
		if newer.ByUUID(g.UUID) == nil {
			merged.GPUs = append(merged.GPUs, g)
			merged.Missing = slices.DeleteFunc(merged.Missing, func(index int) bool { return index == g.Index })
		}
	}
	slices.SortFunc(merged.GPUs, func(a, b *GPU) int { return cmp.Compare(a.Minor, b.Minor) })
	return &merged
}
