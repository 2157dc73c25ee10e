package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// owners are the kinds that a domain may go with, by the word in its annotation. The controller reads one of these objects, and no list.
var owners = map[string]schema.GroupVersionKind{ //nolint:gochecknoglobals // a table
	"Job":             {Group: "batch", Version: "v1", Kind: "Job"},
	"StatefulSet":     {Group: "apps", Version: "v1", Kind: "StatefulSet"},
	"JobSet":          {Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"},
	"LeaderWorkerSet": {Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"},
	"MPIJob":          {Group: "kubeflow.org", Version: "v2beta1", Kind: "MPIJob"},
}

// OwnerDefinition is the name of the CustomResourceDefinition of an owner's kind; empty: Kubernetes has the kind itself.
func OwnerDefinition(kind string) string {
	gvk, known := owners[kind]
	if !known || !strings.Contains(gvk.Group, ".") {
		return ""
	}
	return strings.ToLower(kind) + "s." + gvk.Group
}

// reasonOwner is the reason of the Event on a domain whose annotation does not name a workload that it could go with.
const reasonOwner = "OwnerNotUsable"

// OwnerKinds are the kinds that a domain may go with, sorted.
func OwnerKinds() []string { return slices.Sorted(maps.Keys(owners)) }

// How long an owner that does not exist yet is left alone: as long as half the domain's age, within these bounds. Workloads are not
// watched, since the controller would have to read all of them.
const (
	ownerSoonest = time.Second
	ownerLatest  = time.Minute
)

// ensureOwner makes the workload that a domain's annotation names the domain's owner, so that Kubernetes' garbage collector deletes the
// domain with it. The workload is of the domain's own namespace.
func (r *Reconciler) ensureOwner(ctx context.Context, p *pass) error {
	word := p.domain.Annotations[v1beta1.AnnotationOwner]
	if word == "" {
		return nil
	}
	kind, name, _ := strings.Cut(word, "/")
	if slices.ContainsFunc(p.domain.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == kind && o.Name == name }) {
		return nil
	}
	gvk, known := owners[kind]
	if !known || name == "" || !slices.Contains(r.settings.Owners, kind) {
		r.refuseOwner(p, fmt.Sprintf("it takes KIND/NAME with the kinds that computeDomains.owners of the chart lists (%s)",
			listedOwners(r.settings.Owners)))
		return nil
	}
	owner := &metav1.PartialObjectMetadata{}
	owner.SetGroupVersionKind(gvk)
	err := r.live.Get(ctx, client.ObjectKey{Namespace: p.domain.Namespace, Name: name}, owner)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		age := r.now().Sub(p.domain.CreationTimestamp.Time)
		p.again = soonest(p.again, min(max(age/2, ownerSoonest), ownerLatest))
		return nil
	case err != nil:
		// The domain itself works without it.
		r.refuseOwner(p, fmt.Sprintf("that %s cannot be read: %v", kind, err))
		p.again = soonest(p.again, ownerLatest)
		return nil
	}
	before, status := p.domain.DeepCopy(), p.domain.Status.DeepCopy()
	p.domain.OwnerReferences = append(p.domain.OwnerReferences, metav1.OwnerReference{
		APIVersion: gvk.GroupVersion().String(), Kind: kind, Name: name, UID: owner.UID,
	})
	if err := r.client.Patch(ctx, p.domain, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("make %s the owner: %w", word, err)
	}
	p.domain.Status = *status
	r.memory.wrote(p.domain)
	return nil
}

// refuseOwner reports why the domain has no owner, once for each owner that its annotation names in turn.
func (r *Reconciler) refuseOwner(p *pass, why string) {
	word := p.domain.Annotations[v1beta1.AnnotationOwner]
	if r.memory.refuses(p.domain.UID, word) {
		r.recorder.Event(reference(p.domain), corev1.EventTypeWarning, reasonOwner,
			fmt.Sprintf("the annotation %s is %.100q: %s; the domain stays until somebody deletes it", v1beta1.AnnotationOwner, word, why))
	}
}

func listedOwners(kinds []string) string {
	if len(kinds) == 0 {
		return "none"
	}
	return strings.Join(kinds, ", ")
}
