// Package mode decides whose IMEX daemons serve a compute domain: its own (Domain), those of its NVLink clique (Clique), or the service
// nvidia-imex of each node (Host). A Mode has the differences between the three. Next is the table of transitions of a ComputeDomain;
// Publishes and Excludes are those of a node, which has one IMEX session.
package mode

import "gpufabric.io/drivers/api/resource/v1beta1"

// Mode is one of the three.
type Mode interface {
	// Name is the value of status.imex and of the flag --imex.
	Name() v1beta1.IMEXMode
	// Shared reports whether domains share the daemons of a clique, each by a channel that the clique's table gives it.
	Shared() bool
	// Daemons reports whether the controller runs IMEX daemons for a ComputeDomain of this mode: a user's, or one that represents a clique.
	Daemons(ofClique bool) bool
	// Server describes the IMEX daemon of a domain on a node, for messages: "ComputeDomain x, which ...".
	Server() string
}

// Of returns a mode by its name. A ComputeDomain whose mode is not decided yet counts as one with daemons of its own.
func Of(name v1beta1.IMEXMode) Mode {
	switch name {
	case v1beta1.IMEXClique:
		return clique{}
	case v1beta1.IMEXHost:
		return host{}
	default:
		return own{}
	}
}

type own struct{}

func (own) Name() v1beta1.IMEXMode { return v1beta1.IMEXDomain }
func (own) Shared() bool           { return false }
func (own) Daemons(bool) bool      { return true }
func (own) Server() string {
	return "has an IMEX daemon of its own (it was made with computeDomains.imex domain)"
}

type clique struct{}

func (clique) Name() v1beta1.IMEXMode     { return v1beta1.IMEXClique }
func (clique) Shared() bool               { return true }
func (clique) Daemons(ofClique bool) bool { return ofClique }
func (clique) Server() string             { return sharesDaemon }

type host struct{}

func (host) Name() v1beta1.IMEXMode { return v1beta1.IMEXHost }
func (host) Shared() bool           { return true }
func (host) Daemons(bool) bool      { return false }
func (host) Server() string         { return sharesDaemon }

// A node that shares its channels does not record in which of the two modes.
const sharesDaemon = "shares the IMEX daemon of the node's clique (it was made with computeDomains.imex clique or host)"
