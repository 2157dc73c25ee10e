package controller

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/imexd"
	"gpufabric.io/drivers/hardware/imex"
)

const (
	// roundPause is the time between two rounds of questions. A cut is named after that time and confirmPause, and the time in which
	// nvidia-imex notices it.
	roundPause = 5 * time.Second
	// confirmPause is how long a connection must be missing before it is reported: one that is lost for a moment comes back by itself.
	confirmPause = 2 * time.Second
	// settled is how long a daemon must be READY before its connections count. It connects after that.
	settled = 10 * time.Second
	// askedAtOnce is how many daemons are asked side by side.
	askedAtOnce = 16
	// silentLimit is the longest time between two questions to a group in which nobody answers.
	silentLimit = time.Minute
)

// survey asks IMEX daemons whether they are connected with each other. nvidia-imex is READY whether it is or not.
//
// The daemons report nothing by themselves: for that they would need a right to write. In each round one daemon of each clique of a domain
// is asked, another each time, and all of them where a connection is missing. A node that is cut off is seen by any of them. A cut between
// two nodes is seen at once where the asked daemon knows what the others are connected with, and else when one of the two is asked.
type survey struct {
	reader client.Reader
	// namespace is the controller's.
	namespace string
	ask       func(ctx context.Context, address string) (imexd.Connections, error)
	now       func() time.Time

	mu     sync.Mutex
	groups map[groupKey]*group
}

type groupKey struct {
	domain types.UID
	clique string
}

// pair is a connection, from one node to another.
type pair struct{ from, to string }

// group is what is known of the daemons of one clique of a domain.
type group struct {
	// nodes are those whose daemons have been READY for a while, in the order of their indices.
	nodes []v1beta1.ComputeDomainNode
	round int
	// missing are the connections that the last answers did not have; known says that there was an answer at all.
	missing map[pair]cut
	known   bool
	// reported are those of missing that were confirmed, and are in of's results.
	reported map[pair]cut
	// silence is the pause after an unanswered round, doubled with each; notBefore is when it is over.
	silence   time.Duration
	notBefore time.Time
}

// of are the missing connections of a domain's daemons.
func (s *survey) of(domain types.UID) cuts {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := cuts{}
	for key, g := range s.groups {
		if key.domain != domain || !g.known {
			continue
		}
		byNode := map[string]map[string]cut{}
		for pair, one := range g.reported {
			if byNode[pair.from] == nil {
				byNode[pair.from] = map[string]cut{}
			}
			byNode[pair.from][pair.to] = one
		}
		found[key.clique] = byNode
	}
	return found
}

// run asks until ctx ends. It calls changed with a domain whose missing connections are others than before.
func (s *survey) run(ctx context.Context, changed func(types.UID)) {
	for {
		pause := roundPause
		unconfirmed, err := s.once(ctx, changed)
		switch {
		case err != nil:
			klog.FromContext(ctx).Error(err, "IMEX daemons are not asked for their connections this time")
		case unconfirmed:
			pause = confirmPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// once is one round. It says whether a connection is missing that the next round must confirm.
func (s *survey) once(ctx context.Context, changed func(types.UID)) (unconfirmed bool, err error) {
	// The list is only read here, and copying it would cost more than everything else.
	var list v1beta1.ComputeDomainList
	if err := s.reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	due := s.due(&list)
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for key, g := range due {
		asking.Go(func() error {
			rows := s.rows(ctx, g)
			if s.judge(ctx, g, rows) {
				changed(key.domain)
			}
			return nil
		})
	}
	_ = asking.Wait() // it has no errors
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range due {
		unconfirmed = unconfirmed || len(g.missing) != len(g.reported)
	}
	return unconfirmed, nil
}

// due updates the groups, and returns those to ask now.
func (s *survey) due(list *v1beta1.ComputeDomainList) map[groupKey]*group {
	now := s.now()
	nodes := map[groupKey][]v1beta1.ComputeDomainNode{}
	for i := range list.Items {
		domain := &list.Items[i]
		p := pass{domain: domain, clique: computedomain.CliqueOf(domain, s.namespace)}
		if domain.DeletionTimestamp != nil || !p.ownDaemons() {
			continue
		}
		for _, node := range domain.Status.Nodes {
			if node.CliqueID != "" && node.State == v1beta1.NodeReady && node.Since != nil && now.Sub(node.Since.Time) >= settled {
				key := groupKey{domain.UID, node.CliqueID}
				nodes[key] = append(nodes[key], node)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	groups, due := map[groupKey]*group{}, map[groupKey]*group{}
	for key, members := range nodes {
		if len(members) < 2 {
			continue
		}
		g := s.groups[key]
		if g == nil {
			g = &group{missing: map[pair]cut{}, reported: map[pair]cut{}}
		}
		if g.nodes = members; !now.Before(g.notBefore) {
			due[key] = g
		}
		groups[key] = g
	}
	s.groups = groups
	return due
}

// rows asks daemons of a group, and returns what each of its nodes is not connected with, by name, as far as it is known. Only one
// goroutine works on a group.
func (s *survey) rows(ctx context.Context, g *group) map[string]map[string]imex.ConnectionStatus {
	names := map[int]string{}
	for _, node := range g.nodes {
		names[node.Index] = node.Name
	}
	rows := map[string]map[string]imex.ConnectionStatus{}
	asked := map[string]bool{}
	missing := false
	ask := func(node v1beta1.ComputeDomainNode) {
		asked[node.Name] = true
		answer, err := s.ask(ctx, node.IPAddress)
		if err == nil && answer.Own != node.Index {
			return // a pod of another domain has the address now
		}
		if err != nil {
			klog.FromContext(ctx).V(2).Info("An IMEX daemon does not say with whom it is connected", "node", node.Name, "err", err)
			return
		}
		for index, peers := range answer.Rows {
			from := names[index]
			if _, told := rows[from]; from == "" || told && from != node.Name {
				continue // a node's own answer is the newest
			}
			rows[from] = map[string]imex.ConnectionStatus{}
			for peer, state := range peers {
				if to := names[peer]; to != "" {
					rows[from][to], missing = state, true
				}
			}
		}
	}
	ask(g.nodes[g.round%len(g.nodes)])
	g.round++
	if missing || len(g.missing) > 0 {
		for _, node := range g.nodes {
			if !asked[node.Name] {
				ask(node)
			}
		}
	}
	return rows
}

// judge takes in what a round has found, and says whether something else is reported now.
func (s *survey) judge(ctx context.Context, g *group, rows map[string]map[string]imex.ConnectionStatus) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if len(rows) == 0 {
		if g.silence == 0 {
			klog.FromContext(ctx).Info("It is not known whether IMEX daemons are connected: none that was asked answers", "nodes", len(g.nodes))
		}
		g.silence = min(max(2*g.silence, roundPause), silentLimit)
		g.notBefore = now.Add(g.silence)
		return false
	}
	g.silence, g.notBefore = 0, time.Time{}
	changed = !g.known
	g.known = true
	missing, reported := map[pair]cut{}, map[pair]cut{}
	for _, from := range g.nodes {
		row, told := rows[from.Name]
		for _, to := range g.nodes {
			pair := pair{from.Name, to.Name}
			before, had := g.missing[pair]
			state, is := row[to.Name]
			if !told && had { // nothing new is known of it
				state, is = before.state, true
			}
			if !is {
				continue
			}
			found := cut{state: state, since: now}
			if had {
				found.since = before.since
			}
			if missing[pair] = found; now.Sub(found.since) >= confirmPause {
				reported[pair] = found
			}
		}
	}
	changed = changed || len(reported) != len(g.reported)
	for pair, found := range reported {
		changed = changed || g.reported[pair] != found
	}
	g.missing, g.reported = missing, reported
	return changed
}
