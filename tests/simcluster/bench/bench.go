// Package bench measures how the drivers behave as a cluster grows: simulated clusters of several sizes, each formed into
// compute domains of one rack each, all at once.
package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Options say what to measure.
type Options struct {
	// Nodes are the sizes; each is a whole number of racks of 18.
	Nodes []int
	// Dir is the directory of the clusters, one after the other.
	Dir string
	// Up brings a cluster up in Dir in processes that outlive this one; Down ends it.
	Up   func(ctx context.Context, nodes int) error
	Down func() error
	// Progress is told what is being done, a line each.
	Progress func(format string, args ...any)
}

// Result is what was measured at one size. Durations are seconds.
type Result struct {
	Nodes, Racks int
	// Up is from nothing to all nodes Ready, Published from there to every node's ResourceSlice.
	Up, Published float64
	// Domains are from a domain's creation to its Ready, sorted; LastDaemon from the start of its last daemon's container to it.
	Domains, LastDaemon []float64
	// PodsPerSecond is how many pods with claims were scheduled in a second; Running is from the first creation until all ran.
	PodsPerSecond, Running float64
	// Writes are those of our own service accounts in the formation, Events apart, by verb and resource; Conflicts are 409s.
	Writes    map[string]int
	Events    int
	Conflicts int
	// Requests are all requests to the API server in the formation, by verb and resource, from its metrics.
	Requests map[string]float64
	// Idle are the requests of our service accounts in a quiet time of IdleTime, watches and leases apart, by verb and resource.
	Idle     map[string]int
	IdleTime float64
	// Memory is resident, in MiB, by role; the controller's is its highest.
	Memory map[string]float64
	// Deleted is until every domain and pod was gone; Left names what refers to a domain afterwards.
	Deleted float64
	Left    []string
	// Total is everything, without the control plane's own end.
	Total float64
}

// writesOf sums the writes per node and domain: each node is in one domain.
func (r Result) writesPerNode() float64 {
	total := 0
	for _, n := range r.Writes {
		total += n
	}
	return float64(total) / float64(r.Nodes)
}

func (r Result) requestsPerNode() float64 {
	total := 0.0
	for _, n := range r.Requests {
		total += n
	}
	return total / float64(r.Nodes)
}

// quantile is the q-th of sorted values, 0 of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	index := int(q*float64(len(sorted)-1) + 0.5)
	return sorted[index]
}

// Run measures every size and returns what it found so far when one fails.
func Run(ctx context.Context, options Options) ([]Result, error) {
	var results []Result
	for _, nodes := range options.Nodes {
		options.Progress("%d nodes", nodes)
		result, err := one(ctx, options, nodes)
		if downErr := options.Down(); err == nil {
			err = downErr
		}
		if len(result.Domains) > 0 { // worth telling, whatever failed after it
			results = append(results, result)
		}
		if err != nil {
			return results, fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return results, nil
}

func one(ctx context.Context, options Options, nodes int) (Result, error) {
	begin := time.Now()
	m := measurement{options: options, result: Result{Nodes: nodes}}
	defer func() {
		slices.Sort(m.result.Domains)
		slices.Sort(m.result.LastDaemon)
	}()
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"bring the cluster up", m.up},
		{"install the drivers", m.install},
		{"watch them idle", m.idle},
		{"form the domains", m.form},
		{"read memory", m.memory},
		{"delete everything", m.remove},
	} {
		started := time.Now()
		if err := step.run(ctx); err != nil {
			return m.result, fmt.Errorf("%s: %w", step.name, err)
		}
		options.Progress("  %s: %.1f s", step.name, time.Since(started).Seconds())
	}
	m.result.Total = time.Since(begin).Seconds()
	return m.result, nil
}
