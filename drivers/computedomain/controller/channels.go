package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/hardware/imex"
)

// channelsOf adds to a clique's table of channels the domains that its nodes have joined. count is how many channels every node of the
// clique has. A new domain gets the lowest free number. It gets none where no number is free, where one domain has all channels, or
// where it wants all of them and others hold some.
//
// A domain whose status has a number of the clique, and which the table lacks, had it before the clique's ComputeDomain was made again: its
// pods still have that channel, so it comes first, and gets the same number.
// The table is one object, and the API server refuses a write that was made from an older version of it. So no number is assigned twice,
// even by two writers.
func channelsOf(clique string, kept []v1beta1.ComputeDomainChannel, wanted []*v1beta1.ComputeDomain,
	count int) []v1beta1.ComputeDomainChannel {
	channels := slices.Clone(kept)
	taken := map[int]bool{}
	known := map[string]bool{}
	exclusive := false
	for _, channel := range kept {
		taken[channel.Number], known[channel.DomainID] = true, true
		exclusive = exclusive || channel.All
	}
	// The same domains in the same state always get the same numbers.
	slices.SortFunc(wanted, func(a, b *v1beta1.ComputeDomain) int {
		return cmp.Or(cmp.Compare(rank(numberBefore(a, clique) < 0), rank(numberBefore(b, clique) < 0)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	for _, domain := range wanted {
		all := domain.Spec.Channel.AllocationMode == v1beta1.AllocationModeAll
		if known[string(domain.UID)] || exclusive || all && len(channels) > 0 {
			continue
		}
		number := numberBefore(domain, clique)
		if number < 0 || number >= count || taken[number] {
			number = 0
		}
		for taken[number] {
			number++
		}
		if number >= count {
			continue
		}
		channels = append(channels, v1beta1.ComputeDomainChannel{
			Number: number, All: all, DomainID: string(domain.UID), Namespace: domain.Namespace, Name: domain.Name,
		})
		taken[number], exclusive = true, all
	}
	slices.SortFunc(channels, func(a, b v1beta1.ComputeDomainChannel) int { return cmp.Compare(a.Number, b.Number) })
	return channels
}

// numberBefore returns the number that a domain's status has of a clique; -1: none.
func numberBefore(domain *v1beta1.ComputeDomain, clique string) int {
	for _, part := range domain.Status.Cliques {
		if part.ID == clique && part.Channel != nil {
			return *part.Channel
		}
	}
	return -1
}

// channelCount is how many channels every node of a clique has: the smallest number on its nodes' labels. A node without the label, or
// with one that is no number, does not count.
func channelCount(nodes []metav1.PartialObjectMetadata) int {
	least := imex.Channels
	for _, node := range nodes {
		if count, err := strconv.Atoi(node.Labels[computedomain.LabelChannels]); err == nil && count >= 0 {
			least = min(least, count)
		}
	}
	return least
}

// setChannels writes the table of channels into the status of a clique's domain. Into the status of a user's domain it writes which
// number the domain has in each of its cliques.
func (r *Reconciler) setChannels(ctx context.Context, p *pass) error {
	status := &p.domain.Status
	if p.clique == "" {
		if !status.IMEX.Shared() {
			return nil
		}
		for i := range status.Cliques {
			clique, err := r.clique(ctx, status.Cliques[i].ID)
			if err != nil {
				return err
			}
			// A number is the domain's until the domain ends. A table that lacks it is that of a ComputeDomain that was made again.
			if clique == nil {
				continue
			}
			if channel := computedomain.ChannelOf(clique, p.domain.UID); channel != nil && !channel.All {
				status.Cliques[i].Channel = &channel.Number
			}
		}
		return nil
	}
	nodes, err := r.nodesOfClique(ctx, p.clique)
	if err != nil {
		return err
	}
	var kept []v1beta1.ComputeDomainChannel
	for _, channel := range status.Channels {
		free, err := r.givenBack(ctx, channel)
		if err != nil {
			return err
		}
		if !free {
			kept = append(kept, channel)
		}
	}
	wanted, err := r.joined(ctx, p.clique, nodes, status.IMEX)
	if err != nil {
		return err
	}
	status.Channels = channelsOf(p.clique, kept, wanted, channelCount(nodes))
	return nil
}

// joined returns the domains of a mode that nodes of a clique are part of. One that is being deleted is among them only where its pods may
// have a number.
func (r *Reconciler) joined(ctx context.Context, clique string, nodes []metav1.PartialObjectMetadata,
	mode v1beta1.IMEXMode) ([]*v1beta1.ComputeDomain, error) {
	var uids []types.UID
	for _, node := range nodes {
		uids = append(uids, computedomain.MemberOf(node.Labels)...)
	}
	slices.Sort(uids)
	var domains []*v1beta1.ComputeDomain
	for _, uid := range slices.Compact(uids) {
		domain, err := r.find(ctx, uid)
		if err != nil {
			return nil, err
		}
		if domain != nil {
			computedomain.Recall(domain, r.settings.Namespace)
		}
		if domain != nil && domain.Status.IMEX == mode && (domain.DeletionTimestamp == nil || numberBefore(domain, clique) >= 0) {
			domains = append(domains, domain)
		}
	}
	return domains, nil
}

// givenBack reports whether another domain may get a channel's number: its domain is being deleted or gone, and no node has the number any
// more.
//
// A node plugin labels its node, then checks that the domain is not being deleted, and only then hands the number out. So once the
// domain is being deleted, every node that handed the number out keeps the label until the number is released. Both questions go to the
// API server, the domain first, since a cache may be older than the table.
func (r *Reconciler) givenBack(ctx context.Context, channel v1beta1.ComputeDomainChannel) (bool, error) {
	uid := types.UID(channel.DomainID)
	if cached, err := r.find(ctx, uid); err != nil || cached != nil && cached.DeletionTimestamp == nil {
		return false, err
	}
	// While the cache shows a node with the number no request is needed: the change of that node's label causes another pass.
	if labelled, _, err := r.observe(ctx, uid); err != nil || slices.ContainsFunc(labelled, memberOf(uid)) {
		return false, err
	}
	// By its name: a list of the namespace for each domain that ends would grow with the square of the domains. The controller may list
	// domains, and not get one.
	domains := metav1.PartialObjectMetadataList{}
	domains.SetGroupVersionKind(v1beta1.SchemeGroupVersion().WithKind("ComputeDomainList"))
	if err := r.live.List(ctx, &domains, client.InNamespace(channel.Namespace),
		client.MatchingFields{metav1.ObjectNameField: channel.Name}); err != nil {
		return false, fmt.Errorf("look for the ComputeDomain that has channel %d: %w", channel.Number, err)
	}
	for _, domain := range domains.Items {
		if domain.UID == uid && domain.DeletionTimestamp == nil {
			return false, nil
		}
	}
	nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.live.List(ctx, &nodes, client.HasLabels{computedomain.MemberLabel(uid)}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("look for nodes that have channel %d: %w", channel.Number, err)
	}
	return len(nodes.Items) == 0, nil
}
