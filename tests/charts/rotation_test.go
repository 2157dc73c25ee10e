package charts

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"gpufabric.io/build/port"
	"gpufabric.io/build/short"
)

const webhookSecret = "gpufabric-webhook-certificate"

// certificate makes a certificate for webhookHost and 127.0.0.1 and its key, as PEM.
func certificate(t *testing.T, from, until time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{webhookHost}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: from, NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	written, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: written})
}

// selfSigned writes a certificate to dir, and returns it.
func selfSigned(t *testing.T, dir string) []byte {
	t.Helper()
	cert, key := certificate(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert
}

// mountSecret writes a Secret's two files to dir as the kubelet does: some time after a change, and both at once, by replacing
// a link. It ends with the test.
func mountSecret(t *testing.T, admin kubernetes.Interface, dir string, late time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	events, err := admin.CoreV1().Secrets(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + webhookSecret})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	bring := func(number int, secret *corev1.Secret) error {
		version := fmt.Sprintf("..%d", number)
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			return err
		}
		for _, name := range []string{"tls.crt", "tls.key"} {
			if err := os.WriteFile(filepath.Join(dir, version, name), secret.Data[name], 0o600); err != nil {
				return err
			}
		}
		if err := os.Symlink(version, filepath.Join(dir, "..new")); err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data"))
	}
	group.Go(func() {
		defer events.Stop()
		number, before := 0, []byte(nil)
		for event := range events.ResultChan() {
			secret, ok := event.Object.(*corev1.Secret)
			if !ok || len(secret.Data["tls.crt"]) == 0 || bytes.Equal(secret.Data["tls.crt"], before) {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(late):
			}
			number, before = number+1, secret.Data["tls.crt"]
			if err := bring(number, secret); err != nil {
				t.Errorf("play the kubelet: %v", err)
				return
			}
		}
	})
}

// TestControllerRotatesCertificateWithoutRefusingWrites sets the webhook's failurePolicy to Fail, and writes without a pause
// while the controller replaces the certificate twice. Each write waits for the webhook. The test begins the first replacement by giving
// the controller the next certificate, and that one is old enough to be replaced as soon as it is served.
func TestControllerRotatesCertificateWithoutRefusingWrites(t *testing.T) {
	short.Skip(t, "make charts without SHORT=1")
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver and builds the program; -short asks for neither")
	}
	// Certificates live for hours here, so that none ends however slow the machine is. Within the overlap the API server has to read its
	// webhooks' configuration.
	const life, overlap, keep, rotations = 3 * time.Hour, 15 * time.Second, 30 * time.Minute, 2
	program, live := buildProgram(t), startServer(t)
	tool, values := newHelmInMemory(t, live.config), map[string]any{"webhook": map[string]any{"failurePolicy": "Fail"}}
	if _, err := tool.install("gpufabric", load(t, "gpufabric"), values); err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	start(t, program, kubeconfig(t, live.config, admin, "gpufabric-controller"), "controller", "--image=ghcr.io/gpufabric/gpufabric:"+
		load(t, "gpufabric").Metadata.AppVersion, "--webhook-secret="+webhookSecret, "--webhook-host="+webhookHost, "--webhook-host=127.0.0.1",
		"--webhook-certificate-life="+life.String(), "--webhook-certificate-overlap="+overlap.String(),
		"--webhook-certificate-keep="+keep.String())
	configurations := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	known := func(event watch.Event) bool {
		one, ok := event.Object.(*admissionregistrationv1.ValidatingWebhookConfiguration)
		return ok && len(one.Webhooks[0].ClientConfig.CABundle) > 0
	}
	await(t, "the webhook's certificate", configurations.Watch, known, metav1.ListOptions{FieldSelector: "metadata.name=gpufabric-webhook"})
	if _, err := tool.upgrade("gpufabric", load(t, "gpufabric"), values); err != nil {
		t.Fatal(err)
	}
	secret, err := admin.CoreV1().Secrets(namespace).Get(t.Context(), webhookSecret, metav1.GetOptions{})
	if err != nil || len(secret.Data["tls.key"]) == 0 {
		t.Fatalf("helm upgrade took the certificate away: %v, %v", secret, err)
	}
	configuration, err := configurations.Get(t.Context(), "gpufabric-webhook", metav1.GetOptions{})
	if err != nil || !known(watch.Event{Object: configuration}) {
		t.Fatalf("helm upgrade took the webhook's authority away: %v, %v", configuration, err)
	}

	dir := t.TempDir()
	mountSecret(t, admin, dir, time.Second)
	port := freePort(t)
	start(t, program, "/nonexistent", "webhook", "--address=127.0.0.1", fmt.Sprintf("--port=%d", port), "--cert-dir="+dir)
	live.callAt(t, admin, fmt.Sprintf("https://127.0.0.1:%d/validate", port))
	stop := live.writeClaims(t)
	cert, key := certificate(t, time.Now().Add(-life), time.Now().Add(life/6))
	next, err := json.Marshal(map[string]any{"data": map[string][]byte{"next.crt": cert, "next.key": key}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Secrets(namespace).Patch(t.Context(), webhookSecret, types.MergePatchType, next,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	await(t, "rotations", admin.CoreV1().Secrets(namespace).Watch, func(event watch.Event) bool {
		if one, ok := event.Object.(*corev1.Secret); ok {
			served[string(one.Data["tls.crt"])] = true
		}
		return len(served) > rotations
	}, metav1.ListOptions{FieldSelector: "metadata.name=" + webhookSecret})
	written := stop()
	t.Logf("%d writes while %d certificates were served", written, len(served))
	if written < 100 {
		t.Errorf("%d writes are no load", written)
	}
}

// writeClaims writes claims that the webhook looks at, from when it answers until stop, which returns how many were written. The test fails
// for each that is refused.
func (s *server) writeClaims(t *testing.T) (stop func() int64) {
	t.Helper()
	write := func(ctx context.Context) error {
		claim := object(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"generateName": "c-", "namespace": "default"},
			"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}], "config": [{"requests": ["gpu"],
			"opaque": {"driver": "gpu.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}}}]}}}`)
		_, err := s.client.Resource(claimResource).Namespace("default").Create(ctx, claim, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for end := time.Now().Add(5 * time.Minute); write(t.Context()) != nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the webhook does not answer: %v", write(t.Context()))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var written atomic.Int64
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := write(ctx); err == nil {
					written.Add(1)
				} else if ctx.Err() == nil {
					t.Errorf("refused: %v", err)
				}
				time.Sleep(100 * time.Millisecond) // up to 40 writes a second leave the processors to the programs that are tested
			}
		})
	}
	stop = func() int64 {
		cancel()
		group.Wait()
		return written.Load()
	}
	t.Cleanup(func() { stop() })
	return stop
}

// freePort is a TCP port of 127.0.0.1 without a listener.
func freePort(t *testing.T) int {
	t.Helper()
	free, err := port.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return free[0]
}

// callAt has the API server call the webhook at a URL: no Service leads anywhere here.
func (s *server) callAt(t *testing.T, admin kubernetes.Interface, url string) {
	t.Helper()
	configurations := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	for {
		configuration, err := configurations.Get(t.Context(), "gpufabric-webhook", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range configuration.Webhooks {
			configuration.Webhooks[i].ClientConfig.Service, configuration.Webhooks[i].ClientConfig.URL = nil, &url
			// A busy machine may need more than the chart's three seconds, and that is not tested here.
			configuration.Webhooks[i].TimeoutSeconds = ptr.To[int32](30)
		}
		if _, err := configurations.Update(t.Context(), configuration, metav1.UpdateOptions{}); err == nil {
			return
		} else if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
}
