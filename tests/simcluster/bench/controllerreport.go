package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// controllerQuantity is one line of the controller's report.
type controllerQuantity struct {
	name, format string
	of           func(ControllerResult) float64
}

// formation is a result's first formation or, where all is true, that of a domain for each rack. At a size with no more racks than the
// first formation has domains they are the same.
func formation(r ControllerResult, all bool) Formation {
	if all {
		return r.Formations[len(r.Formations)-1]
	}
	return r.Formations[0]
}

func controllerQuantities() []controllerQuantity {
	quantities := []controllerQuantity{
		{"the nodes' writes for the first formation, without a controller (s)", "%.1f", func(r ControllerResult) float64 { return r.Alone }},
		{"controller started to every clique's daemons Ready (s)", "%.1f", func(r ControllerResult) float64 { return r.Cliques }},
		{"its writes for that, a node", "%.2f", func(r ControllerResult) float64 { return sum(r.CliqueWrites) / float64(r.Nodes) }},
	}
	for _, all := range []bool{false, true} {
		what := "first formation: "
		if all {
			what = "a domain for each rack: "
		}
		of := func(value func(Formation) float64) func(ControllerResult) float64 {
			return func(r ControllerResult) float64 { return value(formation(r, all)) }
		}
		perNode := func(count float64, f Formation) float64 { return count / float64(f.Nodes) }
		quantities = append(quantities,
			controllerQuantity{what + "domains", "%.0f", of(func(f Formation) float64 { return float64(f.Domains) })},
			controllerQuantity{what + "created to Ready, median (s)", "%.2f", of(func(f Formation) float64 { return quantile(f.Ready, 0.5) })},
			controllerQuantity{what + "created to Ready, max (s)", "%.2f", of(func(f Formation) float64 { return quantile(f.Ready, 1) })},
			controllerQuantity{what + "last node's label to Ready, median (s)", "%.2f",
				of(func(f Formation) float64 { return quantile(f.Lag, 0.5) })},
			controllerQuantity{what + "last node's label to Ready, 99th percentile (s)", "%.2f",
				of(func(f Formation) float64 { return quantile(f.Lag, 0.99) })},
			controllerQuantity{what + "last node's label to Ready, max (s)", "%.2f", of(func(f Formation) float64 { return quantile(f.Lag, 1) })},
			controllerQuantity{what + "the slowest was labelled, after the first creation (s)", "%.1f",
				of(func(f Formation) float64 { return f.SlowestLabelled })},
			controllerQuantity{what + "controller's writes a node, Events apart", "%.2f",
				of(func(f Formation) float64 { return perNode(sum(f.Writes), f) })},
			controllerQuantity{what + "its writes a node for the end", "%.2f",
				of(func(f Formation) float64 { return perNode(sum(f.DeletedWrites), f) })},
			controllerQuantity{what + "its reads a node, in both", "%.2f", of(func(f Formation) float64 { return perNode(sum(f.Reads), f) })},
			controllerQuantity{what + "its Events a node", "%.2f", of(func(f Formation) float64 { return perNode(float64(f.Events), f) })},
			controllerQuantity{what + "conflicts (409)", "%.0f", of(func(f Formation) float64 { return float64(f.Conflicts) })},
			controllerQuantity{what + "controller's processor time a node (ms)", "%.1f",
				of(func(f Formation) float64 { return perNode(1000*f.Processor, f) })},
			controllerQuantity{what + "deleted to all gone (s)", "%.1f", of(func(f Formation) float64 { return f.Deleted })},
		)
	}
	return append(quantities,
		controllerQuantity{"writes in 30 s without a change", "%.0f", func(r ControllerResult) float64 { return sum(r.IdleWrites) }},
		controllerQuantity{"controller, peak resident (MiB)", "%.0f", func(r ControllerResult) float64 { return r.Memory }},
		controllerQuantity{"controller, processor time in all (s)", "%.1f", func(r ControllerResult) float64 { return r.Processor }},
		controllerQuantity{"API server, resident (MiB)", "%.0f", func(r ControllerResult) float64 { return r.ServerMemory }},
		controllerQuantity{"all of this (s)", "%.0f", func(r ControllerResult) float64 { return r.Total }},
	)
}

// ReportController writes the table, and what the controller asked for by verb and resource.
func ReportController(w io.Writer, results []ControllerResult) error {
	if len(results) == 0 {
		return nil
	}
	var b strings.Builder
	var head, rule strings.Builder
	for _, r := range results {
		fmt.Fprintf(&head, " %d nodes |", r.Nodes)
		rule.WriteString("---:|")
	}
	fmt.Fprintf(&b, "| |%s growth |\n|---|%s---|\n", head.String(), rule.String())
	for _, q := range controllerQuantities() {
		fmt.Fprintf(&b, "| %s |", q.name)
		for _, r := range results {
			fmt.Fprintf(&b, " "+q.format+" |", q.of(r))
		}
		fmt.Fprintf(&b, " %s |\n", growthOver(results, q.of))
	}
	for _, part := range []struct {
		title string
		of    func(Formation) map[string]int
	}{
		{"Its writes until all domains were Ready", func(f Formation) map[string]int { return f.Writes }},
		{"Its writes for their end", func(f Formation) map[string]int { return f.DeletedWrites }},
		{"Its reads in both", func(f Formation) map[string]int { return f.Reads }},
	} {
		fmt.Fprintf(&b, "\n%s, with a domain for each rack, per domain.\n\n", part.title)
		fmt.Fprintf(&b, "| |%s growth |\n|---|%s---|\n", head.String(), rule.String())
		for _, name := range namesOf(results, part.of) {
			perDomain := func(r ControllerResult) float64 {
				f := formation(r, true)
				return float64(part.of(f)[name]) / float64(f.Domains)
			}
			fmt.Fprintf(&b, "| %s |", name)
			for _, r := range results {
				fmt.Fprintf(&b, " %.2f |", perDomain(r))
			}
			fmt.Fprintf(&b, " %s |\n", growthOver(results, perDomain))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func namesOf(results []ControllerResult, of func(Formation) map[string]int) []string {
	var names []string
	for _, r := range results {
		for name := range of(formation(r, true)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// growthOver is growth for the controller's results.
func growthOver(results []ControllerResult, of func(ControllerResult) float64) string {
	sizes := make([]Result, len(results))
	byNodes := map[int]float64{}
	for i, r := range results {
		sizes[i], byNodes[r.Nodes] = Result{Nodes: r.Nodes}, of(r)
		if math.IsNaN(byNodes[r.Nodes]) {
			byNodes[r.Nodes] = 0
		}
	}
	return growth(sizes, func(r Result) float64 { return byNodes[r.Nodes] })
}
