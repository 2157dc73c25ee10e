package plugin

import (
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/claimstate"
)

// claimData is the part of a claim's record that is not its devices.
type claimData struct {
	// Channel is the domain that a channel of the claim made the node part of, Daemon the domain whose daemon the claim is for.
	Channel types.UID `json:"channel,omitempty"`
	Daemon  types.UID `json:"daemon,omitempty"`
	// Fabric is the clique that the node was in when a daemon's claim was prepared; empty: none.
	Fabric string `json:"fabric,omitempty"`
	// Shared: the channel is one of the clique's, whose daemons serve several domains. Other claims of the node may be for the same
	// domain.
	Shared bool `json:"shared,omitempty"`
	// Server is, of a shared channel, the ComputeDomain of the clique whose daemon serves it. That daemon's directory outlives its claim for
	// as long as this one exists: the next daemon needs nvidia-imex's files there.
	Server types.UID `json:"server,omitempty"`
	// Session is the IMEX session of the node in which the channel was handed out (package session); 0: unknown.
	Session int64 `json:"session,omitempty"`
}

// server is the domain whose daemon serves the claim's channel; empty: the claim is for none.
func (d claimData) server() types.UID {
	if d.Shared {
		return d.Server
	}
	return d.Channel
}

// domains are the domains that a claim is for.
func (d claimData) domains() []types.UID {
	var domains []types.UID
	for _, domain := range []types.UID{d.Channel, d.Daemon, d.Server} {
		if domain != "" {
			domains = append(domains, domain)
		}
	}
	return domains
}

// decode reads the claimData of a claim's record.
func decode(record claimstate.Record) (claimData, error) {
	return claimstate.Decode[claimData](record)
}
