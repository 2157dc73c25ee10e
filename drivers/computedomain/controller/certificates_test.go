package controller

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
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

// mounts reports whether daemons have a certificate: the Secret's files, and the flag that names them.
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

func TestCertificatesAreRenewedForDaemonsThatStartLater(t *testing.T) {
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

	// The certificates of this domain's daemons are not in any other domain.
	other := newDomain("other", 1)
	other.UID = "other-uid"
	other.CreationTimestamp = metav1.NewTime(c.now)
	c.must(c.Create(t.Context(), other))
	c.settle(other.UID)
	if bytes.Equal(c.secret(other.UID).Data["ca.crt"], renewed.Data["ca.crt"]) {
		t.Error("two domains have one authority")
	}
}

func TestCertificatesDependOnTheFirstDaemon(t *testing.T) {
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

// publicKey is that of a certificate.
func publicKey(t *testing.T, data []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(data)
	if block == nil {
		t.Fatalf("no certificate: %q", data)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate.RawSubjectPublicKeyInfo
}

// The controller may not read the Secret, so it goes by the daemon that does not start without it.
func TestCertificatesAreIssuedAgainWhenADaemonWaits(t *testing.T) {
	c := certified(t)
	d := newDomain("d", 1)
	d.CreationTimestamp = metav1.NewTime(c.now)
	c.must(c.Create(t.Context(), d))
	c.settle(d.UID)
	c.settle(d.UID)
	first := c.secret(d.UID)
	pod := podOn("a", "", starting)
	pod.Namespace, pod.Labels, pod.CreationTimestamp = namespace, domainLabels(d.UID), metav1.NewTime(c.now)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: "ContainerCreating"}}}}
	c.must(c.Create(t.Context(), &pod))
	create := "create *v1.Secret " + daemonName(d.UID)
	attempts := func() int {
		return len(slices.DeleteFunc(slices.Clone(c.writes), func(write string) bool { return write != create }))
	}
	before := attempts()

	result, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if attempts() != before || result.RequeueAfter == 0 || result.RequeueAfter > startPatience {
		t.Errorf("while it starts: %d attempts, and the next look is in %s", attempts()-before, result.RequeueAfter)
	}
	// It waits for something else: the Secret is there, and the attempt is refused.
	c.now = c.now.Add(startPatience)
	_, err = c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if attempts() != before+1 {
		t.Errorf("a daemon has not started for %s: %d attempts", startPatience, attempts()-before)
	}
	if second := c.secret(d.UID); !bytes.Equal(second.Data[corev1.TLSCertKey], first.Data[corev1.TLSCertKey]) {
		t.Error("a certificate that is there was replaced")
	}
	c.must(c.Delete(t.Context(), first))
	for range 2 { // at once is too soon after the last attempt
		result, err = c.reconciler.Reconcile(t.Context(), d.UID)
		if c.must(err); result.RequeueAfter == 0 || result.RequeueAfter > missingPause {
			t.Errorf("the next look is in %s", result.RequeueAfter)
		}
		c.now = c.now.Add(missingPause)
	}
	again := c.secret(d.UID)
	if again == nil || attempts() != before+2 {
		t.Fatalf("it is not made again, or too often: %d attempts", attempts()-before)
	}
	same := bytes.Equal(publicKey(t, again.Data["ca.crt"]), publicKey(t, first.Data["ca.crt"]))
	if !same || !metav1.IsControlledBy(again, c.daemonSet(d.UID)) {
		t.Error("the new certificate is of another authority, or does not go with the daemons")
	}

	// A running daemon has its files, and the controller does not check further.
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	c.must(c.Status().Update(t.Context(), &pod))
	c.must(c.Delete(t.Context(), again))
	before = attempts()
	c.now = c.now.Add(time.Hour)
	c.settle(d.UID)
	if attempts() != before {
		t.Error("a certificate is looked for that no daemon waits for")
	}
}

// TestReconcilerDoesNotIssueCertificatesOfAnotherAuthorityWhenTheSeedIsReplaced: running daemons would refuse those that start with it.
func TestReconcilerDoesNotIssueCertificatesOfAnotherAuthorityWhenTheSeedIsReplaced(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		change       func(*cluster, *corev1.Secret)
	}{
		{"another seed", reasonAuthorityChanged, func(c *cluster, secret *corev1.Secret) {
			secret.Data = map[string][]byte{seedKey: bytes.Repeat([]byte{7}, authority.SeedSize)}
			c.must(c.Update(t.Context(), secret))
		}},
		{"an empty Secret, as another install makes it", reasonAuthorityMissing, func(c *cluster, secret *corev1.Secret) {
			secret.Data = nil
			c.must(c.Update(t.Context(), secret))
		}},
		{"no Secret", reasonAuthorityMissing, func(c *cluster, secret *corev1.Secret) { c.must(c.Delete(t.Context(), secret)) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := certified(t)
			d := newDomain("d", 1)
			d.CreationTimestamp = metav1.NewTime(c.now)
			c.must(c.Create(t.Context(), d))
			c.settle(d.UID)
			c.settle(d.UID)
			first := c.secret(d.UID)
			if c.domainCondition("d") != nil {
				t.Error("a condition of a domain that lacks nothing")
			}
			seed := &corev1.Secret{}
			c.must(c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: AuthoritySecret}, seed))
			earlier := seed.DeepCopy()
			test.change(c, seed)

			c.now = c.now.Add(authorityPause)
			c.settle(d.UID)
			lost := c.domainCondition("d")
			if lost == nil || lost.Status != metav1.ConditionFalse || lost.Reason != test.reason ||
				!strings.Contains(lost.Message, AuthoritySecret) || !strings.Contains(lost.Message, "delete DaemonSet "+daemonName(d.UID)) {
				t.Fatalf("%+v", lost)
			}
			t.Logf("attacker sees: %s", lost.Message)
			// Neither a renewal nor a Secret that is gone gives the domain a second authority.
			c.now = c.now.Add(authority.Renewal)
			c.settle(d.UID)
			if kept := c.secret(d.UID); !bytes.Equal(kept.Data[corev1.TLSCertKey], first.Data[corev1.TLSCertKey]) {
				t.Error("the certificate was replaced")
			}
			pod := podOn("a", "", starting)
			pod.Namespace, pod.Labels, pod.CreationTimestamp = namespace, domainLabels(d.UID), metav1.NewTime(c.now)
			c.must(c.Create(t.Context(), &pod))
			c.must(c.Delete(t.Context(), first))
			c.now = c.now.Add(missingPause)
			c.settle(d.UID)
			if again := c.secret(d.UID); again != nil {
				t.Error("a certificate was made of another authority")
			}

			// With the earlier seed all continues.
			c.must(client.IgnoreNotFound(c.Delete(t.Context(), seed)))
			earlier.ResourceVersion = ""
			c.must(c.Create(t.Context(), earlier))
			c.now = c.now.Add(authorityPause)
			c.settle(d.UID)
			c.settle(d.UID)
			if kept := c.domainCondition("d"); kept.Status != metav1.ConditionTrue || kept.Reason != reasonAuthorityKept {
				t.Errorf("%+v", kept)
			}
			if again := c.secret(d.UID); again == nil || !bytes.Equal(publicKey(t, again.Data["ca.crt"]), publicKey(t, first.Data["ca.crt"])) {
				t.Error("no certificate of the first authority")
			}
		})
	}
}

// TestReconcilerGivesANewSeedToADomainWhoseDaemonSetWasDeleted: the way on where no backup of the seed exists.
func TestReconcilerGivesANewSeedToADomainWhoseDaemonSetWasDeleted(t *testing.T) {
	c := certified(t)
	d := newDomain("d", 1)
	d.CreationTimestamp = metav1.NewTime(c.now)
	c.must(c.Create(t.Context(), d))
	c.settle(d.UID)
	c.settle(d.UID)
	first := c.secret(d.UID)
	seed := &corev1.Secret{}
	c.must(c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: AuthoritySecret}, seed))
	seed.Data = nil
	c.must(c.Update(t.Context(), seed))
	c.now = c.now.Add(authorityPause)
	c.settle(d.UID)
	c.must(c.Delete(t.Context(), c.daemonSet(d.UID)))
	c.now = c.now.Add(2 * lag)
	c.settle(d.UID)
	c.settle(d.UID)
	again, daemons := c.secret(d.UID), c.daemonSet(d.UID)
	if bytes.Equal(publicKey(t, again.Data["ca.crt"]), publicKey(t, first.Data["ca.crt"])) || !metav1.IsControlledBy(again, daemons) {
		t.Error("the new daemons have the earlier authority")
	}
	if kept := c.domainCondition("d"); kept == nil || kept.Reason != reasonAuthorityKept || daemons.Annotations[annotationAuthority] == "" {
		t.Errorf("%+v, %v", kept, daemons.Annotations)
	}
}

// domainCondition is CertificatesRenewable of a domain; nil: it has none.
func (c *cluster) domainCondition(name string) *metav1.Condition {
	c.t.Helper()
	return meta.FindStatusCondition(c.domain(name).Status.Conditions, v1beta1.ConditionCertificatesRenewable)
}

func TestCertificatesNameTheMissingSecret(t *testing.T) {
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
func TestCertificatesAreAcceptedByDaemons(t *testing.T) {
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
	if err := mine.Check(c.now); err == nil || !strings.Contains(err.Error(), "does not belong to an authority") {
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
