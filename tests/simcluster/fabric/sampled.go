package fabric

import (
	"context"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/simnode"
)

// sampled runs some containers as processes, so that one of each kind can be measured among a thousand goroutines.
type sampled struct {
	goroutines *goroutines
	processes  *processes
}

var _ simnode.Runtime = (*sampled)(nil)

func (s *sampled) Owns(image string) bool { return ownImage(image) }

func (s *sampled) Run(ctx context.Context, container simnode.Container) error {
	return s.choose(container).Run(ctx, container)
}

func (s *sampled) Exec(ctx context.Context, container simnode.Container, command []string) error {
	return s.choose(container).Exec(ctx, container, command)
}

func (s *sampled) choose(container simnode.Container) simnode.Runtime {
	if container.Name == "controller" || container.Node == cluster.NodeName(0) {
		return s.processes
	}
	return s.goroutines
}
