package controller

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// clique returns the ComputeDomain that represents a clique, or nil.
func (r *Reconciler) clique(ctx context.Context, clique string) (*v1beta1.ComputeDomain, error) {
	if clique == "" {
		return nil, nil
	}
	found := &v1beta1.ComputeDomain{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: r.settings.Namespace, Name: computedomain.CliqueName(clique)}, found)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("look up the ComputeDomain of clique %s: %w", clique, err)
	}
	if err != nil || computedomain.CliqueOf(found, r.settings.Namespace) != clique {
		return nil, nil
	}
	found = r.memory.newest(found)
	computedomain.Recall(found, r.settings.Namespace)
	return found, nil
}

func (r *Reconciler) nodesOfClique(ctx context.Context, clique string) ([]metav1.PartialObjectMetadata, error) {
	nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.client.List(ctx, &nodes, client.MatchingFields{byClique: clique}); err != nil {
		return nil, fmt.Errorf("list the nodes of clique %s: %w", clique, err)
	}
	return nodes.Items, nil
}

// domainsOfNode are the domains that a node's labels name.
func domainsOfNode(o client.Object) []string {
	domains := labelIndex(o)
	for _, uid := range computedomain.MemberOf(o.GetLabels()) {
		domains = append(domains, string(uid))
	}
	return domains
}

// concerns returns the domains to reconcile when a ComputeDomain has changed: itself; those with a channel of the clique that it
// represents; and, while it is being deleted, the representatives of the cliques in which it has a channel.
func (r *Reconciler) concerns(ctx context.Context, o client.Object) []types.UID {
	concerned := []types.UID{o.GetUID()}
	domain, ok := o.(*v1beta1.ComputeDomain)
	if !ok {
		return concerned
	}
	if domain.DeletionTimestamp != nil {
		r.memory.deletingSince(domain.UID, r.now())
	}
	if domain.DeletionTimestamp != nil && domain.Status.IMEX.Shared() {
		for _, part := range domain.Status.Cliques {
			if clique, err := r.clique(ctx, part.ID); err == nil && clique != nil {
				concerned = append(concerned, clique.UID)
			}
		}
	}
	if domain.Status.IMEX == "" {
		domain = domain.DeepCopy() // the cache's own is not changed
		computedomain.Recall(domain, r.settings.Namespace)
	}
	for _, channel := range domain.Status.Channels {
		concerned = append(concerned, types.UID(channel.DomainID))
	}
	return concerned
}

// concernsOfNode returns the domains to reconcile when a node has changed: those that it is part of, and that of its clique.
func (r *Reconciler) concernsOfNode(ctx context.Context, o client.Object) []types.UID {
	var concerned []types.UID
	for _, uid := range domainsOfNode(o) {
		if uid != "" {
			concerned = append(concerned, types.UID(uid))
		}
	}
	// The cache returns an error only when it has stopped.
	if clique, err := r.clique(ctx, o.GetLabels()[v1beta1.LabelClique]); err == nil && clique != nil {
		concerned = append(concerned, clique.UID)
	}
	return concerned
}
