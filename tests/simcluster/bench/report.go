package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// quantity is one line of the report.
type quantity struct {
	name   string
	format string
	of     func(Result) float64
	// grows says whether it may grow with the cluster (a total) or should not (a quantity per node or domain).
	grows bool
}

func quantities() []quantity {
	return []quantity{
		{"nodes Ready (s)", "%.1f", func(r Result) float64 { return r.Up }, true},
		{"drivers installed to every ResourceSlice published (s)", "%.1f", func(r Result) float64 { return r.Published }, true},
		{"domain created to Ready, median (s)", "%.2f", func(r Result) float64 { return quantile(r.Domains, 0.5) }, true},
		{"domain created to Ready, p99 (s)", "%.2f", func(r Result) float64 { return quantile(r.Domains, 0.99) }, true},
		{"domain created to Ready, max (s)", "%.2f", func(r Result) float64 { return quantile(r.Domains, 1) }, true},
		{"last daemon started to domain Ready, median (s)", "%.2f", func(r Result) float64 { return quantile(r.LastDaemon, 0.5) }, false},
		{"last daemon started to domain Ready, max (s)", "%.2f", func(r Result) float64 { return quantile(r.LastDaemon, 1) }, false},
		{"first pod created to all running (s)", "%.1f", func(r Result) float64 { return r.Running }, true},
		{"pods with claims scheduled per second", "%.0f", func(r Result) float64 { return r.PodsPerSecond }, false},
		{"API writes of our accounts per node, Events apart", "%.2f", Result.writesPerNode, false},
		{"Events of our accounts per node", "%.2f", func(r Result) float64 { return float64(r.Events) / float64(r.Nodes) }, false},
		{"conflicts (409) per node", "%.3f", func(r Result) float64 { return float64(r.Conflicts) / float64(r.Nodes) }, false},
		{"API requests of everybody per node", "%.1f", Result.requestsPerNode, false},
		{"idle requests of our accounts per node and minute, watches and leases apart", "%.3f", Result.idlePerNodeMinute, false},
		{"controller, peak resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["controller"] }, true},
		{"node plugin, resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["compute-domain-plugin"] }, false},
		{"IMEX daemon's supervisor, resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["imex-daemon"] }, false},
		{"API server, resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["kube-apiserver"] }, true},
		{"everything deleted (s)", "%.1f", func(r Result) float64 { return r.Deleted }, true},
		{"left behind", "%.0f", func(r Result) float64 { return float64(len(r.Left)) }, false},
		{"all of this (s)", "%.0f", func(r Result) float64 { return r.Total }, true},
	}
}

func (r Result) idlePerNodeMinute() float64 {
	total := 0
	for _, n := range r.Idle {
		total += n
	}
	return float64(total) / float64(r.Nodes) / (r.IdleTime / 60)
}

// Report writes the table, then what the writes and requests are made of at the largest size.
func Report(w io.Writer, results []Result) error {
	var b strings.Builder
	b.WriteString("| |")
	for _, r := range results {
		fmt.Fprintf(&b, " %d nodes |", r.Nodes)
	}
	b.WriteString(" growth |\n|---|" + strings.Repeat("---:|", len(results)) + "---|\n")
	for _, q := range quantities() {
		fmt.Fprintf(&b, "| %s |", q.name)
		for _, r := range results {
			fmt.Fprintf(&b, " "+q.format+" |", q.of(r))
		}
		fmt.Fprintf(&b, " %s |\n", growth(results, q.of))
	}
	if len(results) > 0 {
		last := results[len(results)-1]
		fmt.Fprintf(&b, "\nAt %d nodes, per node in the formation: writes of our accounts %s; requests of everybody %s. Idle requests of our accounts in %.0f s: %s. Left behind: %s.\n",
			last.Nodes, perNode(last.Writes, last.Nodes), perNode(last.Requests, last.Nodes), last.IdleTime, listed(last.Idle), orNothing(last.Left))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func perNode[N int | float64](counts map[string]N, nodes int) string {
	names := slices.Collect(maps.Keys(counts))
	slices.SortFunc(names, func(a, b string) int { return int(counts[b]) - int(counts[a]) })
	var parts []string
	for _, name := range names[:min(len(names), 12)] {
		parts = append(parts, fmt.Sprintf("%s %.2f", name, float64(counts[name])/float64(nodes)))
	}
	return strings.Join(parts, ", ")
}

func listed(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], name))
	}
	return orNothing(parts)
}

func orNothing(parts []string) string {
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// growth fits quantity = a * nodes^e by least squares on logarithms and puts e in a word.
func growth(results []Result, of func(Result) float64) string {
	var xs, ys []float64
	zero := true
	for _, r := range results {
		if y := of(r); y > 0 {
			zero = false
			xs, ys = append(xs, math.Log(float64(r.Nodes))), append(ys, math.Log(y))
		}
	}
	switch {
	case zero:
		return "none"
	case len(xs) < 2:
		return "not enough sizes"
	}
	e := slope(xs, ys)
	word := "constant"
	switch {
	case e > 1.2:
		word = "worse than linear"
	case e > 0.8:
		word = "linear"
	case e > 0.2:
		word = "less than linear"
	case e < -0.2:
		word = "falls"
	}
	return fmt.Sprintf("%s (n^%.2f)", word, e)
}

func slope(xs, ys []float64) float64 {
	n := float64(len(xs))
	var sx, sy, sxx, sxy float64
	for i := range xs {
		sx, sy, sxx, sxy = sx+xs[i], sy+ys[i], sxx+xs[i]*xs[i], sxy+xs[i]*ys[i]
	}
	if d := n*sxx - sx*sx; d != 0 {
		return (n*sxy - sx*sy) / d
	}
	return 0
}
