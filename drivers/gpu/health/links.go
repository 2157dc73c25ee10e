package health

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/inventory"
)

// links remembers which NVLinks of each GPU were up, by UUID: only a link that was up can go down, since a link without a bridge or a
// neighbour never comes up. A link that is down when the plugin first starts is not known to be one of a healthy GPU.
type links map[string]map[int]bool

// checkLinks notes every NVLink that was up and is down. The driver tells of most by an XID, but not of one that its peer took down.
func (m *Monitor) checkLinks(ctx context.Context) {
	if m.options.NVML.Extensions().LookupSymbol("nvmlDeviceGetNvLinkState") != nil {
		return // a call of a function that the library lacks ends the process
	}
	for _, g := range m.options.Node().GPUs {
		if g.NVLinkDomain == "" && m.up[g.UUID] == nil {
			continue
		}
		m.checkLinksOf(ctx, g)
	}
}

func (m *Monitor) checkLinksOf(ctx context.Context, g *inventory.GPU) {
	known := m.up[g.UUID]
	if known == nil {
		known = map[int]bool{}
		m.up[g.UUID] = known
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := g.Handle.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			return // the GPU has no link of this number, nor any after it; or it is lost, which is told otherwise
		}
		if state == nvml.FEATURE_ENABLED {
			known[link] = true
			continue
		}
		if known[link] && !m.stands(g.UUID, link) {
			m.add(ctx, Fault{GPU: g.UUID, Kind: NVLink, Link: &link, Fatal: true, Message: fmt.Sprintf("NVLink %d is down", link)}, true)
		}
	}
}

// stands says whether a link's fault is noted.
func (m *Monitor) stands(uuid string, link int) bool {
	for _, f := range m.Faults() {
		if f.GPU == uuid && f.Link != nil && *f.Link == link {
			return true
		}
	}
	return false
}

// linkUp says whether a GPU's link is up now.
func linkUp(g *inventory.GPU, link int) bool {
	state, ret := g.Handle.GetNvLinkState(link)
	return ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED
}
