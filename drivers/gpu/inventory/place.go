package inventory

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gpufabric.io/drivers/hardware/pci"
)

// Locator scans the PCI bus below a sysfs root once and returns the place of each display controller. Attributes that are missing
// stay empty.
func Locator(ctx context.Context, sysfsRoot string) (func(busID string) (Place, error), error) {
	bus, err := pci.NewFS(sysfsRoot).Scan(ctx, func(c pci.Class) bool { return c>>16 == 0x03 })
	if err != nil {
		return nil, err
	}
	skipped := map[string]error{}
	for _, s := range bus.Skipped {
		skipped[s.Name] = s.Reason
	}
	return func(busID string) (Place, error) {
		address, err := pci.ParseAddress(busID)
		if err != nil {
			return Place{}, err
		}
		f := bus.Function(address)
		if f == nil {
			if reason := skipped[string(address)]; reason != nil {
				return Place{}, fmt.Errorf("%s could not be read from %s: %w", address, sysfsRoot, reason)
			}
			return Place{}, fmt.Errorf("%s is not among the display controllers of %s", address, sysfsRoot)
		}
		return Place{BusID: string(address), Root: f.Root, Switch: string(f.Switch), NUMANode: withCPUs(sysfsRoot, f.NUMANode)}, nil
	}, nil
}

// withCPUs returns the nearest NUMA node with CPUs, -1 where two are equally near. A GPU whose memory the CPU can address has NUMA
// nodes of its own without CPUs, and sysfs may report one of those as the GPU's node (#1242 of the public driver, on GB200). No NIC
// is on such a node.
func withCPUs(sysfsRoot string, node int) int {
	if node < 0 {
		return node
	}
	nodes := filepath.Join(sysfsRoot, "devices/system/node")
	distances := numbers(filepath.Join(nodes, fmt.Sprintf("node%d", node), "distance"))
	online := numaList(filepath.Join(nodes, "online"))
	best, least := -1, math.MaxInt
	for i, other := range online {
		cpus, err := os.ReadFile(filepath.Join(nodes, fmt.Sprintf("node%d", other), "cpulist"))
		switch {
		case err != nil:
			return node // a kernel that does not report it
		case strings.TrimSpace(string(cpus)) == "":
		case other == node:
			return node
		case i >= len(distances):
		case distances[i] < least:
			best, least = other, distances[i]
		case distances[i] == least:
			best = -1
		}
	}
	if len(online) == 0 {
		return node
	}
	return best
}

// numbers reads a file of numbers separated by spaces; it ignores other words.
func numbers(path string) []int {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var out []int
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// numaList reads a list of NUMA nodes as sysfs writes it: 0-1,4.
func numaList(path string) []int {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var out []int
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, errFrom := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if errFrom != nil || errTo != nil || to-from > maxNUMANodes {
			return nil
		}
		for n := from; n <= to; n++ {
			out = append(out, n)
		}
	}
	return out
}

// maxNUMANodes is more than Linux can have (NODES_SHIFT is at most 10).
const maxNUMANodes = 1024
