package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// quantity is one line of the report, which is left out where it is NaN at every size.
type quantity struct {
	name   string
	format string
	of     func(Result) float64
}

// known is NaN for what was not measured in this mode.
func known(value float64) float64 {
	if value == 0 {
		return math.NaN()
	}
	return value
}

func quantities() []quantity {
	median := func(values []float64) float64 { return quantile(values, 0.5) }
	return []quantity{
		{"nodes Ready (s)", "%.1f", func(r Result) float64 { return r.Up }},
		{"drivers installed to every ResourceSlice published (s)", "%.1f", func(r Result) float64 { return r.Published }},
		{"drivers installed to every clique's IMEX daemons Ready (s)", "%.1f", func(r Result) float64 { return known(r.Cliques) }},
		{"domains formed, in all rounds", "%.0f", func(r Result) float64 { return float64(len(r.Domains)) }},
		{"domain created to Ready, median (s)", "%.2f", func(r Result) float64 { return median(r.Domains) }},
		{"domain created to Ready, p99 (s)", "%.2f", func(r Result) float64 { return quantile(r.Domains, 0.99) }},
		{"domain created to Ready, max (s)", "%.2f", func(r Result) float64 { return quantile(r.Domains, 1) }},
		{"last daemon started to domain Ready, median (s)", "%.2f", func(r Result) float64 { return known(median(r.LastDaemon)) }},
		{"last daemon started to domain Ready, max (s)", "%.2f", func(r Result) float64 { return known(quantile(r.LastDaemon, 1)) }},
		{"first pod created to all running (s)", "%.1f", func(r Result) float64 { return median(r.Running) }},
		{"pods with claims scheduled per second", "%.0f", func(r Result) float64 { return median(r.PodsPerSecond) }},
		{"API writes of our accounts per node and domain, Events apart", "%.2f", func(r Result) float64 { return r.perNode(sum(r.Writes)) }},
		{"Events of our accounts per node and domain", "%.2f", func(r Result) float64 { return r.perNode(float64(r.Events)) }},
		{"conflicts (409) per node and domain", "%.3f", func(r Result) float64 { return r.perNode(float64(r.Conflicts)) }},
		{"API requests of everybody per node and domain", "%.1f", func(r Result) float64 { return r.perNode(sum(r.Requests)) }},
		{"idle requests of our accounts per node and minute, watches and leases apart", "%.3f", func(r Result) float64 {
			return sum(r.Idle) / float64(r.Nodes) / (r.IdleTime / 60)
		}},
		{"controller, peak resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["controller"] }},
		{"node plugin, idle, resident (MiB)", "%.0f", func(r Result) float64 { return r.IdleMemory["compute-domain-plugin"] }},
		{"node plugin, after the formation, resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["compute-domain-plugin"] }},
		{"IMEX daemon's supervisor, resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["imex-daemon"] }},
		{"API server, resident (MiB)", "%.0f", func(r Result) float64 { return r.Memory["kube-apiserver"] }},
		{"everything deleted (s)", "%.1f", func(r Result) float64 { return median(r.Deleted) }},
		{"left behind", "%.0f", func(r Result) float64 { return float64(len(r.Left)) }},
		{"all of this (s)", "%.0f", func(r Result) float64 { return r.Total }},
	}
}

// Report writes the table of quantities, then those of requests by verb and resource, then the results that are not numbers.
func Report(w io.Writer, results []Result) error {
	var b strings.Builder
	var head, rule strings.Builder
	for _, r := range results {
		fmt.Fprintf(&head, " %d nodes |", r.Nodes)
		rule.WriteString("---:|")
	}
	fmt.Fprintf(&b, "| |%s growth |\n|---|%s---|\n", head.String(), rule.String())
	for _, q := range quantities() {
		if !slices.ContainsFunc(results, func(r Result) bool { return !math.IsNaN(q.of(r)) }) {
			continue
		}
		fmt.Fprintf(&b, "| %s |", q.name)
		for _, r := range results {
			fmt.Fprintf(&b, " "+q.format+" |", q.of(r))
		}
		fmt.Fprintf(&b, " %s |\n", growth(results, q.of))
	}
	for _, t := range []struct {
		title string
		of    func(Result) map[string]float64
	}{
		{"Writes of our service accounts in the formation, from the audit log", func(r Result) map[string]float64 { return asFloats(r.Writes) }},
		{"Requests of everybody in the formation, from the API server's metrics", func(r Result) map[string]float64 { return r.Requests }},
	} {
		fmt.Fprintf(&b, "\n%s, per node; the last column is per domain at the largest size.\n\n", t.title)
		fmt.Fprintf(&b, "| |%s growth | a domain |\n|---|%s---|---:|\n", head.String(), rule.String())
		for _, name := range mostFrequent(results, t.of) {
			fmt.Fprintf(&b, "| %s |", name)
			perNode := func(r Result) float64 { return r.perNode(t.of(r)[name]) }
			for _, r := range results {
				fmt.Fprintf(&b, " %.2f |", perNode(r))
			}
			last := results[len(results)-1]
			fmt.Fprintf(&b, " %s | %.1f |\n", growth(results, perNode), last.perDomain(t.of(last)[name]))
		}
	}
	for _, r := range results {
		fmt.Fprintf(&b, "\n%d nodes: in %.0f idle seconds our accounts asked for %s; watches and leases apart from that: %s. Left behind: %s.\n",
			r.Nodes, r.IdleTime, listed(r.Idle), listed(r.IdleKept), orNothing(r.Left))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// kinds is the number of kinds of requests in a table.
const kinds = 20

// mostFrequent are the names with the highest counts at the largest size.
func mostFrequent(results []Result, of func(Result) map[string]float64) []string {
	if len(results) == 0 {
		return nil
	}
	counts := of(results[len(results)-1])
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return names[:min(len(names), kinds)]
}

func asFloats(counts map[string]int) map[string]float64 {
	floats := make(map[string]float64, len(counts))
	for name, n := range counts {
		floats[name] = float64(n)
	}
	return floats
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

// growth fits quantity = a * nodes^e by least squares on logarithms, and describes e in a word.
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
