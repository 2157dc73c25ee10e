package annotation

import (
	"maps"
	"slices"
	"strings"
)

// Limits says what holds containers to their shares: of a node, which backend it has; of a pod, which holds each container, as
// "main=library,side=mig". People and figures read it; nothing is given by it.
const Limits = "vgpu.gpufabric.io/limits"

// FormatLimits says what holds each container, in the order of their names.
func FormatLimits(of map[string]string) string {
	parts := make([]string, 0, len(of))
	for _, container := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, container+"="+of[container])
	}
	return strings.Join(parts, ",")
}

// ParseLimits reads what FormatLimits wrote. What it does not understand it leaves out.
func ParseLimits(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if container, by, found := strings.Cut(part, "="); found && container != "" && by != "" {
			out[container] = by
		}
	}
	return out
}
