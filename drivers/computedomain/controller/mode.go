package controller

import (
	"context"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/mode"
)

// decideMode records in the status whose IMEX daemons serve the domain (mode.Next).
func (r *Reconciler) decideMode(ctx context.Context, p *pass) error {
	state := r.state(p.domain)
	if !state.Clique && state.Recorded == "" {
		held, err := r.modeHeld(ctx, p.domain)
		if err != nil {
			return err
		}
		state.Recorded = held
	}
	next, err := mode.Next(state, func() (bool, error) {
		held, err := r.channelMode(ctx, p.domain.UID)
		return held != "", err
	})
	p.domain.Status.IMEX = next
	return err
}

// state returns the facts on which the mode of a ComputeDomain depends.
func (r *Reconciler) state(domain *v1beta1.ComputeDomain) mode.State {
	return mode.State{Recorded: domain.Status.IMEX, Configured: r.settings.IMEX, Nodes: len(domain.Status.Nodes),
		Clique: computedomain.CliqueOf(domain, r.settings.Namespace) != ""}
}

// ownDaemons reports whether daemons run for this very domain.
func (p *pass) ownDaemons() bool {
	return mode.Of(p.domain.Status.IMEX).Daemons(p.clique != "")
}
