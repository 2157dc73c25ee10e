package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/layout"
)

// layouts keeps the condition of MIGLayouts, and removes the entries of nodes that are gone or no longer selected.
type layouts struct {
	client client.Client
	reader client.Reader // not cached: the manager's cache holds some nodes only
	now    func() time.Time
}

// Reconcile updates one MIGLayout's condition from its nodes' entries.
func (r *layouts) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var l v1alpha1.MIGLayout
	if err := r.client.Get(ctx, request.NamespacedName, &l); err != nil || l.DeletionTimestamp != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	selected, err := r.selected(ctx, &l)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("list the nodes of MIGLayout %s: %w", l.Name, err)
	}
	for _, entry := range l.Status.Nodes {
		if slices.Contains(selected, entry.Name) {
			continue
		}
		// Applying nothing as the entry's owner removes the entry.
		if err := applyStatus(ctx, r.client, "MIGLayout", l.Name, layout.Manager+entry.Name, nil); err != nil {
			return ctrl.Result{}, fmt.Errorf("remove node %s from the status of MIGLayout %s: %w", entry.Name, l.Name, err)
		}
	}
	next := v1alpha1.MIGLayoutStatus{ObservedGeneration: l.Generation, Conditions: slices.Clone(l.Status.Conditions)}
	ready, reason, message := sumUp(&l, selected)
	setReady(&next.Conditions, l.Generation, ready, reason, message, r.now())
	now := l.Status.DeepCopy()
	now.Nodes = nil
	if !equality.Semantic.DeepEqual(*now, next) {
		if err := applyStatus(ctx, r.client, "MIGLayout", l.Name, fieldManager, &next); err != nil {
			return ctrl.Result{}, fmt.Errorf("write the status of MIGLayout %s: %w", l.Name, err)
		}
	}
	return ctrl.Result{RequeueAfter: recount}, nil
}

// sumUp says whether every selected node has the layout, and otherwise what the nodes wait for.
func sumUp(l *v1alpha1.MIGLayout, selected []string) (ready bool, reason, message string) {
	if err := l.Spec.Validate(field.NewPath("spec")).ToAggregate(); err != nil {
		return false, "InvalidSpec", err.Error()
	}
	if len(selected) == 0 {
		return false, "NoNodes", "nodeSelector selects no node"
	}
	applied := 0
	var failed, waiting, silent []string
	for _, name := range selected {
		i := slices.IndexFunc(l.Status.Nodes, func(n v1alpha1.MIGLayoutNode) bool {
			return n.Name == name &&
				n.ObservedGeneration == l.Generation
		})
		switch {
		case i < 0:
			silent = append(silent, name)
		case l.Status.Nodes[i].State == v1alpha1.MIGLayoutApplied:
			applied++
		case l.Status.Nodes[i].State == v1alpha1.MIGLayoutFailed:
			failed = append(failed, name+" ("+l.Status.Nodes[i].Message+")")
		default:
			waiting = append(waiting, name+" ("+l.Status.Nodes[i].Message+")")
		}
	}
	counts := fmt.Sprintf("applied on %d of %d nodes", applied, len(selected))
	switch {
	case len(failed) > 0:
		return false, "Failed", counts + "; failed on " + few(failed)
	case len(waiting) > 0:
		return false, "Waiting", counts + "; waiting for " + few(waiting)
	case len(silent) > 0:
		return false, "WaitingForNodes", counts + "; nothing heard of " + few(silent) + " (does gpu-plugin run there?)"
	default:
		return true, "Applied", counts
	}
}

// few joins the first few texts and counts the rest.
func few(texts []string) string {
	const named = 3
	text := strings.Join(texts[:min(len(texts), named)], "; ")
	if more := len(texts) - named; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// selected lists the names of the nodes that a layout selects.
func (r *layouts) selected(ctx context.Context, l *v1alpha1.MIGLayout) ([]string, error) {
	options := []client.ListOption{client.Limit(pageSize)}
	if l.Spec.NodeSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(l.Spec.NodeSelector)
		if err != nil {
			return nil, nil //nolint:nilerr // the validation of the spec reports this in the status
		}
		options = append(options, client.MatchingLabelsSelector{Selector: selector})
	}
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	var names []string
	for {
		if err := r.reader.List(ctx, page, append(options, client.Continue(page.Continue))...); err != nil {
			return nil, err
		}
		for i := range page.Items {
			names = append(names, page.Items[i].Name)
		}
		if page.Continue == "" {
			return names, nil
		}
	}
}
