package hook

import (
	"cmp"
	"slices"
	"sync"

	"github.com/containerd/nri/pkg/api"

	"gpufabric.io/drivers/vgpu/annotation"
)

// first stores the shares that each container of a pod had when it was first made. It forgets them with the pod's last
// sandbox. A pod's annotations may change while it runs; a restarted container gets its first shares. The runtime keeps the
// last run of a container, so its annotations are still there after a restart of the plugin.
type first struct {
	mu   sync.Mutex
	held map[string]map[string]grant // by pod UID and container
}

// grant is a container's shares, in units of this many MiB.
type grant struct {
	shares []annotation.Share
	factor int
}

// in converts the shares to the present units: the factor may have grown.
func (g grant) in(factor int) []annotation.Share {
	shares := slices.Clone(g.shares)
	if g.factor > 0 && g.factor != factor {
		for i := range shares {
			shares[i].Memory = (shares[i].Memory*int64(g.factor) + int64(factor) - 1) / int64(factor)
		}
	}
	return shares
}

// of returns the shares with which a container was first made, nil where it was not.
func (f *first) of(uid, container string, factor int) []annotation.Share {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, known := f.held[uid][container]
	if !known {
		return nil
	}
	return g.in(factor)
}

// remember records the shares with which a container was made, unless it was made before.
func (f *first) remember(uid, container string, g grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.held[uid][container]; known {
		return
	}
	if f.held == nil {
		f.held = map[string]map[string]grant{}
	}
	if f.held[uid] == nil {
		f.held[uid] = map[string]grant{}
	}
	f.held[uid][container] = grant{slices.Clone(g.shares), g.factor}
}

func (f *first) forget(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, uid)
}

// recall reads the runtime's containers, oldest first, and replaces the memory of them.
func (f *first) recall(sandboxes map[string]*api.PodSandbox, containers []*api.Container) {
	f.mu.Lock()
	f.held = nil
	f.mu.Unlock()
	sorted := slices.Clone(containers)
	slices.SortStableFunc(sorted, func(a, b *api.Container) int { return cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()) })
	for _, c := range sorted {
		sandbox := sandboxes[c.GetPodSandboxId()]
		g, ok := granted(c)
		// For a container with MIG instances their own state counts: the booked amount is theirs, not the request.
		if sandbox != nil && ok && !slices.ContainsFunc(g.shares, func(s annotation.Share) bool { return s.Slot != nil }) &&
			c.GetAnnotations()[annotation.Limits] != mig {
			f.remember(sandbox.GetUid(), c.GetName(), g)
		}
	}
}
