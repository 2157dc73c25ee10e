package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/authority"
)

const (
	// annotationAuthority on a DaemonSet is the fingerprint of the authority of its daemons' certificates. Daemons with certificates of two
	// authorities refuse each other, so that no certificate of another authority is issued while it is there.
	annotationAuthority = "gpufabric.io/imex-authority"
	// authorityPause is how old the seed may be with which the authorities of domains are compared.
	authorityPause = 5 * time.Minute
)

// Reasons of the condition CertificatesRenewable.
const (
	reasonAuthorityKept    = "AuthorityKept"
	reasonAuthorityChanged = "AuthorityChanged"
	reasonAuthorityMissing = "AuthorityMissing"
)

// knownSeed is the controller's seed as it was read at most authorityPause ago, for the domains of all.
type knownSeed struct {
	mu   sync.Mutex
	seed []byte
	err  error
	at   time.Time
}

// recent returns the seed, or why it could not be read; empty: the Secret has none.
func (k *knownSeed) recent(now time.Time, read func() (*corev1.Secret, error)) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at.IsZero() || now.Sub(k.at) >= authorityPause {
		secret, err := read()
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		k.seed, k.err, k.at = nil, err, now
		if err == nil {
			k.seed = secret.Data[seedKey]
		}
	}
	return k.seed, k.err
}

// set records what was read or written just now.
func (k *knownSeed) set(seed []byte, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seed, k.err, k.at = seed, nil, now
}

// readSecret reads the controller's Secret.
func (r *Reconciler) readSecret(ctx context.Context) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.settings.Namespace, Name: AuthoritySecret}
	if err := r.live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("read Secret %s, which the chart makes with computeDomains.certificates=own: %w", key, err)
	}
	return secret, nil
}

// checkAuthority compares the domain's authority with the controller's seed, and records it on a DaemonSet that lacks it. It returns
// false if no certificate may be issued, and puts the reason into the pass.
func (r *Reconciler) checkAuthority(ctx context.Context, p *pass) (bool, error) {
	p.again = soonest(p.again, authorityPause)
	seed, err := r.known.recent(r.now(), func() (*corev1.Secret, error) { return r.readSecret(ctx) })
	switch {
	case apierrors.IsNotFound(err):
		p.lacksAuthority(reasonAuthorityMissing, fmt.Sprintf("Secret %s/%s does not exist", r.settings.Namespace, AuthoritySecret))
		return false, nil
	case err != nil:
		return false, err
	case len(seed) == 0:
		p.lacksAuthority(reasonAuthorityMissing, fmt.Sprintf("Secret %s/%s has no %s", r.settings.Namespace, AuthoritySecret, seedKey))
		return false, nil
	}
	return r.sameAuthority(ctx, p, seed)
}

// sameAuthority reports whether a seed is that of the domain's authority.
func (r *Reconciler) sameAuthority(ctx context.Context, p *pass, seed []byte) (bool, error) {
	fingerprint, err := authority.Fingerprint(seed, p.domain.UID)
	if err != nil {
		return false, err
	}
	switch p.daemons.Annotations[annotationAuthority] {
	case fingerprint:
		p.authority = &metav1.Condition{Type: v1beta1.ConditionCertificatesRenewable, Status: metav1.ConditionTrue, Reason: reasonAuthorityKept,
			Message: "the certificates of the domain's IMEX daemons are of the controller's authority"}
		return true, nil
	case "":
		before := p.daemons.DeepCopy()
		metav1.SetMetaDataAnnotation(&p.daemons.ObjectMeta, annotationAuthority, fingerprint)
		if err := r.client.Patch(ctx, p.daemons, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("record the authority of DaemonSet %s: %w", p.daemons.Name, err)
		}
		return true, nil
	}
	p.lacksAuthority(reasonAuthorityChanged, fmt.Sprintf("Secret %s/%s has another %s than the one that the domain's certificates are of",
		r.settings.Namespace, AuthoritySecret, seedKey))
	return false, nil
}

// lacksAuthority records in the pass why no certificate can be issued for the domain, and the remedy.
func (p *pass) lacksAuthority(reason, fact string) {
	p.authority = &metav1.Condition{Type: v1beta1.ConditionCertificatesRenewable, Status: metav1.ConditionFalse, Reason: reason,
		Message: fmt.Sprintf("%s. The domain's IMEX daemons keep their certificate, Secret %s, also those that start; it is not renewed, and "+
			"not made again when it is deleted, since daemons of two authorities refuse each other. Restore the earlier Secret; or, when no job "+
			"shares memory, delete DaemonSet %s: the daemons of all nodes then start again with certificates of a new authority",
			fact, p.daemons.Name, p.daemons.Name)}
}

// setAuthority writes to status whether certificates can be issued. A domain that never lacked its authority has no such condition.
func setAuthority(domain *v1beta1.ComputeDomain, condition *metav1.Condition) {
	conditions := &domain.Status.Conditions
	if condition == nil || condition.Status == metav1.ConditionTrue && meta.FindStatusCondition(*conditions, condition.Type) == nil {
		return
	}
	condition.ObservedGeneration = domain.Generation
	meta.SetStatusCondition(conditions, *condition)
}
