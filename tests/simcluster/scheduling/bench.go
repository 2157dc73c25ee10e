// Package scheduling measures how fast Kubernetes' own scheduler places pods, by what a cluster's nodes publish about their GPUs.
//
// A control plane runs as processes; nodes are objects without a kubelet, and nothing but the scheduler works on the pods: claims are made before them, and the
// controller manager is stopped.
package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"gpufabric.io/tests/simcluster/controlplane"
)

// Options say what to measure.
type Options struct {
	// Nodes are the sizes, Fills the parts of the cluster that are given away before the measurement, Rows the names of rows (none: all).
	Nodes []int
	Fills []float64
	Rows  []string
	// Profile is the fake machine that every node is.
	Profile string
	// Pods is how many pods are made at once at most; where fewer devices are free, it is as many as there are.
	Pods int
	// Rounds is how often everything is measured; the median counts. 0 is once.
	Rounds int
	// Limit is how long they have.
	Limit time.Duration
	// Dir is where control planes run, one after another.
	Dir string
	// CPUProfiles is a directory for a CPU profile of the scheduler for each measurement; empty: none.
	CPUProfiles string
	// Progress is told what was measured, a line each.
	Progress func(format string, args ...any)
}

// Result is one measurement.
type Result struct {
	Row   string
	Nodes int
	Fill  float64
	// Slices, Devices and Bytes are all ResourceSlices of the cluster, in the API server's own encoding.
	Slices, Devices int
	Bytes           int
	// Pods were made, Bound of them were bound before the limit, Seconds after the first was made.
	Pods, Bound int
	Seconds     float64
	// P50 and P99 are from a pod's creation to its binding, in seconds, over the bound ones.
	P50, P99 float64
	// CPU is the scheduler's processor time in seconds a bound pod, Memory its resident size in MiB afterwards.
	CPU, Memory float64
}

// PodsPerSecond is how many pods were bound in a second.
func (r Result) PodsPerSecond() float64 {
	if r.Seconds == 0 {
		return 0
	}
	return float64(r.Bound) / r.Seconds
}

// Run measures every row at every size and fill, and returns what it found so far when one fails.
func Run(ctx context.Context, o Options) ([]Result, error) {
	machine, err := NewMachine(ctx, o.Profile)
	if err != nil {
		return nil, err
	}
	binaries, err := controlplane.Binaries(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, row := range Rows() {
		if len(o.Rows) == 0 || slices.Contains(o.Rows, row.Name) {
			rows = append(rows, row)
		}
	}
	for _, name := range o.Rows {
		if !slices.ContainsFunc(rows, func(r Row) bool { return r.Name == name }) {
			return nil, fmt.Errorf("there is no row %q", name)
		}
	}
	var results []Result
	for _, nodes := range o.Nodes {
		found, err := oneSize(ctx, o, machine, binaries, rows, nodes)
		results = append(results, found...)
		if err != nil {
			return results, fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return results, nil
}

func oneSize(ctx context.Context, o Options, m *Machine, binaries map[string]string, rows []Row, nodes int) (results []Result, err error) {
	c, err := start(ctx, o, binaries, nodes)
	if err != nil {
		return nil, err
	}
	defer c.plane.Stop()
	for round := range max(o.Rounds, 1) {
		found, err := oneRound(ctx, o, c, m, rows, nodes, round)
		results = append(results, found...)
		if err != nil {
			return medians(results), err
		}
	}
	return medians(results), nil
}

// medians keeps of each row and fill the round with the median of pods a second.
func medians(all []Result) []Result {
	type key struct {
		row  string
		fill float64
	}
	rounds := map[key][]Result{}
	var order []key
	for _, r := range all {
		k := key{r.Row, r.Fill}
		if len(rounds[k]) == 0 {
			order = append(order, k)
		}
		rounds[k] = append(rounds[k], r)
	}
	var out []Result
	for _, k := range order {
		slices.SortFunc(rounds[k], func(a, b Result) int { return cmp.Compare(a.PodsPerSecond(), b.PodsPerSecond()) })
		out = append(out, rounds[k][len(rounds[k])/2])
	}
	return out
}

// oneRound measures every row once, in an order that turns with each round: what else the machine does is so not always the same row's.
func oneRound(ctx context.Context, o Options, c *cluster, m *Machine, rows []Row, nodes, round int) (results []Result, err error) {
	for i := range rows {
		row := rows[(i+round*len(rows)/max(o.Rounds, 1))%len(rows)]
		if err := c.publish(ctx, m, row); err != nil {
			return results, fmt.Errorf("publish for row %s: %w", row.Name, err)
		}
		for _, fill := range o.Fills {
			r, err := c.measure(ctx, m, row, fill)
			if err != nil {
				return results, fmt.Errorf("row %s, %.0f %% full: %w", row.Name, 100*fill, err)
			}
			results = append(results, r)
			o.Progress("%5d nodes, %3.0f %% full, %-14s %6.1f pods/s (%d of %d bound), p50 %.2f s, p99 %.2f s, %.1f ms CPU a pod, %.0f MiB; %d slices, %d devices, %.2f MB",
				nodes, 100*fill, row.Name, r.PodsPerSecond(), r.Bound, r.Pods, r.P50, r.P99, 1000*r.CPU, r.Memory, r.Slices, r.Devices, float64(r.Bytes)/1e6)
			if row.class == "" {
				break // no device is given away
			}
		}
	}
	return results, nil
}
