package controller

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
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
	// AuthoritySecret has, under seedKey, the seed from which the keys of the domains' authorities are derived. The chart makes it,
	// empty.
	AuthoritySecret = "gpufabric-imex-authority"
	seedKey         = "seed"

	// annotationRenewal on a DaemonSet is the time when its daemons' certificate is replaced; its presence means that they have
	// one. So the controller does not need a right to read the Secret.
	annotationRenewal = "gpufabric.io/imex-certificate-renewal"

	certificates = "certificates" // the volume

	// startPatience is the wait for a daemon's container to start before its certificate is considered deleted. The controller has
	// no right to read it, so it creates it, which fails if it exists; missingPause is the time between two attempts. Running
	// daemons do not need it: they have its files.
	startPatience = 20 * time.Second
	missingPause  = time.Minute
)

// decideCertificates decides whether the domain's daemons use certificates: when the first starts, for all that follow. A daemon with
// certificates and one without do not connect.
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
	err = r.client.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = r.replaceOrphan(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", secret.Name, err)
	}
	r.memory.made(p.domain.UID, certificates, r.now())
	return nil
}

// replaceOrphan writes the certificate of a domain whose DaemonSet was deleted: the earlier one may be of another authority. Daemons that
// the cache does not have yet keep theirs.
func (r *Reconciler) replaceOrphan(ctx context.Context, secret *corev1.Secret) error {
	err := r.live.Get(ctx, client.ObjectKeyFromObject(secret), &appsv1.DaemonSet{})
	if apierrors.IsNotFound(err) {
		return r.client.Update(ctx, secret)
	}
	return err
}

// keepCertificates replaces the certificate when its time has come. Daemons that run keep theirs: both are of one authority.
func (r *Reconciler) keepCertificates(ctx context.Context, p *pass) error {
	if !p.certificates || !r.settings.Certificates || p.daemons == nil {
		return nil
	}
	if same, err := r.checkAuthority(ctx, p); err != nil || !same {
		return err
	}
	now := r.now()
	if due, err := time.Parse(time.RFC3339, p.daemons.Annotations[annotationRenewal]); err == nil && now.Before(due) {
		p.again = soonest(p.again, due.Sub(now))
		return r.replaceMissing(ctx, p)
	}
	const renewed = "renewed " + certificates
	if r.memory.recently(p.domain.UID, renewed, now) {
		p.again = soonest(p.again, lag)
		return nil
	}
	secret, err := r.issueOwned(ctx, p)
	if err != nil || secret == nil {
		return err
	}
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
		return fmt.Errorf("record the time at which the certificate of DaemonSet %s is replaced: %w", p.daemons.Name, err)
	}
	r.memory.made(p.domain.UID, renewed, now)
	return nil
}

// replaceMissing makes a deleted certificate again when a daemon waits for it.
func (r *Reconciler) replaceMissing(ctx context.Context, p *pass) error {
	_, pods, err := r.observe(ctx, p.domain.UID)
	if err != nil {
		return err
	}
	now := r.now()
	for i := range pods {
		if pods[i].DeletionTimestamp != nil || pods[i].Spec.NodeName == "" || hasStarted(&pods[i]) {
			continue
		}
		if left := startPatience - r.memory.waited(p.domain.UID, seePod+action(pods[i].UID), pods[i].CreationTimestamp.Time, now); left > 0 {
			p.again = soonest(p.again, left)
			continue
		}
		p.again = soonest(p.again, missingPause)
		if !r.memory.atMostEach(p.domain.UID, lookForCertificates, missingPause, now) {
			return nil
		}
		secret, err := r.issueOwned(ctx, p)
		if err != nil || secret == nil {
			return err
		}
		if err := r.client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Secret %s again, which the IMEX daemon of node %s may wait for: %w", secret.Name, pods[i].Spec.NodeName, err)
		}
		return nil
	}
	return nil
}

// hasStarted reports whether the container of a daemon's pod has ever had its volumes.
func hasStarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool {
		return status.State.Waiting == nil || status.RestartCount > 0
	})
}

// issueOwned is issue, and the Secret goes with the DaemonSet. It returns nil where the seed is that of another authority by now.
func (r *Reconciler) issueOwned(ctx context.Context, p *pass) (*corev1.Secret, error) {
	secret, err := r.issue(ctx, p)
	if err != nil {
		return nil, err
	}
	if have := p.daemons.Annotations[annotationAuthority]; have != "" && have != p.issued {
		p.lacksAuthority(reasonAuthorityChanged, fmt.Sprintf("Secret %s/%s has another %s than the one that the domain's certificates are of",
			r.settings.Namespace, AuthoritySecret, seedKey))
		return nil, nil //nolint:nilnil // the reason is in the pass
	}
	secret.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p.daemons, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	return secret, nil
}

// issue makes the Secret with a new certificate of the domain.
func (r *Reconciler) issue(ctx context.Context, p *pass) (*corev1.Secret, error) {
	seed, err := r.seed(ctx)
	if err != nil {
		return nil, err
	}
	if p.issued, err = authority.Fingerprint(seed, p.domain.UID); err != nil {
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

// seed reads the controller's secret, and makes it where there is none. Another controller that makes one at the same time is
// noticed: one of the two writes is refused.
func (r *Reconciler) seed(ctx context.Context) ([]byte, error) {
	secret, err := r.readSecret(ctx)
	if err != nil {
		return nil, err
	}
	if seed := secret.Data[seedKey]; len(seed) > 0 {
		r.known.set(seed, r.now())
		return seed, nil
	}
	seed := make([]byte, authority.SeedSize)
	_, _ = rand.Read(seed) // it never fails
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[seedKey] = seed
	if err := r.client.Update(ctx, secret); err != nil {
		return nil, fmt.Errorf("write Secret %s/%s: %w", r.settings.Namespace, AuthoritySecret, err)
	}
	r.known.set(seed, r.now())
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
