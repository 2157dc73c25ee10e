package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// lostAfter is how long a daemon pod that does not end may delay its domain's deletion. By then its node does not answer: the pod ends
// with the node, or when the node comes back.
const lostAfter = time.Minute

// reportDeletionAfter is how long a deletion may take before its status gives the reason.
const reportDeletionAfter = lostAfter / 4

// delete removes a domain's objects, in this order: the templates, so that no further claim is made; when no pod uses
// the domain any more, the DaemonSet; the nodes' labels; and when the last daemon has ended, the finalizer.
func (r *Reconciler) delete(ctx context.Context, domain *v1beta1.ComputeDomain) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(domain, computedomain.Finalizer) {
		return ctrl.Result{}, nil
	}
	r.clocks.observe(domain, r.now())
	if result, done, err := r.holdForImporters(ctx, domain); !done {
		return result, err
	}
	if err := r.remove(ctx, domain.UID); err != nil {
		// A passing error is not reported. A lasting one must be: it keeps the domain from being deleted.
		if r.deletedFor(domain) < reportDeletionAfter {
			return ctrl.Result{}, err
		}
		_, statusErr := r.writeStatus(ctx, r.failing(domain, &metav1.Condition{
			Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonDeleting,
			Message: "what was made for the domain cannot be removed: " + err.Error(),
		}), domain.Status.DeepCopy())
		return ctrl.Result{}, errors.Join(err, statusErr)
	}
	waiting, again, err := r.ending(ctx, domain.UID)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(waiting) > 0 {
		before := domain.Status.DeepCopy()
		p := r.failing(domain, &metav1.Condition{
			Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonDeleting,
			Message: fmt.Sprintf("waiting for %d IMEX %s to end on %s", len(waiting), plural(len(waiting), "daemon", "daemons"), listed(waiting)),
		})
		// Usually they end before there is anything to report.
		if r.deletedFor(domain) < reportDeletionAfter {
			return ctrl.Result{RequeueAfter: soonest(again, reportDeletionAfter)}, nil
		}
		after, err := r.writeStatus(ctx, p, before)
		return ctrl.Result{RequeueAfter: soonest(again, after)}, err
	}
	before := domain.DeepCopy()
	controllerutil.RemoveFinalizer(domain, computedomain.Finalizer)
	if err := r.client.Patch(ctx, domain, client.MergeFromWithOptions(before,
		client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer: %w", err)
	}
	r.memory.forget(domain.UID)
	r.clocks.forget(domain.UID)
	return ctrl.Result{}, nil
}

// failing is a pass that only writes a condition to a domain's status.
func (r *Reconciler) failing(domain *v1beta1.ComputeDomain, problem *metav1.Condition) *pass {
	return &pass{domain: domain, clique: computedomain.CliqueOf(domain, r.settings.Namespace), problem: problem}
}

// leftovers removes objects of a domain that no longer exists: those that were created, or became visible, while the domain
// was being deleted, or whose domain lost its finalizer by force.
func (r *Reconciler) leftovers(ctx context.Context, uid types.UID) (ctrl.Result, error) {
	r.memory.forget(uid)
	r.clocks.forget(uid)
	if left, err := r.anythingLeft(ctx, uid); err != nil || !left {
		return ctrl.Result{}, err
	}
	// A cache may have a label before it has the label's domain.
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(v1beta1.SchemeGroupVersion().WithKind("ComputeDomainList"))
	if err := r.live.List(ctx, &list); err != nil {
		return ctrl.Result{}, fmt.Errorf("look for the ComputeDomain with UID %s: %w", uid, err)
	}
	for _, domain := range list.Items {
		if domain.UID == uid {
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
	}
	return ctrl.Result{}, r.remove(ctx, uid)
}

// anythingLeft reports whether the caches contain an object that remove would delete.
func (r *Reconciler) anythingLeft(ctx context.Context, uid types.UID) (bool, error) {
	nodes, _, err := r.observe(ctx, uid)
	if err != nil || len(nodes) > 0 && slices.ContainsFunc(nodes, labelledWith(uid)) {
		return true, err
	}
	var templates resourceapi.ResourceClaimTemplateList
	if err := r.client.List(ctx, &templates, client.MatchingFields{byDomain: string(uid)}); err != nil || len(templates.Items) > 0 {
		return true, err
	}
	err = r.client.Get(ctx, client.ObjectKey{Namespace: r.settings.Namespace, Name: daemonName(uid)}, &appsv1.DaemonSet{})
	return !apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}

// remove requests the removal of everything that carries the domain's label.
func (r *Reconciler) remove(ctx context.Context, uid types.UID) error {
	var templates resourceapi.ResourceClaimTemplateList
	if err := r.client.List(ctx, &templates, client.MatchingFields{byDomain: string(uid)}); err != nil {
		return fmt.Errorf("list the domain's templates: %w", err)
	}
	// The users' first.
	slices.SortStableFunc(templates.Items, func(a, b resourceapi.ResourceClaimTemplate) int {
		return cmp.Compare(rank(a.Namespace == r.settings.Namespace), rank(b.Namespace == r.settings.Namespace))
	})
	for i := range templates.Items {
		if err := r.removeObject(ctx, &templates.Items[i]); err != nil {
			return err
		}
	}
	daemons := &appsv1.DaemonSet{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: r.settings.Namespace, Name: daemonName(uid)}, daemons)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("look up the domain's DaemonSet: %w", err)
	}
	if err == nil {
		if err := r.removeObject(ctx, daemons); err != nil {
			return err
		}
	}
	return r.removeLabels(ctx, uid)
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

func (r *Reconciler) removeObject(ctx context.Context, object client.Object) error {
	if object.GetDeletionTimestamp() != nil {
		return nil
	}
	uid := object.GetUID()
	err := r.client.Delete(ctx, object, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	// A conflict means that another object has the name by now.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %T %s/%s: %w", object, object.GetNamespace(), object.GetName(), err)
	}
	return nil
}

// removeLabels removes the domain's label from its nodes.
func (r *Reconciler) removeLabels(ctx context.Context, uid types.UID) error {
	nodes, _, err := r.observe(ctx, uid)
	if err != nil {
		return err
	}
	path := "/metadata/labels/" + strings.ReplaceAll(v1beta1.LabelComputeDomain, "/", "~1")
	// For a node that has joined another domain since, the test fails, and it keeps its label.
	patch, err := json.Marshal([]map[string]string{
		{"op": "test", "path": path, "value": string(uid)},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("remove the domain's label from its nodes: %w", err)
	}
	var errs []error
	for i := range nodes {
		node := &nodes[i]
		if !labelledWith(uid)(*node) {
			continue // a node with a channel of the domain removes its label itself
		}
		node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		err := r.client.Patch(ctx, node, client.RawPatch(types.JSONPatchType, patch))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			errs = append(errs, fmt.Errorf("remove the domain's label from node %s: %w", node.Name, err))
		}
	}
	return errors.Join(errs...)
}

// labelledWith reports whether a node has the label that brings a daemon of this domain.
func labelledWith(uid types.UID) func(metav1.PartialObjectMetadata) bool {
	return func(node metav1.PartialObjectMetadata) bool {
		return node.Labels[v1beta1.LabelComputeDomain] == string(uid)
	}
}

// ending returns the nodes whose daemon has not ended yet, and when to check again for those that never will.
func (r *Reconciler) ending(ctx context.Context, uid types.UID) (nodes []string, again time.Duration, err error) {
	_, pods, err := r.observe(ctx, uid)
	if err != nil {
		return nil, 0, err
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			left := lostAfter - r.memory.waited(uid, seePod+action(pod.UID), pod.DeletionTimestamp.Time, r.now())
			if left <= 0 {
				klog.FromContext(ctx).Info("Not waiting for an IMEX daemon that does not end", "pod", klog.KObj(&pod), "node", pod.Spec.NodeName)
				continue
			}
			again = soonest(again, left)
		}
		nodes = append(nodes, pod.Spec.NodeName)
	}
	return nodes, again, nil
}
