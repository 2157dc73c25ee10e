package controller

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/authority"
)

const (
	// AuthoritySecret has, under seedKey, what the keys of the domains' authorities are derived from. The chart makes it, empty.
	AuthoritySecret = "gpufabric-imex-authority"
	seedKey         = "seed"

	// annotationRenewal on a DaemonSet says when its daemons' certificate is replaced, and by being there that they have one. So the
	// controller needs no right to read the Secret.
	annotationRenewal = "gpufabric.io/imex-certificate-renewal"

	certificates = "certificates" // the volume
)

// decideCertificates decides whether the domain's daemons know each other by certificates: when the first starts, for all that follow. A
// daemon with certificates and one without do not connect.
func (r *Reconciler) decideCertificates(ctx context.Context, p *pass) error {
	found := &appsv1.DaemonSet{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: r.settings.Namespace, Name: daemonName(p.domain.UID)}, found)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("look up the domain's DaemonSet: %w", err)
	}
	if err == nil {
		_, p.certificates = found.Annotations[annotationRenewal]
		return nil
	}
	if p.certificates = r.settings.Certificates; !p.certificates || r.memory.recently(p.domain.UID, certificates, r.now()) {
		return nil
	}
	// Before the DaemonSet, so that no pod waits for it. keepCertificates writes it again, with its owner.
	secret, err := r.issue(ctx, p)
	if err != nil {
		return err
	}
	if err := r.client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Secret %s: %w", secret.Name, err)
	}
	r.memory.made(p.domain.UID, certificates, r.now())
	return nil
}

// keepCertificates replaces the certificate when its time has come. Daemons that run keep theirs: both are of one authority.
func (r *Reconciler) keepCertificates(ctx context.Context, p *pass) error {
	if !p.certificates || !r.settings.Certificates || p.daemons == nil {
		return nil
	}
	now := r.now()
	if due, err := time.Parse(time.RFC3339, p.daemons.Annotations[annotationRenewal]); err == nil && now.Before(due) {
		p.again = soonest(p.again, due.Sub(now))
		return nil
	}
	const renewed = "renewed " + certificates
	if r.memory.recently(p.domain.UID, renewed, now) {
		p.again = soonest(p.again, lag)
		return nil
	}
	secret, err := r.issue(ctx, p)
	if err != nil {
		return err
	}
	secret.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p.daemons, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	err = r.client.Update(ctx, secret)
	if apierrors.IsNotFound(err) {
		err = r.client.Create(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", secret.Name, err)
	}
	before := p.daemons.DeepCopy()
	metav1.SetMetaDataAnnotation(&p.daemons.ObjectMeta, annotationRenewal, now.Add(authority.Renewal).UTC().Format(time.RFC3339))
	if err := r.client.Patch(ctx, p.daemons, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("note when the certificate of DaemonSet %s is replaced: %w", p.daemons.Name, err)
	}
	r.memory.made(p.domain.UID, renewed, now)
	return nil
}

// issue makes the Secret with a new certificate of the domain.
func (r *Reconciler) issue(ctx context.Context, p *pass) (*corev1.Secret, error) {
	seed, err := r.seed(ctx)
	if err != nil {
		return nil, err
	}
	made := p.domain.CreationTimestamp.Time
	issued, err := authority.Issue(seed, p.domain.UID, made, r.now())
	if err != nil {
		return nil, err
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.settings.Namespace, Name: daemonName(p.domain.UID), Labels: domainLabels(p.domain.UID)},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"ca.crt": issued.Authority, corev1.TLSCertKey: issued.Cert, corev1.TLSPrivateKeyKey: issued.Key,
		},
	}, nil
}

// seed reads the controller's secret, and makes it where there is none. Another controller that makes one at the same time is noticed: one
// of the two writes is refused.
func (r *Reconciler) seed(ctx context.Context) ([]byte, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.settings.Namespace, Name: AuthoritySecret}
	if err := r.live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("read Secret %s, which the chart makes with computeDomains.certificates=own: %w", key, err)
	}
	if seed := secret.Data[seedKey]; len(seed) > 0 {
		return seed, nil
	}
	seed := make([]byte, authority.SeedSize)
	_, _ = rand.Read(seed) // it never fails
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[seedKey] = seed
	if err := r.client.Update(ctx, secret); err != nil {
		return nil, fmt.Errorf("write Secret %s: %w", key, err)
	}
	return seed, nil
}

// certificateVolume mounts the domain's certificate.
func certificateVolume(domain *v1beta1.ComputeDomain) (corev1.Volume, corev1.VolumeMount) {
	mode := int32(0o400)
	return corev1.Volume{Name: certificates, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: daemonName(domain.UID), DefaultMode: &mode},
		}},
		corev1.VolumeMount{Name: certificates, MountPath: computedomain.CertificatesDir, ReadOnly: true}
}
