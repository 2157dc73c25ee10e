package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/mode"
)

const (
	// importersPatience is how long a domain that is being deleted waits for the pods that use it. Somebody who deletes a job and its
	// domain together gives the job's pods their grace period, 30 s by default.
	importersPatience = 45 * time.Second
	// importersInterval is how often a waiting domain looks for such pods. Claims are not watched: that would be all claims of the cluster.
	importersInterval = time.Second
)

// awaitImporters delays a deletion while pods use the domain: the end of a node's IMEX daemon takes the memory that they share, and with
// it the job. It returns when to look again. Zero means that nothing uses the domain, or that it has waited long enough.
func (r *Reconciler) awaitImporters(ctx context.Context, domain *v1beta1.ComputeDomain) (time.Duration, error) {
	left := importersPatience - r.deletedFor(domain)
	if left <= -lostAfter {
		return 0, nil // it has waited, and the Event was made
	}
	pods, err := r.importers(ctx, domain)
	if err != nil || len(pods) == 0 {
		return 0, err
	}
	if left > 0 {
		message := fmt.Sprintf("waiting for %d %s to end: %s; in %s their shared memory is taken from them",
			len(pods), plural(len(pods), "pod that uses the domain", "pods that use the domain"), listed(pods), left.Round(time.Second))
		return min(left, importersInterval), r.reportDeletion(ctx, domain, message)
	}
	ofClique := computedomain.CliqueOf(domain, r.settings.Namespace) != ""
	if !mode.Of(domain.Status.IMEX).Daemons(ofClique) {
		return 0, nil // the daemons run on, and the domain's pods keep their shared memory
	}
	if r.memory.once(domain.UID, reportDeletedUnder) {
		message := fmt.Sprintf("the domain was deleted %s ago, and its IMEX daemons end under %s: "+
			"memory that these share across nodes is gone, and they have to be started again", importersPatience, listed(pods))
		r.recorder.Event(reference(domain), corev1.EventTypeWarning, "DeletedUnderPods", message)
	}
	return 0, nil
}

// deletedFor returns how long ago a domain was deleted.
func (r *Reconciler) deletedFor(domain *v1beta1.ComputeDomain) time.Duration {
	return r.memory.waited(domain.UID, seeDeletion, domain.DeletionTimestamp.Time, r.now())
}

// importers returns the pods for which a claim of the domain's channel is reserved. For the domain of a clique it returns the domains
// that hold its channels.
func (r *Reconciler) importers(ctx context.Context, domain *v1beta1.ComputeDomain) ([]string, error) {
	if computedomain.CliqueOf(domain, r.settings.Namespace) != "" {
		var domains []string
		for _, channel := range domain.Status.Channels {
			domains = append(domains, "those of ComputeDomain "+channel.Namespace+"/"+channel.Name)
		}
		return domains, nil
	}
	// A list of before the deletion may lack a claim, and one of a second ago is good enough for a domain that waits.
	now := r.now()
	notBefore := r.memory.deletingSince(domain.UID, now)
	if waited := now.Add(-importersInterval / 2); waited.After(notBefore) {
		notBefore = waited
	}
	return r.consumers.of(ctx, domain, notBefore)
}

// reportDeletion writes the reason of a deletion's wait into the status, once the wait is longer than tellAfter.
func (r *Reconciler) reportDeletion(ctx context.Context, domain *v1beta1.ComputeDomain, message string) error {
	if r.deletedFor(domain) < reportDeletionAfter {
		return nil
	}
	_, err := r.writeStatus(ctx, r.failing(domain, &metav1.Condition{
		Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonDeleting, Message: message,
	}), domain.Status.DeepCopy())
	return err
}

// removeWorkloadTemplates removes the templates that users name, so that no further pod joins a domain that is being deleted.
func (r *Reconciler) removeWorkloadTemplates(ctx context.Context, domain *v1beta1.ComputeDomain) error {
	var templates resourceapi.ResourceClaimTemplateList
	if err := r.client.List(ctx, &templates, client.InNamespace(domain.Namespace),
		client.MatchingFields{byDomain: string(domain.UID)}); err != nil {
		return fmt.Errorf("list the domain's templates: %w", err)
	}
	for i := range templates.Items {
		if templates.Items[i].Namespace == r.settings.Namespace && templates.Items[i].Name == daemonName(domain.UID) {
			continue // a daemon that has to start again needs it
		}
		if err := r.removeObject(ctx, &templates.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// holdForImporters is the first step of a deletion. done: the next step may follow.
func (r *Reconciler) holdForImporters(ctx context.Context, domain *v1beta1.ComputeDomain) (result ctrl.Result, done bool, err error) {
	again, err := r.awaitImporters(ctx, domain)
	if err != nil || again == 0 {
		return ctrl.Result{}, err == nil, err
	}
	return ctrl.Result{RequeueAfter: again}, false, r.removeWorkloadTemplates(ctx, domain)
}
