package health

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/inventory"
)

// links are numbers of NVLinks by their GPU's UUID.
type links map[string]map[int]bool

func (l links) set(uuid string, link int) {
	if l[uuid] == nil {
		l[uuid] = map[int]bool{}
	}
	l[uuid][link] = true
}

// linkReading is which of a GPU's NVLinks are up at one moment, by their numbers.
type linkReading struct {
	gpu *inventory.GPU
	up  []bool
}

// checkLinks records every NVLink that is down but should be up. The driver reports most of them by an XID, but not a link that its
// peer took down, nor one that was down before the plugin started. A link without a bridge or a neighbour never comes up, so
// checkLinks only reports two kinds: a link that was up before, and a link of a GPU behind NVSwitches that most other GPUs of its
// kind on the node have up. Boards with NVSwitches wire all their GPUs alike.
func (m *follower) checkLinks(ctx context.Context) {
	if m.options.NVML.Extensions().LookupSymbol("nvmlDeviceGetNvLinkState") != nil {
		return // calling a function that the library lacks ends the process
	}
	var readings []linkReading
	for _, g := range m.options.Node().GPUs {
		switch {
		case g.NVLinkDomain == "" && m.up[g.UUID] == nil:
		case inMIGMode(g):
			// Switching the mode takes an A100's links down, and trains them again afterwards.
			delete(m.up, g.UUID)
			delete(m.absent, g.UUID)
		default:
			readings = append(readings, readLinks(g))
		}
	}
	absent := links{}
	for _, r := range readings {
		for link, up := range r.up {
			switch {
			case up:
				m.up.set(r.gpu.UUID, link)
			case m.stands(r.gpu.UUID, link):
			case m.up[r.gpu.UUID][link]:
				m.linkDown(ctx, r.gpu, link, "")
			default:
				with, of := neighboursWith(readings, r.gpu, link)
				if of < 2 || 2*with <= of || !m.switched(r) {
					continue
				}
				// Links are trained one after another when a machine starts, so a link counts as down when it was seen down twice.
				if absent.set(r.gpu.UUID, link); m.absent[r.gpu.UUID][link] {
					m.linkDown(ctx, r.gpu, link, fmt.Sprintf(" since before the plugin looked; it is up on %d of the %d other GPUs of its kind", with, of))
				}
			}
		}
	}
	m.absent = absent
}

func (m *follower) linkDown(ctx context.Context, g *inventory.GPU, link int, more string) {
	m.add(ctx, Fault{GPU: g.UUID, Kind: NVLink, Link: &link, Fatal: true, Message: fmt.Sprintf("NVLink %d is down%s", link, more)}, true)
}

// readLinks reads each of a GPU's links. A lost GPU has none; its loss is reported elsewhere.
func readLinks(g *inventory.GPU) linkReading {
	r := linkReading{gpu: g}
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := g.Handle.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			break // the GPU has no link of this number, nor any after it
		}
		r.up = append(r.up, state == nvml.FEATURE_ENABLED)
	}
	return r
}

// neighboursWith counts the other GPUs of g's kind in its NVLink domain, and those of them on which a link is up.
func neighboursWith(readings []linkReading, g *inventory.GPU, link int) (with, of int) {
	for _, r := range readings {
		if r.gpu == g || r.gpu.ProductName != g.ProductName || r.gpu.NVLinkDomain != g.NVLinkDomain || len(r.up) <= link {
			continue
		}
		of++
		if r.up[link] {
			with++
		}
	}
	return with, of
}

// switched reports whether a link of a GPU that is up ends at something other than a GPU of this node: an NVSwitch.
func (m *follower) switched(r linkReading) bool {
	if m.options.NVML.Extensions().LookupSymbol("nvmlDeviceGetNvLinkRemotePciInfo_v2") != nil {
		return false
	}
	gpus := map[string]bool{}
	for _, g := range m.options.Node().GPUs {
		gpus[g.Place.BusID] = true
	}
	for link, up := range r.up {
		if !up {
			continue
		}
		if end := inventory.NVLinkEnd(r.gpu, link); end != "" && !gpus[end] {
			return true
		}
	}
	return false
}

// inMIGMode reports whether a GPU is in MIG mode now.
func inMIGMode(g *inventory.GPU) bool {
	if g.MIG == nil {
		return false
	}
	current, _, ret := g.Handle.GetMigMode()
	return ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
}

// stands reports whether the record has a link's fault.
func (m *follower) stands(uuid string, link int) bool {
	for _, f := range m.Faults() {
		if f.GPU == uuid && f.Link != nil && *f.Link == link {
			return true
		}
	}
	return false
}

// linkUp reports whether a GPU's link is up now.
func linkUp(g *inventory.GPU, link int) bool {
	state, ret := g.Handle.GetNvLinkState(link)
	return ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED
}
