// Package scheduling measures how fast Kubernetes' own scheduler places pods, depending on what the nodes publish about their
// GPUs.
//
// A control plane runs as processes; nodes are objects without a kubelet, and nothing but the scheduler works on the pods: claims are made
// before them, and the controller manager is stopped.
package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gpufabric.io/tests/simcluster/controlplane"
)

// Options define what to measure.
type Options struct {
	// Nodes are the sizes, Fills the parts of the cluster that are given away before the measurement, Rows the names of rows (none: all).
	Nodes []int
	Fills []float64
	Rows  []string
	// Profile is the fake machine that every node is.
	Profile string
	// Pods is how many pods are bound in a measurement. They are made at once if enough devices are free, else in batches of as
	// many as are free. Each batch is deleted before the next one is made.
	Pods int
	// Batch is the most pods of a batch; 0: no bound. Rows are compared fairly in batches of one size: a small one spends its time on its
	// first and last pod.
	Batch int
	// Rounds is how often everything is measured; the median counts. A row that bound fewer than a third of its pods within
	// Limit is measured only once. 0 means once.
	Rounds int
	// Limit is how long a measurement continues.
	Limit time.Duration
	// CountersNodes is the largest cluster in which rows are measured that publish counters on every node: their pods take seconds each. 0 is
	// any size.
	CountersNodes int
	// Dir is where control planes run, one after another.
	Dir string
	// CPUProfiles is a directory for a CPU profile of the scheduler for each measurement; empty: none.
	CPUProfiles string
	// Progress receives a line for each measurement.
	Progress func(format string, args ...any)
	// Measured is called after each size with its results; nil: no call.
	Measured func([]Result) error
}

// Result is one measurement.
type Result struct {
	Row   string
	Nodes int
	Fill  float64
	// Slices, Devices and Bytes are all ResourceSlices of the cluster, in the API server's own encoding.
	Slices, Devices int
	Bytes           int
	// Pods were made in Batches, Bound of them were bound before the limit. Seconds is the time from a batch's first pod to its last binding,
	// over all batches.
	Pods, Bound, Batches int
	Seconds              float64
	// P50 and P99 are from a pod's creation to its binding, in seconds, over the bound ones.
	P50, P99 float64
	// CPU is the scheduler's processor time in seconds a bound pod, Memory its resident size in MiB afterwards.
	CPU, Memory float64
	// Taken is when the measurement began, Load the machine's load average of the last minute then.
	Taken time.Time
	Load  float64
	// Rounds is how many rounds this is the median of. Ratio is the median over the rounds of its pods per second, divided by
	// the baseline's in the same round. CPURatio is the same for processor time per pod. Both are 0 where the baseline was not
	// measured.
	Rounds          int
	Ratio, CPURatio float64
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
		if o.Measured != nil {
			err = errors.Join(err, o.Measured(found))
		}
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
		found, err := oneRound(ctx, o, c, m, rows, nodes, round, results)
		results = append(results, found...)
		if err != nil {
			return medians(results), err
		}
	}
	return medians(results), nil
}

// cell is what a round measures once.
type cell struct {
	row  string
	fill float64
}

// medians keeps of each row and fill the round with the median of pods a second.
func medians(all []Result) []Result {
	rounds := map[cell][]Result{}
	var order []cell
	for _, r := range all {
		k := cell{r.Row, r.Fill}
		if len(rounds[k]) == 0 {
			order = append(order, k)
		}
		rounds[k] = append(rounds[k], r)
	}
	ratios, processor := map[cell]float64{}, map[cell]float64{}
	for k, rs := range rounds {
		base := rounds[cell{baseline, k.fill}]
		var speeds, costs []float64
		for i := range min(len(rs), len(base)) {
			if base[i].Bound > 0 && base[i].CPU > 0 {
				speeds = append(speeds, rs[i].PodsPerSecond()/base[i].PodsPerSecond())
				costs = append(costs, rs[i].CPU/base[i].CPU)
			}
		}
		if len(speeds) > 0 {
			slices.Sort(speeds)
			slices.Sort(costs)
			ratios[k], processor[k] = speeds[len(speeds)/2], costs[len(costs)/2]
		}
	}
	var out []Result
	for _, k := range order {
		slices.SortFunc(rounds[k], func(a, b Result) int { return cmp.Compare(a.PodsPerSecond(), b.PodsPerSecond()) })
		median := rounds[k][len(rounds[k])/2]
		median.Rounds, median.Ratio, median.CPURatio = len(rounds[k]), ratios[k], processor[k]
		out = append(out, median)
	}
	return out
}

// oneRound measures every row once. The order rotates with each round, so that other load on the machine does not always hit
// the same row. Rows that used all their time in an earlier round are left out.
func oneRound(ctx context.Context, o Options, c *cluster, m *Machine, rows []Row, nodes, round int, before []Result) (results []Result,
	err error) {
	var fast []Row
	for _, row := range rows {
		slow := slices.ContainsFunc(before, func(r Result) bool { return r.Row == row.Name && 3*r.Bound < r.Pods })
		if !slow && (!row.counters || o.CountersNodes == 0 || nodes <= o.CountersNodes) {
			fast = append(fast, row)
		}
	}
	for i := range fast {
		row := fast[(i+round*len(fast)/max(o.Rounds, 1))%len(fast)]
		for at, fill := range o.Fills {
			if at == 0 || row.mix || row.withdrawn { // these publish by what is given away
				if err := c.publish(ctx, m, row, fill); err != nil {
					return results, fmt.Errorf("publish for row %s: %w", row.Name, err)
				}
			}
			r, err := c.measure(ctx, m, row, fill)
			if err != nil {
				return results, fmt.Errorf("row %s, %.0f %% full: %w", row.Name, 100*fill, err)
			}
			results = append(results, r)
			o.Progress("%5d nodes, %3.0f %% full, %-14s %6.1f pods/s (%d of %d bound in %d batches), p50 %.2f s, p99 %.2f s, %.1f ms CPU a pod, "+
				"%.0f MiB; %d slices, %d devices, %.2f MB; load %.1f",
				nodes, 100*fill, row.Name, r.PodsPerSecond(), r.Bound, r.Pods, r.Batches, r.P50, r.P99, 1000*r.CPU, r.Memory, r.Slices, r.Devices,
				float64(r.Bytes)/1e6, r.Load)
			if row.class == "" {
				break // no device is given away
			}
		}
	}
	return results, nil
}
