package cliques

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Shortfall is a compute domain for which no clique has enough healthy nodes.
type Shortfall struct {
	// Wanted is how many nodes the domain waits for.
	Wanted int
	// Best is the clique with the most healthy nodes.
	Best Clique
	// Cliques is the number of cliques; Healthy is the number of their healthy nodes together.
	Cliques, Healthy int
}

// Clique is the state of the nodes of one clique.
type Clique struct {
	ID string
	// Rack is the rack that all its nodes' labels name; empty where they name none, or several.
	Rack string
	// Nodes is how many it has.
	Nodes int
	// Unhealthy are its nodes that cannot take part in a new domain, by name.
	Unhealthy []Node
}

// Healthy is how many nodes of the clique can take part in a new domain.
func (c *Clique) Healthy() int { return c.Nodes - len(c.Unhealthy) }

// Fit returns nil where some clique has enough healthy nodes for a domain of so many, and where nothing is known: no node is in a
// clique, or the domain waits for none.
func Fit(nodes []Node, wanted int) *Shortfall {
	all := group(nodes)
	if wanted <= 0 || len(all) == 0 {
		return nil
	}
	best := slices.MaxFunc(all, func(a, b *Clique) int {
		return cmp.Or(a.Healthy()-b.Healthy(), a.Nodes-b.Nodes, strings.Compare(b.ID, a.ID))
	})
	if best.Healthy() >= wanted {
		return nil
	}
	short := &Shortfall{Wanted: wanted, Best: *best, Cliques: len(all)}
	for _, c := range all {
		short.Healthy += c.Healthy()
	}
	return short
}

func group(nodes []Node) []*Clique {
	var all []*Clique
	known := map[string]*Clique{}
	for _, n := range nodes {
		c := known[n.Clique]
		if c == nil {
			c = &Clique{ID: n.Clique, Rack: n.Rack}
			known[n.Clique], all = c, append(all, c)
		}
		if c.Rack != n.Rack {
			c.Rack = ""
		}
		if c.Nodes++; n.Why != "" {
			c.Unhealthy = append(c.Unhealthy, n)
		}
	}
	return all
}

// named is how many unhealthy nodes a warning names before it counts the rest. kubectl shows 256 bytes of a warning for certain.
const named = 3

// Warnings say what is missing, one sentence each: where, which nodes, and what follows.
func (s *Shortfall) Warnings() []string {
	where := "NVLink clique " + s.Best.ID
	if s.Best.Rack != "" {
		where = fmt.Sprintf("rack %s (%s)", s.Best.Rack, where)
	}
	if s.Cliques > 1 {
		where += fmt.Sprintf(", the best of %d cliques", s.Cliques)
	}
	warnings := []string{fmt.Sprintf("%s not fit %s: %d of %d healthy", nodes(s.Wanted, "does", "do"), where, s.Best.Healthy(), s.Best.Nodes)}
	if troubled := s.Best.Unhealthy; len(troubled) > 0 {
		var names []string
		for _, n := range troubled[:min(len(troubled), named)] {
			names = append(names, fmt.Sprintf("%s (%s)", n.Name, n.Why))
		}
		if rest := len(troubled) - len(names); rest > 0 {
			names = append(names, fmt.Sprintf("%d more", rest))
		}
		warnings = append(warnings, "not healthy there: "+strings.Join(names, ", "))
	}
	if s.Healthy < s.Wanted {
		return append(warnings, fmt.Sprintf("the domain waits until it has %s; all cliques together have %d healthy now", nodes(s.Wanted, "", ""),
			s.Healthy))
	}
	return append(warnings, "over several cliques the domain can become Ready, but only pods in the same clique share GPU memory")
}

// nodes counts nodes, with a verb that agrees.
func nodes(n int, one, several string) string {
	if n == 1 {
		return strings.TrimSpace("1 node " + one)
	}
	return strings.TrimSpace(fmt.Sprintf("%d nodes %s", n, several))
}
