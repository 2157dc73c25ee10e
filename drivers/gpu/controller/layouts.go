package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/gpu/controller/demand"
	"gpufabric.io/drivers/gpu/layout"
)

// settling is how often a layout with auto is looked at until its nodes have reported.
const settling = 5 * time.Second

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
	if l.ByDemand() {
		return ctrl.Result{}, nil // the condition of its owner has its state: each cut would cost two more writes here
	}
	nodes, err := r.selected(ctx, &l)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("list the nodes of MIGLayout %s: %w", l.Name, err)
	}
	selected := slices.Sorted(maps.Keys(nodes))
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
	if l.Spec.Auto != nil && reason == "WaitingForNodes" {
		all := &v1alpha1.MIGLayoutList{}
		if err := r.client.List(ctx, all); err != nil {
			return ctrl.Result{}, fmt.Errorf("list the MIGLayouts: %w", err)
		}
		ready, reason, message = sumUpDemand(&l, all.Items, nodes)
	}
	setReady(&next.Conditions, l.Generation, ready, reason, message, r.now())
	now := l.Status.DeepCopy()
	now.Nodes = nil
	if !equality.Semantic.DeepEqual(*now, next) {
		if err := applyStatus(ctx, r.client, "MIGLayout", l.Name, fieldManager, &next); err != nil {
			return ctrl.Result{}, fmt.Errorf("write the status of MIGLayout %s: %w", l.Name, err)
		}
	}
	if l.Spec.Auto != nil && !ready {
		return ctrl.Result{RequeueAfter: settling}, nil
	}
	return ctrl.Result{RequeueAfter: recount}, nil
}

// sumUp reports whether every selected node has the layout, and otherwise the reasons for which nodes wait.
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
		return false, "WaitingForNodes", counts + "; no report of " + few(silent) + " (does gpu-plugin run there?)"
	default:
		return true, "Applied", counts
	}
}

// sumUpDemand does the same for a layout with auto, by the layouts that the controller made for its nodes.
func sumUpDemand(l *v1alpha1.MIGLayout, all []v1alpha1.MIGLayout, nodes map[string]labels.Set) (ready bool, reason, message string) {
	assigned := demand.Assign(all, nodes)
	mine := map[string]bool{}
	for node, parent := range assigned.Parents {
		if parent == l.Name {
			mine[node] = true
		}
	}
	var failed, changing []string
	reported, profiles := 0, map[string]bool{}
	for i := range all {
		if all[i].Labels[v1alpha1.MIGByDemandLabel] != string(l.UID) {
			continue
		}
		for _, entry := range all[i].Status.Nodes {
			if !mine[entry.Name] {
				continue
			}
			reported++
			for _, p := range entry.Profiles {
				profiles[p.Name] = true
			}
			switch {
			case entry.State == v1alpha1.MIGLayoutFailed:
				failed = append(failed, entry.Name+" ("+entry.Message+")")
			case entry.State == v1alpha1.MIGLayoutWaiting || entry.ObservedGeneration < all[i].Generation:
				changing = append(changing, entry.Name+" ("+entry.Message+")")
			}
		}
	}
	message = fmt.Sprintf("%d of %d nodes get their layouts by demand", reported, len(mine))
	if len(changing) > 0 {
		message += "; being changed: " + few(changing)
	}
	if none := unknownShapes(l.Spec.Auto, profiles); reported == len(mine) && len(none) > 0 {
		message += "; no GPU of these nodes has the profile " + few(none)
	}
	if left := assigned.LeftOut[l.Name]; len(left) > 0 {
		message += "; left out: " + few(left)
	}
	switch {
	case len(failed) > 0:
		return false, "Failed", message + "; failed on " + few(failed)
	case len(mine) == 0:
		return false, "NoNodes", message
	case reported < len(mine):
		return false, "WaitingForNodes", message + "; the others have not reported (is gpus.layoutsByDemand of the chart set, and does " +
			"gpu-plugin run there?)"
	default:
		return true, "ByDemand", message
	}
}

// unknownShapes are the MIG profiles of a layout by demand that are not among those of its nodes' GPUs; none where these are unknown.
func unknownShapes(auto *v1alpha1.MIGAuto, profiles map[string]bool) []string {
	var out []string
	for i, shape := range auto.Shapes {
		if len(profiles) > 0 && shape.Profile != v1alpha1.MIGWhole && !profiles[shape.Profile] {
			out = append(out, fmt.Sprintf("%s (auto.shapes[%d])", shape.Profile, i))
		}
	}
	return out
}

// few joins the first few texts and counts the rest.
func few(texts []string) string {
	const named = 3
	return listing.First(texts, named, "; ")
}

// selected lists the nodes that a layout selects, by name, with their labels.
func (r *layouts) selected(ctx context.Context, l *v1alpha1.MIGLayout) (map[string]labels.Set, error) {
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
	names := map[string]labels.Set{}
	for {
		if err := r.reader.List(ctx, page, append(options, client.Continue(page.Continue))...); err != nil {
			return nil, err
		}
		for i := range page.Items {
			names[page.Items[i].Name] = page.Items[i].Labels
		}
		if page.Continue == "" {
			return names, nil
		}
	}
}
