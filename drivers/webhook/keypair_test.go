package webhook

import (
	"context"
	"crypto/x509"
	"strings"
	"sync"
	"testing"
	"time"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

func TestTheWebhookAnswersWhereNoInotifyInstanceIsToBeHad(t *testing.T) {
	if !filewatchtest.Spent(t) {
		return
	}
	ask := start(t)
	if answer := ask("resource.k8s.io", "v1", "ResourceClaim", `{"spec":{}}`); !answer.Allowed {
		t.Errorf("got %+v", answer)
	}
	theCertificateIsReplaced(t)
}

func TestACertificateThatIsReplacedIsServed(t *testing.T) { theCertificateIsReplaced(t) }

func theCertificateIsReplaced(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir)
	served, err := readKeyPair(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { served.follow(ctx, &filewatch.Watcher{}) })
	pool := certificate(t, dir)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		pair, _ := served.get(nil)
		if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err == nil {
			if _, err = leaf.Verify(x509.VerifyOptions{Roots: pool}); err == nil {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the first certificate is still served")
		}
	}
}

func TestACertificateThatIsMissingIsNamed(t *testing.T) {
	err := Run(t.Context(), Options{CertDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "--cert-dir") || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("got %v, want an error that names the flag and the file", err)
	}
}
