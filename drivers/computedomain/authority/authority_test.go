package authority

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/computedomain"
)

func issued(t *testing.T, seed byte, domain types.UID, now time.Time) (Issued, *x509.Certificate) {
	t.Helper()
	made := time.Unix(1_800_000_000, 0)
	one, err := Issue(bytes.Repeat([]byte{seed}, SeedSize), domain, made, now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(one.Cert, one.Key)
	if err != nil {
		t.Fatal(err)
	}
	return one, pair.Leaf
}

func TestCertificateBelongsToItsDomainWhenRenewed(t *testing.T) {
	began := time.Unix(1_800_000_000, 0)
	first, leaf := issued(t, 1, "a", began)
	accepts := func(authority Issued, leaf *x509.Certificate, domain types.UID, at time.Time) error {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(authority.Authority) {
			t.Fatal("no authority")
		}
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: computedomain.CertificateName(domain), CurrentTime: at,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	for year := range 9 {
		now := began.Add(time.Duration(year) * Renewal)
		again, renewed := issued(t, 1, "a", now)
		if bytes.Equal(again.Key, first.Key) {
			t.Error("a renewed certificate has the old key")
		}
		if err := accepts(first, renewed, "a", now); err != nil {
			t.Errorf("a daemon that started first, of one that starts in year %d: %v", year, err)
		}
		if err := accepts(again, leaf, "a", now); err != nil {
			t.Errorf("a daemon that starts in year %d, of the first: %v", year, err)
		}
	}
	if _, renewed := issued(t, 1, "a", began.Add(30*Renewal)); accepts(first, renewed, "a", began.Add(30*Renewal)) != nil {
		t.Error("a domain outlives its authority")
	}
	_, other := issued(t, 1, "b", began)
	if accepts(first, other, "b", began) == nil || accepts(first, other, "a", began) == nil {
		t.Error("another domain's certificate is accepted")
	}
	if _, other := issued(t, 2, "a", began); accepts(first, other, "a", began) == nil {
		t.Error("a certificate from another secret is accepted")
	}
	if accepts(first, leaf, "b", began) == nil {
		t.Error("the certificate has another domain's name")
	}
}

// TestCertificateIsValidOnNodesBehindTheController: the controller's clock may be ahead of a node's.
func TestCertificateIsValidOnNodesBehindTheController(t *testing.T) {
	made := time.Unix(1_800_000_000, 0)
	for _, ahead := range []time.Duration{time.Hour, 24 * time.Hour} {
		if _, leaf := issued(t, 1, "a", made.Add(ahead)); leaf.NotBefore.After(made) {
			t.Errorf("a controller whose clock is %s ahead issues a certificate that begins %s later", ahead, leaf.NotBefore.Sub(made))
		}
	}
	if _, leaf := issued(t, 1, "a", made.Add(-time.Hour)); leaf.NotBefore.After(made.Add(-time.Hour)) {
		t.Errorf("one whose clock is an hour behind issues one that begins at %s", leaf.NotBefore)
	}
}

func TestCertificateNeedsASecretAndADomain(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		seed   int
		domain types.UID
	}{"no secret": {0, "a"}, "a short secret": {SeedSize - 1, "a"}, "no domain": {SeedSize, ""}} {
		if _, err := Issue(make([]byte, c.seed), c.domain, now, now); err == nil {
			t.Errorf("%s: it is issued", name)
		}
	}
}
