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

func TestWebhookAnswersWithoutInotify(t *testing.T) {
	if !filewatchtest.Spent(t) {
		return
	}
	ask := start(t)
	if answer := ask("resource.k8s.io", "v1", "ResourceClaim", `{"spec":{}}`); !answer.Allowed {
		t.Errorf("got %+v", answer)
	}
	theCertificateIsReplaced(t)
}

func TestWebhookServesReplacedCertificate(t *testing.T) { theCertificateIsReplaced(t) }

func theCertificateIsReplaced(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir)
	served := &keyPair{directory: dir}
	if err := served.read(); err != nil {
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

// TestWebhookServesLaterCertificate starts as on the first install: the kubelet brings the Secret's files once the controller
// has written them. Until then nothing is served, and the role is not ready.
func TestWebhookServesLaterCertificate(t *testing.T) {
	dir := t.TempDir()
	served := &keyPair{directory: dir}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { served.follow(ctx, &filewatch.Watcher{}) })
	if _, err := served.get(nil); err == nil || !strings.Contains(err.Error(), "--cert-dir") || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("got %v, want an error that names the flag and the file", err)
	}
	certificate(t, dir)
	for deadline := time.Now().Add(time.Minute); served.ready() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the certificate is not served")
		}
	}
}
