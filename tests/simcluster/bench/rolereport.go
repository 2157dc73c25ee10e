package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// ReportRoles writes the table of what was measured with all roles on every node, then the requests by account, verb and resource.
func ReportRoles(w io.Writer, results []RolesResult) error {
	var b strings.Builder
	b.WriteString("| |")
	for _, r := range results {
		fmt.Fprintf(&b, " %d nodes |", r.Nodes)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(results)) + "\n")
	row := func(name, format string, of func(RolesResult) float64) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range results {
			if value := of(r); math.IsNaN(value) {
				b.WriteString(" not run |")
			} else {
				fmt.Fprintf(&b, " "+format+" |", value)
			}
		}
		b.WriteString("\n")
	}
	perNode := func(of func(RolesResult) int) func(RolesResult) float64 {
		return func(r RolesResult) float64 { return float64(of(r)) / float64(r.Nodes) }
	}
	row("nodes Ready (s)", "%.1f", func(r RolesResult) float64 { return r.Up })
	row("chart installed to every slice published and every plugin ready (s)", "%.1f", func(r RolesResult) float64 { return r.Published })
	for _, driver := range Drivers() {
		row(driver+": slices a node", "%.2f", perNode(func(r RolesResult) int { return r.Driver[driver].Slices }))
		row(driver+": devices a node", "%.1f", perNode(func(r RolesResult) int { return r.Driver[driver].Devices }))
		row(driver+": bytes of JSON a node", "%.0f", perNode(func(r RolesResult) int { return r.Driver[driver].Bytes }))
	}
	for _, component := range Components() {
		row(component+", resident (MiB)", "%.0f", func(r RolesResult) float64 { return r.Memory[component] })
	}
	for _, component := range Components() {
		row(component+", processor time at rest (s an hour)", "%.0f", func(r RolesResult) float64 { return r.Processor[component] })
	}
	row("simulation of a node and its roles, resident (MiB)", "%.1f",
		func(r RolesResult) float64 { return r.Memory[shards] / float64(r.Nodes) })
	row("simulation of a node and its roles, processor time at rest (s an hour)", "%.1f",
		func(r RolesResult) float64 { return r.Processor[shards] / float64(r.Nodes) })
	row("API server, resident (MiB)", "%.0f", func(r RolesResult) float64 { return r.Memory["kube-apiserver"] })
	row("API server, processor time at rest (s an hour and node)", "%.1f",
		func(r RolesResult) float64 { return r.Processor["kube-apiserver"] / float64(r.Nodes) })
	row("idle requests a node and minute, watches and leases apart", "%.3f",
		func(r RolesResult) float64 { return sum(r.Idle) / float64(r.Nodes) / (r.IdleTime / 60) })
	for _, action := range []struct {
		name string
		of   func(RolesResult) Action
	}{
		{"install", func(r RolesResult) Action { return r.Install }},
		{"rollout of all plugins at once", func(r RolesResult) Action { return r.Rollout }},
		{"all plugins' pods deleted at once", func(r RolesResult) Action { return r.AllAtOnce }},
		{"1 % of GPUs fail in a minute", func(r RolesResult) Action { return r.Health }},
	} {
		if !slices.ContainsFunc(results, func(r RolesResult) bool { return action.of(r).Seconds > 0 }) {
			continue // left out
		}
		row := func(name, format string, of func(RolesResult) float64) {
			row(action.name+name, format, func(r RolesResult) float64 {
				if action.of(r).Seconds == 0 {
					return math.NaN()
				}
				return of(r)
			})
		}
		row(": all back (s)", "%.1f", func(r RolesResult) float64 { return action.of(r).Seconds })
		row(": writes a node, Events apart", "%.2f", perNode(func(r RolesResult) int { return int(sum(action.of(r).Writes)) }))
		row(": Events a node", "%.2f", perNode(func(r RolesResult) int { return action.of(r).Events }))
		row(": reads a node, watches apart", "%.2f", perNode(func(r RolesResult) int { return int(sum(action.of(r).Reads)) }))
		row(": our requests in the busiest second", "%.0f", func(r RolesResult) float64 { return float64(action.of(r).Busiest) })
		row(": slices written", "%.0f", func(r RolesResult) float64 { return float64(action.of(r).SlicesChanged) })
		row(": slices deleted", "%.0f", func(r RolesResult) float64 { return float64(action.of(r).SlicesGone) })
	}
	row("pods with claims during the restarts", "%.0f", func(r RolesResult) float64 { return float64(r.Pods) })
	row("of these touched", "%.0f", func(r RolesResult) float64 { return float64(len(r.Rollout.Touched) + len(r.AllAtOnce.Touched)) })
	row("GPUs that failed", "%.0f", func(r RolesResult) float64 { return float64(r.Faults) })
	row("a GPU's failure to its taint in the API server, median (s)", "%.2f", func(r RolesResult) float64 { return quantile(r.Noticed, 0.5) })
	row("a GPU's failure to its taint in the API server, p99 (s)", "%.2f", func(r RolesResult) float64 { return quantile(r.Noticed, 0.99) })
	for _, r := range results {
		fmt.Fprintf(&b, "\n%d nodes. Idle for %.0f s: %s.\nInstall: writes %s; reads %s.\nRollout: writes %s; reads %s.\nAll at once: writes "+
			"%s; reads %s.\nHealth: writes %s.\nTouched: %s.\n",
			r.Nodes, r.IdleTime, listed(r.Idle), listed(r.Install.Writes), listed(r.Install.Reads), listed(r.Rollout.Writes),
			listed(r.Rollout.Reads),
			listed(r.AllAtOnce.Writes), listed(r.AllAtOnce.Reads), listed(r.Health.Writes),
			orNothing(append(r.Rollout.Touched, r.AllAtOnce.Touched...)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
