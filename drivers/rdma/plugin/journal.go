package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/pool"
)

// journal logs which devices the pools have, and the problems of others, whenever they change.
type journal struct{ written string }

func (j *journal) write(log klog.Logger, now picture, ports ...health.Port) {
	var lines []func()
	var text strings.Builder
	say := func(failure bool, message string, values ...any) {
		fmt.Fprintln(&text, message, values)
		lines = append(lines, func() {
			if failure {
				log.Error(nil, message, values...)
			} else {
				log.Info(message, values...)
			}
		})
	}
	for _, selected := range now.selection.Pools {
		names := make([]string, len(selected.Members))
		for i, m := range selected.Members {
			names[i] = m.HCA.Name
		}
		say(false, "Pool", "resource", selected.Resource(), "source", selected.Source, "devices", names)
		if now.closed(&selected) {
			say(true, "A pool's units cannot be opened", "resource", selected.Resource(), "reason", exclusive.NotOpened)
		}
		if reason := selected.Empty(); reason != "" && now.devicePlugin {
			say(true, "Nothing of a pool can be allocated", "resource", selected.Resource(), "reason", reason)
		}
		if values := unmatched(&selected); len(values) > 0 && len(selected.Members) > 0 {
			say(false, "Values of a pool select no device of this node", "pool", selected.Source, "values", values)
		}
		for _, conflict := range selected.Conflicts {
			say(false, "Two pools claim one device", "pool", selected.Source, "device", conflict)
		}
	}
	for _, source := range slices.Sorted(maps.Keys(now.selection.Refused)) {
		say(true, "A pool is not served", "pool", source, "reason", now.selection.Refused[source])
	}
	for _, s := range now.devices.Skipped {
		if s.Damaged {
			say(true, "A device is skipped", "device", s.Name, "reason", s.Reason)
		}
	}
	for _, p := range ports {
		if p.Missing != "" {
			say(true, "A device cannot be used by pods", "port", p.Key().String(), "reason", p.Missing)
		}
	}
	if text.String() == j.written {
		return
	}
	j.written = text.String()
	for _, line := range lines {
		line()
	}
}

// unmatched lists the values of a pool that select no device of this node.
func unmatched(p *pool.Pool) []string {
	var out []string
	for _, v := range p.Unmatched {
		out = append(out, fmt.Sprintf("%s %q", v.Path, v.Text))
	}
	return out
}
