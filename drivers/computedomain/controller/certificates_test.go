package controller

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/authority"
	"gpufabric.io/drivers/hardware/imex"
)

// secret is the certificate of a domain's daemons; nil: there is none.
func (c *cluster) secret(domain types.UID) *corev1.Secret {
	c.t.Helper()
	secret := &corev1.Secret{}
	err := c.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(domain)}, secret)
	c.must(client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return secret
}

func (c *cluster) daemonSet(domain types.UID) *appsv1.DaemonSet {
	c.t.Helper()
	daemons := &appsv1.DaemonSet{}
	c.must(c.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(domain)}, daemons))
	return daemons
}

// mounts says whether daemons have a certificate: the Secret's files, and the flag that names them.
func mounts(daemons *appsv1.DaemonSet) bool {
	pod := daemons.Spec.Template.Spec
	volume := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == daemons.Name })
	return volume && slices.Contains(pod.Containers[0].Args, "--certificates="+computedomain.CertificatesDir)
}

// certified is a cluster whose controller issues certificates.
func certified(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: AuthoritySecret}})
	c.reconciler.settings.Certificates = true
	return c
}

//shows:cd-certificates
func TestADomainsDaemonsGetACertificateThatIsRenewedForThoseThatStartLater(t *testing.T) {
	c := certified(t)
	d := newDomain("d", 1)
	d.CreationTimestamp = metav1.NewTime(c.now)
	c.must(c.Create(t.Context(), d))
	c.settle(d.UID)
	secrets := slices.Index(c.writes, "create *v1.Secret "+daemonName(d.UID))
	if secrets < 0 || secrets > slices.Index(c.writes, "create *v1.DaemonSet "+daemonName(d.UID)) {
		t.Errorf("a pod would wait for the certificate: %v", c.writes)
	}
	c.settle(d.UID)
	daemons, secret := c.daemonSet(d.UID), c.secret(d.UID)
	if !mounts(daemons) || secret == nil || secret.Type != corev1.SecretTypeTLS || !metav1.IsControlledBy(secret, daemons) {
		t.Fatalf("daemons %+v, Secret %+v", daemons.Spec.Template.Spec.Volumes, secret)
	}
	template := daemons.Spec.Template.Labels[labelTemplate]
	written := len(c.writes)
	for range 3 {
		c.settle(d.UID)
	}
	if len(c.writes) != written {
		t.Errorf("a certificate that is new is written again: %v", c.writes[written:])
	}

	c.now = c.now.Add(authority.Renewal)
	c.settle(d.UID)
	renewed := c.secret(d.UID)
	if bytes.Equal(renewed.Data[corev1.TLSCertKey], secret.Data[corev1.TLSCertKey]) {
		t.Error("after a year it is the same certificate")
	}
	if c.daemonSet(d.UID).Spec.Template.Labels[labelTemplate] != template {
		t.Error("the daemons' template has changed, though they start as before")
	}

	// What the daemons of this domain have, none of another does.
	other := newDomain("other", 1)
	other.UID = "other-uid"
	other.CreationTimestamp = metav1.NewTime(c.now)
	c.must(c.Create(t.Context(), other))
	c.settle(other.UID)
	if bytes.Equal(c.secret(other.UID).Data["ca.crt"], renewed.Data["ca.crt"]) {
		t.Error("two domains have one authority")
	}
}

//shows:cd-certificates
func TestTheFirstDaemonDecidesWhetherADomainHasCertificates(t *testing.T) {
	c := certified(t)
	c.reconciler.settings.Certificates = false
	plain := newDomain("plain", 1)
	c.must(c.Create(t.Context(), plain))
	c.settle(plain.UID)
	c.reconciler.settings.Certificates = true
	c.settle(plain.UID)
	if mounts(c.daemonSet(plain.UID)) || c.secret(plain.UID) != nil {
		t.Error("a domain whose daemons have no certificates gets daemons that do not connect with them")
	}
	secure := newDomain("secure", 1)
	secure.UID = "secure-uid"
	c.must(c.Create(t.Context(), secure))
	c.settle(secure.UID)
	c.reconciler.settings.Certificates = false
	c.reconciler.settings.Image = "newer"
	c.now = c.now.Add(2 * lag)
	c.settle(secure.UID)
	if daemons := c.daemonSet(secure.UID); !mounts(daemons) || daemons.Spec.Template.Spec.Containers[0].Image != "newer" {
		t.Error("a domain whose daemons have certificates gets daemons that do not connect with them, or stays behind")
	}
}

func TestWithoutItsSecretTheControllerSaysWhatIsMissing(t *testing.T) {
	c := newCluster(t)
	c.reconciler.settings.Certificates = true
	d := newDomain("d", 1)
	c.must(c.Create(t.Context(), d))
	if _, err := c.reconciler.Reconcile(t.Context(), d.UID); err == nil {
		t.Error("a domain without its certificate")
	}
	if problem := c.condition("d", "Ready"); problem.Reason != reasonFailed || !strings.Contains(problem.Message, AuthoritySecret) {
		t.Errorf("%+v", problem)
	}
}

// The daemon looks at what it is given before nvidia-imex does, which would start and stay alone.
func TestWhatTheControllerIssuesADaemonAccepts(t *testing.T) {
	c := certified(t)
	d := newDomain("d", 1)
	d.CreationTimestamp = metav1.NewTime(c.now)
	c.must(c.Create(t.Context(), d))
	c.settle(d.UID)
	dir := t.TempDir()
	for file, data := range c.secret(d.UID).Data {
		write(t, dir, file, data)
	}
	mine := imex.Certificates{Dir: dir, Name: computedomain.CertificateName(d.UID)}
	if err := mine.Check(c.now); err != nil {
		t.Error(err)
	}
	if err := mine.Check(c.now.Add(2 * authority.Life)); err == nil {
		t.Error("a certificate that has expired")
	}
	if err := (imex.Certificates{Dir: dir, Name: "other"}).Check(c.now); err == nil {
		t.Error("another domain's")
	}
	write(t, dir, "ca.crt", c.secret(d.UID).Data[corev1.TLSCertKey])
	if err := mine.Check(c.now); err == nil || !strings.Contains(err.Error(), "is not an authority's") {
		t.Errorf("an authority that is none: %v", err)
	}
	write(t, dir, "ca.crt", nil)
	if err := mine.Check(c.now); err == nil {
		t.Error("no authority")
	}
}

func write(t *testing.T, dir, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
		t.Fatal(err)
	}
}
