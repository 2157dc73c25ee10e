// Package bench measures how the drivers behave as a cluster grows: simulated clusters of several sizes, each formed into
// compute domains of one rack each, all at once.
package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// RackSize is how many nodes a rack has.
const RackSize = 18

// Options define what to measure.
type Options struct {
	// Nodes are the sizes; each is a whole number of racks of 18.
	Nodes []int
	// Dir is the directory of the clusters, one after the other.
	Dir string
	// Up brings a cluster up in Dir in processes that outlive this one, or leaves Dir as it was; Down ends it.
	Up   func(ctx context.Context, nodes int) error
	Down func() error
	// Cliques has one IMEX daemon a node that stays (computeDomains.imex: clique) instead of one for each domain.
	Cliques bool
	// Brief leaves out, with all roles, what takes minutes: the roll of all plugins node by node. It measures them idle for
	// seconds only, and one GPU fails at once.
	Brief bool
	// Progress receives a line for each step.
	Progress func(format string, args ...any)
}

// Result is what was measured at one size. Durations are seconds.
type Result struct {
	Nodes, Racks int
	// Rounds is how often the domains were formed and deleted, since one domain gives no median. Counts are over all rounds.
	Rounds int
	// Up is from nothing to all nodes Ready, Published from there to every node's ResourceSlice.
	Up, Published float64
	// Cliques is from the installation until every clique's daemons were Ready, where daemons are the cliques'.
	Cliques float64 `json:",omitempty"`
	// Domains are from a domain's creation to its Ready, sorted; LastDaemon from the start of its last daemon's container to it, of domains
	// that have daemons of their own.
	Domains, LastDaemon []float64
	// PodsPerSecond is how many pods with claims were scheduled in a second; Running is from the first creation until all ran. Both
	// are sorted, one a round.
	PodsPerSecond, Running []float64
	// Writes are those of our own service accounts in the formation, Events apart, by verb and resource; Conflicts are 409s.
	Writes    map[string]int
	Events    int
	Conflicts int
	// Requests are all requests to the API server in the formation, by verb and resource, from its metrics.
	Requests map[string]float64
	// Idle are the requests of our service accounts in a quiet time of IdleTime, watches and leases apart, by account, verb and
	// resource; IdleKept are the watches and leases.
	Idle, IdleKept map[string]int
	IdleTime       float64
	// IdleMemory and Memory are resident, in MiB, by role, before any domain and after the formation; the controller's is its highest.
	IdleMemory, Memory map[string]float64
	// IdleProcessor is the processor time in that quiet time, in seconds an hour, by role.
	IdleProcessor map[string]float64
	// Deleted is until every domain and pod was gone, sorted, one a round; Left names what refers to a domain afterwards.
	Deleted []float64
	Left    []string
	// Total is everything, without the control plane's own end.
	Total float64
}

// perNode divides a count over all rounds; each node is in one domain a round.
func (r Result) perNode(count float64) float64 { return count / float64(r.Nodes*r.Rounds) }

// perDomain does the same for a domain.
func (r Result) perDomain(count float64) float64 { return count / float64(r.Racks*r.Rounds) }

func sum[N int | float64](counts map[string]N) float64 {
	total := 0.0
	for _, n := range counts {
		total += float64(n)
	}
	return total
}

// domainsAtLeast is how many domains a size's figures are made of.
const domainsAtLeast = 8

// roundsOf is how often that many racks are formed.
func roundsOf(racks int) int { return max(1, (domainsAtLeast+racks-1)/racks) }

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
		if len(result.Domains) > 0 { // worth reporting, whatever failed after it
			results = append(results, result)
		}
		if err != nil {
			return results, fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return results, nil
}

func one(ctx context.Context, options Options, nodes int) (_ Result, err error) {
	begin := time.Now()
	m := measurement{options: options, result: Result{Nodes: nodes, Writes: map[string]int{}, Requests: map[string]float64{}}}
	defer func() {
		if !m.cameUp {
			return // the directory may have another program's files
		}
		if downErr := options.Down(); err == nil {
			err = downErr
		}
	}()
	defer func() {
		slices.Sort(m.result.Domains)
		for _, values := range [][]float64{m.result.LastDaemon, m.result.PodsPerSecond, m.result.Running, m.result.Deleted} {
			slices.Sort(values)
		}
	}()
	type step struct {
		name string
		run  func(context.Context) error
	}
	steps := []step{
		{"bring the cluster up", m.up},
		{"install the drivers", m.install},
		{"watch them idle", m.idle},
	}
	for range roundsOf(nodes / RackSize) {
		steps = append(steps, step{"form the domains", m.form}, step{"delete everything", m.remove})
	}
	for _, step := range steps {
		started := time.Now()
		if err := step.run(ctx); err != nil {
			return m.result, fmt.Errorf("%s: %w", step.name, err)
		}
		options.Progress("  %s: %.1f s", step.name, time.Since(started).Seconds())
	}
	m.result.Total = time.Since(begin).Seconds()
	return m.result, nil
}
