package fabricpartition

import (
	"strconv"
	"strings"

	"gpufabric.io/drivers/hardware/nvfm"
	"gpufabric.io/drivers/hardware/pci"
)

// ParseModules reads the module IDs of GPUs from the output of nvidia-smi -q: a section "GPU 00000000:1B:00.0" for each, and in it a
// line "Module ID : 4", "GPU Module ID : 4" (drivers before R570) or "Module Id : 4" (below Platform Info).
func ParseModules(text string) map[pci.Address]int {
	found := map[pci.Address]int{}
	var gpu pci.Address
	for line := range strings.Lines(text) {
		if bus, is := strings.CutPrefix(line, "GPU "); is {
			gpu = busID(nvfm.GPU{BusID: strings.TrimSpace(bus)})
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		key = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(key)), "gpu ")
		id, err := strconv.Atoi(strings.TrimSpace(value))
		if key == "module id" && err == nil && id > 0 && gpu != "" && found[gpu] == 0 {
			found[gpu] = id
		}
	}
	return found
}
