package annotation

import (
	"maps"
	"slices"
	"strings"
)

// Limits is the mechanism that enforces shares: on a node, its backend; on a pod, the backend of each container, as
// "main=library,side=mig". It is for people and metrics; allocation ignores it.
const Limits = "vgpu.gpufabric.io/limits"

// FormatLimits lists the mechanism that enforces each container's share, sorted by container name.
func FormatLimits(of map[string]string) string {
	parts := make([]string, 0, len(of))
	for _, container := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, container+"="+of[container])
	}
	return strings.Join(parts, ",")
}

// ParseLimits reads the format of FormatLimits. It ignores malformed parts.
func ParseLimits(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if container, by, found := strings.Cut(part, "="); found && container != "" && by != "" {
			out[container] = by
		}
	}
	return out
}
