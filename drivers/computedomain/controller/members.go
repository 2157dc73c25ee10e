package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/mode"
)

// memberOf returns a predicate: whether a node's plugin has labelled it as one that has a domain's channel.
func memberOf(uid types.UID) func(metav1.PartialObjectMetadata) bool {
	return func(node metav1.PartialObjectMetadata) bool {
		_, member := node.Labels[computedomain.MemberLabel(uid)]
		return member
	}
}

// members are a domain's nodes as the cluster shows them now, and the pods of its own daemons.
func (r *Reconciler) members(ctx context.Context, p *pass) ([]member, []corev1.Pod, error) {
	nodes, pods, err := r.observe(ctx, p.domain.UID)
	if err != nil {
		return nil, nil, err
	}
	if p.clique != "" {
		if nodes, err = r.nodesOfClique(ctx, p.clique); err != nil {
			return nil, nil, err
		}
	}
	if p.ownDaemons() {
		members := membersOf(nodes, pods)
		if p.clique != "" {
			err = r.explainOwn(ctx, nodes, members)
		}
		return members, pods, err
	}
	members := make([]member, 0, len(nodes))
	for i := range nodes {
		node := &nodes[i]
		m := member{name: node.Name, clique: node.Labels[v1beta1.LabelClique], cliqueKnown: true}
		if p.clique != "" {
			m.ready, m.why = hostService(node)
		} else if m.clique == "" {
			m.ready = true // a node without fabric does not need a daemon
		} else if err := r.servedBy(ctx, p.domain, node, &m); err != nil {
			return nil, nil, err
		}
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	return members, nil, nil
}

// explainOwn reports nodes of a clique that have no daemon of it because they are part of a domain with daemons of its own.
func (r *Reconciler) explainOwn(ctx context.Context, nodes []metav1.PartialObjectMetadata, members []member) error {
	for _, node := range nodes {
		uid := types.UID(node.Labels[v1beta1.LabelComputeDomain])
		index := slices.IndexFunc(members, func(m member) bool { return m.name == node.Name })
		if uid == "" || index < 0 || members[index].ready {
			continue
		}
		domain, err := r.find(ctx, uid)
		if err != nil {
			return err
		}
		name := "with UID " + string(uid)
		if domain != nil {
			name = domain.Namespace + "/" + domain.Name
		}
		members[index].why = "ComputeDomain " + name + " has an IMEX daemon of its own there (it was made with computeDomains.imex domain); " +
			"the clique's daemon comes when that domain has left the node"
	}
	return nil
}

// hostService reports whether a node's own nvidia-imex can serve domains, or the reason why not. The node's plugin writes this into a
// label.
func hostService(node *metav1.PartialObjectMetadata) (ready bool, why string) {
	switch state := node.Labels[computedomain.LabelHostIMEX]; state {
	case computedomain.HostIMEXReady:
		return true, ""
	case "":
		return false, "its node plugin has not looked at the node's nvidia-imex yet"
	default:
		return false, "the node's nvidia-imex cannot serve: " + state + " (see the node's Events)"
	}
}

// servedBy adds to a member the fields that its clique provides: the node's daemon, and the domain's channel.
func (r *Reconciler) servedBy(ctx context.Context, domain *v1beta1.ComputeDomain, node *metav1.PartialObjectMetadata, m *member) error {
	clique, err := r.clique(ctx, m.clique)
	if err != nil {
		return err
	}
	if clique == nil {
		if m.why = "its clique " + m.clique + " has no IMEX daemons yet"; !r.settings.IMEX.Shared() {
			m.why = "its clique " + m.clique + " has no IMEX daemons, and gets none while computeDomains.imex is domain: make the domain again"
		}
		return nil
	}
	daemons := mode.Of(clique.Status.IMEX).Daemons(true)
	if !daemons {
		m.ready, m.why = hostService(node)
	}
	for _, served := range clique.Status.Nodes {
		if served.Name == m.name && daemons {
			m.address, m.ready = served.IPAddress, served.Status == v1beta1.Ready
		}
	}
	switch {
	case computedomain.ChannelOf(clique, domain.UID) == nil:
		m.ready, m.why = false, noChannel(clique, domain, r.settings.IMEX)
	case !m.ready && m.why == "":
		m.why = fmt.Sprintf("the IMEX daemon of its clique is not READY there: see ComputeDomain %s/%s", clique.Namespace, clique.Name)
	}
	return nil
}

// noChannel returns the reason why a domain has no channel of a clique. told is the mode in the controller's flags.
func noChannel(clique, domain *v1beta1.ComputeDomain, configured v1beta1.IMEXMode) string {
	held := len(clique.Status.Channels)
	switch {
	case !mode.Serves(clique.Status.IMEX, domain.Status.IMEX) && domain.Status.IMEX != configured:
		return fmt.Sprintf("its clique is served in mode %s by now, and the domain was made in mode %s: start its pods in a clique of which it "+
			"has a channel, or make the domain again", clique.Status.IMEX, domain.Status.IMEX)
	case !mode.Serves(clique.Status.IMEX, domain.Status.IMEX):
		return fmt.Sprintf("its clique is still served in mode %s, where %d %s a channel: the clique changes to %s when they have ended",
			clique.Status.IMEX, held, plural(held, "domain holds", "domains hold"), domain.Status.IMEX)
	case held == 0:
		return "it has no IMEX channel yet"
	case clique.Status.Channels[0].All:
		return fmt.Sprintf("ComputeDomain %s/%s holds all IMEX channels of its clique", clique.Status.Channels[0].Namespace,
			clique.Status.Channels[0].Name)
	case domain.Spec.Channel.AllocationMode == v1beta1.AllocationModeAll:
		return fmt.Sprintf("it waits for all IMEX channels of its clique, of which %d %s held", held, plural(held, "is", "are"))
	default:
		return fmt.Sprintf("it has no IMEX channel yet: %d of its clique %s held", held, plural(held, "is", "are"))
	}
}
