package mode

import "gpufabric.io/drivers/api/resource/v1beta1"

// State has the facts on which the mode of a ComputeDomain depends.
type State struct {
	// Recorded is status.imex; empty: not decided yet. Configured is the controller's --imex.
	Recorded, Configured v1beta1.IMEXMode
	// Clique is true for a ComputeDomain that represents a clique.
	Clique bool
	// Nodes is the number of nodes in status.nodes.
	Nodes int
}

// MayFollow reports whether the domain gets the configured mode in the place of the recorded one, unless it holds a channel of a clique: no
// daemon serves it so far, and none may come, since the controller does not make a clique's ComputeDomain in mode Domain.
func (s State) MayFollow() bool {
	return !s.Clique && Of(s.Recorded).Shared() && s.Recorded != s.Configured && s.Nodes == 0
}

// Next returns the mode to record. It is decided once, and changes only where MayFollow allows it. holdsChannel looks through the tables of
// all cliques, and is called only then.
//
//	ComputeDomain   recorded                  holds a channel   configured     next
//	a clique's      any                                                        as recorded
//	a clique's      none                                        Host           Host
//	a clique's      none                                        others         Clique
//	a user's        Clique, Host; no nodes    no                another        as configured
//	a user's        any other                                                  as recorded
//	a user's        none                                                       as configured
func Next(s State, holdsChannel func() (bool, error)) (v1beta1.IMEXMode, error) {
	switch {
	case s.Clique && s.Recorded != "":
		return s.Recorded, nil
	case s.Clique && s.Configured == v1beta1.IMEXHost:
		return v1beta1.IMEXHost, nil
	case s.Clique:
		return v1beta1.IMEXClique, nil
	case s.Recorded == "":
		return Of(s.Configured).Name(), nil
	case !s.MayFollow():
		return s.Recorded, nil
	}
	if holds, err := holdsChannel(); err != nil || holds {
		return s.Recorded, err
	}
	return s.Configured, nil
}

// Serves reports whether a clique's ComputeDomain of one mode can serve a domain of another. The mode of a clique's may not be decided yet.
func Serves(ofClique, ofDomain v1beta1.IMEXMode) bool {
	return Of(ofDomain).Shared() && (ofClique == "" || ofClique == ofDomain)
}

// Publishes reports whether a node publishes its channel as one that several claims may have. A node follows the configured mode once it
// has no claim of the other kind. Until then a domain of that kind still gets what it needs there, and the scheduler keeps domains of the
// new mode off a node where they could not run. own and shared are whether claims of the node have channels of domains with daemons of
// their own, and of domains that share a clique's.
func Publishes(configured Mode, own, shared bool) bool {
	return !own && (shared || configured.Shared())
}

// Excludes reports whether a claim on a node keeps a claim of another domain off it. held and wanted are whether their domains share a
// clique's daemons; joined is whether the node is in an NVLink fabric.
//
//	held      wanted    joined   excludes
//	shared    shared             no: channels of one session
//	different           no       no: without a fabric no daemon serves a shared channel
//	any other                    yes: a node has one IMEX session, and one label for a domain with daemons of its own
func Excludes(held, wanted, joined bool) bool {
	return (!held || !wanted) && (joined || held == wanted)
}
