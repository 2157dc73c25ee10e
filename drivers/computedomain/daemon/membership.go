package daemon

import (
	"context"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/imexd"
)

type domain = v1beta1.ComputeDomain

// membership computes from a domain's status the group of this node's daemon.
type membership struct {
	node, address string
	uid           types.UID
	join          func(imexd.Group)

	joined  bool
	current imexd.Group
}

// follow is called with the domain whenever it changes, from one goroutine.
func (m *membership) follow(ctx context.Context, domain *domain) {
	group, ok := m.groupOf(domain)
	if !ok || m.joined && reflect.DeepEqual(group, m.current) {
		return
	}
	klog.FromContext(ctx).Info("Peers of the IMEX daemon", "clique", group.Clique, "peers", len(group.Peers))
	m.joined, m.current = true, group
	m.join(group)
}

// groupOf returns the nodes of this node's clique, or false while the domain's status does not contain this very daemon: its node
// may be there with the address of an earlier pod. A domain that is being deleted, or that another of its name replaced, has no effect:
// this pod goes with it.
func (m *membership) groupOf(domain *domain) (imexd.Group, bool) {
	if domain == nil || domain.UID != m.uid {
		return imexd.Group{}, false
	}
	nodes := domain.Status.Nodes
	own := slices.IndexFunc(nodes, func(n v1beta1.ComputeDomainNode) bool { return n.Name == m.node })
	if own < 0 || nodes[own].IPAddress != m.address {
		return imexd.Group{}, false
	}
	if nodes[own].CliqueID == "" {
		return imexd.Group{}, true
	}
	group := imexd.Group{Domain: string(m.uid), Clique: nodes[own].CliqueID, Own: nodes[own].Index}
	for _, clique := range domain.Status.Cliques {
		if clique.ID == group.Clique {
			group.Slots = clique.Slots
		}
	}
	for _, node := range nodes {
		if node.CliqueID == group.Clique {
			group.Peers = append(group.Peers, imexd.Peer{Index: node.Index, Address: node.IPAddress})
		}
	}
	slices.SortFunc(group.Peers, func(a, b imexd.Peer) int { return a.Index - b.Index })
	return group, true
}
