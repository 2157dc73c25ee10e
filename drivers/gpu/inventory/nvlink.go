package inventory

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nameNVLinkIslands gives every GPU that is not on a fabric the name of its NVLink island on this node: the GPUs whose links end at
// each other or at the same NVSwitch. An island of one has no name.
func nameNVLinkIslands(lib nvml.Interface, gpus []*GPU) {
	if !has(lib, "nvmlDeviceGetNvLinkState") || !has(lib, "nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return
	}
	// ends maps the far end of a link, a switch or a GPU, to the GPUs with a link to it.
	ends := map[string][]int{}
	for i, g := range gpus {
		if g.NVLinkDomain != "" {
			continue
		}
		seen := map[string]bool{g.Place.BusID: true}
		ends[g.Place.BusID] = append(ends[g.Place.BusID], i)
		for link := range nvml.NVLINK_MAX_LINKS {
			state, ret := g.Handle.GetNvLinkState(link)
			if ret != nvml.SUCCESS {
				break // the GPU has no link of this number, nor any after it
			}
			if state != nvml.FEATURE_ENABLED {
				continue
			}
			if id := NVLinkEnd(g, link); id != "" && !seen[id] {
				seen[id] = true
				ends[id] = append(ends[id], i)
			}
		}
	}
	island := make([]int, len(gpus))
	for i := range island {
		island[i] = i
	}
	var root func(int) int
	root = func(i int) int {
		if island[i] != i {
			island[i] = root(island[i])
		}
		return island[i]
	}
	for _, joined := range ends {
		for _, i := range joined[1:] {
			a, b := root(joined[0]), root(i)
			island[max(a, b)] = min(a, b) // the first GPU names the island, whatever the map's order
		}
	}
	size := map[int]int{}
	for i := range gpus {
		size[root(i)]++
	}
	for i, g := range gpus {
		if g.NVLinkDomain == "" && size[root(i)] > 1 {
			g.NVLinkDomain = gpus[root(i)].UUID
		}
	}
}

// NVLinkEnd is the far end of a GPU's link, another GPU's address or an NVSwitch's. It is written as in sysfs; NVML gives the
// domain eight digits. It is empty where NVML does not report it. The library must have nvmlDeviceGetNvLinkRemotePciInfo_v2.
func NVLinkEnd(g *GPU, link int) string {
	remote, ret := g.Handle.GetNvLinkRemotePciInfo(link)
	if ret != nvml.SUCCESS {
		return ""
	}
	return normalBusID(text(remote.BusId[:]))
}
