package controller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// reasonDropped is the reason of Events about fields of a status that the API server does not keep.
const reasonDropped = "StatusFieldsDropped"

// lackingPause is the time between two writes of a status of which the API server drops fields. A CRD that has the fields again is no
// event of the domain, and the controller may not read CRDs. A write that changes nothing is none to the API server's watches.
const lackingPause = time.Minute

// droppedPause is the time between two such Events of a domain.
const droppedPause = time.Hour

// recall restores the fields that the API server dropped from a domain's status, and returns a copy: from the controller's last write or,
// after a restart, from the annotation of a clique. Users' domains may have any annotation, so their mode is derived (modeHeld).
func (r *Reconciler) recall(domain *v1beta1.ComputeDomain) *v1beta1.ComputeDomainStatus {
	if domain.Status.IMEX == "" {
		if lost := r.memory.lost(domain.UID); lost != nil {
			domain.Status = *lost
		} else if computedomain.CliqueOf(domain, r.settings.Namespace) != "" {
			computedomain.Recall(domain, r.settings.Namespace)
		}
	}
	return domain.Status.DeepCopy()
}

// lacking reports whether the API server returns less of a status than was written.
func lacking(read, known *v1beta1.ComputeDomainStatus) bool {
	return read.IMEX == "" && known.IMEX != ""
}

// pauseLacking is pauseBefore for a domain of whose status the API server drops fields: a change counts where the last write did not
// have it. Without one the status is written again after lackingPause.
func pauseLacking(p *pass) time.Duration {
	if pause, changed := pauseBefore(p.domain.Spec.NumNodes, *p.shown, p.domain.Status); changed {
		return pause
	}
	return lackingPause
}

// keep writes the fields of a status that must not be lost into the domain's annotation, before the status: a controller that ends in
// between has lost none.
func (r *Reconciler) keep(ctx context.Context, p *pass) error {
	if p.domain.Status.IMEX == "" {
		return nil // a domain that is deleted before the first pass
	}
	before := p.domain.DeepCopy()
	changed, err := computedomain.Keep(p.domain, r.settings.Namespace)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The annotation is left as it is")
	}
	if !changed {
		return nil
	}
	return r.writeMetadata(ctx, p, before, "keep the status in an annotation")
}

// checkDropped reports whether the API server has dropped fields of a status, by an Event too, and stores the complete status.
func (r *Reconciler) checkDropped(domain *v1beta1.ComputeDomain, want *v1beta1.ComputeDomainStatus) bool {
	if !lacking(&domain.Status, want) {
		r.memory.lose(domain.UID, nil)
		return false
	}
	r.memory.lose(domain.UID, want)
	domain.Status = *want.DeepCopy() // announce looks at conditions
	if r.memory.atMostEach(domain.UID, reportDropped, droppedPause, r.now()) {
		r.recorder.Event(reference(domain), corev1.EventTypeWarning, reasonDropped,
			"the API server drops fields of the status: the CRD computedomains.resource.nvidia.com has another owner's schema, without "+
				"conditions and channels. The domain is served, its channels are kept in the annotation "+computedomain.AnnotationKept+
				"; helm upgrade of gpufabric brings its schema back")
	}
	return true
}

// modeHeld returns whose daemons serve a user's domain, by the objects that exist for it; empty: there are none. Its status may have lost
// it.
func (r *Reconciler) modeHeld(ctx context.Context, domain *v1beta1.ComputeDomain) (v1beta1.IMEXMode, error) {
	set := &appsv1.DaemonSet{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: r.settings.Namespace, Name: daemonName(domain.UID)}, set)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return "", fmt.Errorf("look for the daemons of ComputeDomain %s: %w", domain.UID, err)
	case err == nil && set.Labels[v1beta1.LabelComputeDomain] == string(domain.UID):
		return v1beta1.IMEXDomain, nil
	}
	return r.channelMode(ctx, domain.UID)
}

// channelMode returns the mode of the clique of which a domain has a channel; empty: it holds none.
func (r *Reconciler) channelMode(ctx context.Context, domain types.UID) (v1beta1.IMEXMode, error) {
	var list v1beta1.ComputeDomainList
	if err := r.client.List(ctx, &list, client.InNamespace(r.settings.Namespace), client.HasLabels{v1beta1.LabelClique}); err != nil {
		return "", fmt.Errorf("look for channels that ComputeDomain %s has: %w", domain, err)
	}
	for i := range list.Items {
		clique := r.memory.newest(&list.Items[i])
		computedomain.Recall(clique, r.settings.Namespace)
		if computedomain.ChannelOf(clique, domain) != nil {
			return clique.Status.IMEX, nil
		}
	}
	return "", nil
}
