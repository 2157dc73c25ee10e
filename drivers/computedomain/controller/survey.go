package controller

import (
	"context"
	"math/rand/v2"
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
	// roundPause is the time between two questions to a clique of a domain. A cut is named after that time and confirmPause, and
	// the time in which nvidia-imex detects it.
	roundPause = 5 * time.Second
	// confirmPause is how long a connection must be missing before it is reported: one that is lost for a moment comes back by itself.
	confirmPause = 2 * time.Second
	// settled is how long a daemon must be READY before its connections count. It connects after that.
	settled = 10 * time.Second
	// surveyedAtOnce is how many cliques are queried side by side. 560 of them, one each 5 s, are 112 a second: that many wait for
	// each other only where an answer takes longer than half a second.
	surveyedAtOnce = 64
	// silentLimit is the longest time between two queries of a group in which no daemon answers.
	silentLimit = time.Minute
)

// survey queries IMEX daemons for their connections with each other. nvidia-imex is READY with or without them. The daemons report
// nothing by themselves: for that they would need a right to write. Of each clique of a domain one daemon is queried in roundPause,
// another each time, and all of them where a connection is missing. Each clique has its own times of queries, so that a cut of one
// is confirmed without queries of the others, and none waits for all others. A node that is cut off is seen by any of them. A cut
// between two nodes is seen at once if the queried daemon has the connections of the others too, and else when one of the two is
// queried.
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

// group is the state of the daemons of one clique of a domain.
type group struct {
	// nodes are those whose daemons have been READY for a while, in the order of their indices.
	nodes []v1beta1.ComputeDomainNode
	// next is the time of their next query; asking is true during one.
	next   time.Time
	asking bool
	round  int
	// missing are the connections that the last answers lacked; known is true once there was an answer.
	missing map[pair]cut
	known   bool
	// reported are those of missing that were confirmed, and are in of's results.
	reported map[pair]cut
	// silence is the pause after an unanswered question, doubled with each.
	silence time.Duration
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

// run queries daemons until ctx ends. It calls changed with a domain whose missing connections are others than before.
func (s *survey) run(ctx context.Context, changed func(types.UID)) {
	var asking errgroup.Group
	asking.SetLimit(surveyedAtOnce)
	defer asking.Wait() //nolint:errcheck // it has no errors
	answered := make(chan struct{}, 1)
	look := s.now()
	for {
		if now := s.now(); !now.Before(look) {
			look = now.Add(roundPause)
			if err := s.look(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Could not list the ComputeDomains; IMEX daemons are queried as often as before")
			}
		}
		for key, g := range s.due() {
			asking.Go(func() error {
				if s.visit(ctx, g) {
					changed(key.domain)
				}
				select {
				case answered <- struct{}{}:
				default: // it will look again anyway
				}
				return nil
			})
		}
		pause := time.NewTimer(s.pause(look))
		select {
		case <-pause.C:
		case <-answered:
			pause.Stop()
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

// look brings the groups up to date with the ComputeDomains.
func (s *survey) look(ctx context.Context) error {
	// The list is only read here, and copying it would cost more than everything else.
	var list v1beta1.ComputeDomainList
	if err := s.reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
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
	groups := map[groupKey]*group{}
	for key, members := range nodes {
		if len(members) < 2 {
			continue
		}
		g := s.groups[key]
		if g == nil {
			// At any time of the pause, so that not all are queried at once.
			g = &group{missing: map[pair]cut{}, reported: map[pair]cut{}, next: now.Add(rand.N(roundPause))} //nolint:gosec // no secret
		}
		g.nodes, groups[key] = members, g
	}
	s.groups = groups
	return nil
}

// due takes the groups to query now. They are not due again before their visit.
func (s *survey) due() map[groupKey]*group {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, due := s.now(), map[groupKey]*group{}
	for key, g := range s.groups {
		if !g.asking && !now.Before(g.next) {
			g.asking, due[key] = true, g
		}
	}
	return due
}

// pause is the time until the first group is due, and at most the time until then.
func (s *survey) pause(then time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if !g.asking && g.next.Before(then) {
			then = g.next
		}
	}
	return max(0, then.Sub(s.now()))
}

// visit queries a group that is due, and reports whether its missing connections changed.
func (s *survey) visit(ctx context.Context, g *group) (changed bool) {
	s.mu.Lock()
	nodes := g.nodes // a look replaces them
	s.mu.Unlock()
	rows := s.rows(ctx, g, nodes)
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.judge(ctx, g, nodes, rows)
	now := s.now()
	switch {
	case g.silence > 0:
		g.next = now.Add(g.silence)
	case len(g.missing) != len(g.reported):
		g.next = now.Add(confirmPause)
	default:
		// From the last time that it was due: a slow answer delays no later query. After a very slow one there is a pause.
		g.next = latest(g.next.Add(roundPause), now.Add(roundPause/2))
	}
	g.asking = false
	return changed
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// rows queries daemons of a group, and returns the missing connections of each of its nodes, by name, as far as they answered. Only one
// goroutine works on a group.
func (s *survey) rows(ctx context.Context, g *group, nodes []v1beta1.ComputeDomainNode) map[string]map[string]imex.ConnectionStatus {
	names := map[int]string{}
	for _, node := range nodes {
		names[node.Index] = node.Name
	}
	rows := map[string]map[string]imex.ConnectionStatus{}
	missing := false
	take := func(node v1beta1.ComputeDomainNode, answer imexd.Connections) {
		for index, peers := range answer.Rows {
			from := names[index]
			if _, reported := rows[from]; from == "" || reported && from != node.Name {
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
	one := g.round % len(nodes)
	g.round++
	take(nodes[one], s.answer(ctx, nodes[one]))
	if !missing && len(g.missing) == 0 {
		return rows
	}
	answers := make([]imexd.Connections, len(nodes))
	var asking sync.WaitGroup
	for i := range nodes {
		if i != one {
			asking.Go(func() { answers[i] = s.answer(ctx, nodes[i]) })
		}
	}
	asking.Wait()
	for i := range nodes {
		take(nodes[i], answers[i])
	}
	return rows
}

// answer queries one daemon. Without an answer it does not return rows.
func (s *survey) answer(ctx context.Context, node v1beta1.ComputeDomainNode) imexd.Connections {
	answer, err := s.ask(ctx, node.IPAddress)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("An IMEX daemon does not report its connections", "node", node.Name, "err", err)
		return imexd.Connections{}
	}
	if answer.Own != node.Index {
		return imexd.Connections{} // a pod of another domain has the address now
	}
	return answer
}

// judge stores the result of a visit, and reports whether it changes the status. The caller has locked s.mu.
func (s *survey) judge(ctx context.Context, g *group, nodes []v1beta1.ComputeDomainNode,
	rows map[string]map[string]imex.ConnectionStatus) (changed bool) {
	now := s.now()
	if len(rows) == 0 {
		if g.silence == 0 {
			klog.FromContext(ctx).Info("Could not determine whether IMEX daemons are connected: no daemon answered", "nodes", len(nodes))
		}
		g.silence = min(max(2*g.silence, roundPause), silentLimit)
		return false
	}
	g.silence = 0
	changed = !g.known
	g.known = true
	missing, reported := map[pair]cut{}, map[pair]cut{}
	for _, from := range nodes {
		row, answered := rows[from.Name]
		for _, to := range nodes {
			pair := pair{from.Name, to.Name}
			before, had := g.missing[pair]
			state, is := row[to.Name]
			if !answered && had { // nothing about it has changed
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
