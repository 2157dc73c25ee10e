package plugin

import (
	"context"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// server is the ComputeDomain whose daemons serve a channel.
type server struct {
	namespace, name string
	uid             types.UID
}

// environment has the variables that describe its domain to a container with a channel. by is nil where no daemon of the controller's
// serves.
//
// The peers are not among it: a pod starts when its own node's daemon is ready, and the other nodes may join later. The node's own index is
// known by then, since a daemon becomes ready only after it has read that index from the domain's status; the status is read here after the
// wait for the daemon, so it has the index too.
func (k *preparer) environment(ctx context.Context, domain *v1beta1.ComputeDomain, clique string, channel int, by *server) ([]string,
	error) {
	env := []string{
		computedomain.EnvUID + "=" + string(domain.UID),
		computedomain.EnvName + "=" + domain.Name,
		computedomain.EnvNamespace + "=" + domain.Namespace,
		computedomain.EnvNodes + "=" + strconv.Itoa(domain.Spec.NumNodes),
		computedomain.EnvCliqueOf + "=" + clique,
		computedomain.EnvChannel + "=" + strconv.Itoa(channel),
	}
	if by == nil {
		return env, nil
	}
	serving, err := k.readDomain(ctx, by.namespace, by.name, by.uid)
	if err != nil || serving == nil {
		return env, err
	}
	own := slices.IndexFunc(serving.Status.Nodes, func(n v1beta1.ComputeDomainNode) bool {
		return n.Name == k.node.name && n.CliqueID == clique
	})
	if own < 0 {
		return env, nil
	}
	return append(env, computedomain.EnvIndex+"="+strconv.Itoa(serving.Status.Nodes[own].Index)), nil
}
