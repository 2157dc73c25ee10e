package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/mode"
)

// cliques keeps a ComputeDomain for every clique that has nodes, in the modes in which domains share a clique. A request names a clique.
// The Reconciler makes the objects of such a ComputeDomain, as for any other. It keeps the mode in which it was made: after a change of
// mode a new one replaces it, once no domain has a channel of it.
type cliques struct {
	client   client.Client
	settings Settings
}

func (c *cliques) setup(manager ctrl.Manager) error {
	byLabel := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []string {
		if clique := o.GetLabels()[v1beta1.LabelClique]; clique != "" {
			return []string{clique}
		}
		return nil
	})
	skipNameValidation := true // as the Reconciler's
	return builder.TypedControllerManagedBy[string](manager).Named("imexclique").
		Watches(&v1beta1.ComputeDomain{}, handler.TypedEnqueueRequestsFromMapFunc(c.concerns)).
		WatchesMetadata(&corev1.Node{}, byLabel).
		WithOptions(controller.TypedOptions[string]{MaxConcurrentReconciles: 1, SkipNameValidation: &skipNameValidation}).
		Complete(c)
}

// concerns are the cliques to look at when a ComputeDomain has changed: its own; and, where cliques of an earlier mode stay only for the
// domains of that mode, all of them.
func (c *cliques) concerns(ctx context.Context, o client.Object) []string {
	if clique := o.GetLabels()[v1beta1.LabelClique]; clique != "" {
		return []string{clique}
	}
	domain, ok := o.(*v1beta1.ComputeDomain)
	if !ok || c.settings.IMEX.Shared() || !domain.Status.IMEX.Shared() {
		return nil
	}
	var list v1beta1.ComputeDomainList
	// The cache returns an error only when it has stopped.
	if err := c.client.List(ctx, &list, client.InNamespace(c.settings.Namespace), client.HasLabels{v1beta1.LabelClique}); err != nil {
		return nil
	}
	var cliques []string
	for i := range list.Items {
		cliques = append(cliques, list.Items[i].Labels[v1beta1.LabelClique])
	}
	return cliques
}

// expected reports whether a clique's ComputeDomain stays though the controller's mode has none: a domain that shares daemons is left. It
// may get pods in any clique, and the controller may make none in that mode.
func (c *cliques) expected(ctx context.Context, clique *v1beta1.ComputeDomain) (bool, error) {
	if c.settings.IMEX.Shared() {
		return false, nil
	}
	var list v1beta1.ComputeDomainList
	if err := c.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("look for domains that clique %s serves: %w", clique.Labels[v1beta1.LabelClique], err)
	}
	for i := range list.Items {
		domain := &list.Items[i]
		if computedomain.CliqueOf(domain, c.settings.Namespace) == "" && mode.Serves(clique.Status.IMEX, domain.Status.IMEX) {
			return true, nil
		}
	}
	return false, nil
}

// Reconcile makes the clique's ComputeDomain, or removes it when it is not needed any more. One with channels in its table stays, even
// where the controller's mode has changed since: jobs share memory through its daemons.
func (c *cliques) Reconcile(ctx context.Context, clique string) (ctrl.Result, error) {
	nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := c.client.List(ctx, &nodes, client.MatchingFields{byClique: clique}); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the nodes of clique %s: %w", clique, err)
	}
	wanted := len(nodes.Items) > 0 && c.settings.IMEX.Shared()
	found := &v1beta1.ComputeDomain{}
	want := cliqueDomain(clique, c.settings.Namespace)
	err := c.client.Get(ctx, client.ObjectKeyFromObject(want), found)
	computedomain.Recall(found, c.settings.Namespace)
	ofOtherMode := err == nil && found.Status.IMEX != "" && found.Status.IMEX != c.settings.IMEX
	switch {
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, fmt.Errorf("look up the ComputeDomain of clique %s: %w", clique, err)
	case err != nil && wanted:
		if err := c.client.Create(ctx, want); err != nil && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, fmt.Errorf("make the ComputeDomain of clique %s: %w", clique, err)
		}
	case err == nil && (!wanted || ofOtherMode) && len(found.Status.Channels) == 0 && found.DeletionTimestamp == nil:
		if stays, err := c.expected(ctx, found); err != nil || stays && len(nodes.Items) > 0 {
			return ctrl.Result{}, err
		}
		// Only the version that was read is deleted: a domain may have got a channel since.
		precondition := client.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion}
		err := c.client.Delete(ctx, found, precondition)
		if apierrors.IsConflict(err) {
			return ctrl.Result{}, nil // the change causes another reconcile
		}
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("remove the ComputeDomain of clique %s: %w", clique, err)
		}
	}
	return ctrl.Result{}, nil
}

// cliqueDomain is the ComputeDomain of a whole clique. No pod claims a channel of it, so the controller does not make a template of
// this name.
func cliqueDomain(clique, namespace string) *v1beta1.ComputeDomain {
	name := computedomain.CliqueName(clique)
	return &v1beta1.ComputeDomain{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1beta1.LabelClique: clique}},
		Spec: v1beta1.ComputeDomainSpec{Channel: v1beta1.ComputeDomainChannelSpec{
			AllocationMode:        v1beta1.AllocationModeSingle,
			ResourceClaimTemplate: v1beta1.ComputeDomainResourceClaimTemplate{Name: name},
		}},
	}
}
