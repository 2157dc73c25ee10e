//go:build certmanager

package charts

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/toolchain"
)

const authoritySecret = "gpufabric-webhook-authority"

var certificateResource = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}

// TestCertManagerRenewsCertificateWithoutRefusingWrites has cert-manager's own controllers make the webhook's certificate, as the
// chart asks them, and renew it in every way there is, while claims are written that wait for the webhook (failurePolicy Fail).
func TestCertManagerRenewsCertificateWithoutRefusingWrites(t *testing.T) {
	live := startServer(t)
	live.installCertManagersKinds(t)
	values := map[string]any{"webhook": map[string]any{"failurePolicy": "Fail", "certManager": on()}}
	live.installChart(t, values)
	// No Service leads anywhere here: the API server calls the webhook by its address.
	address := []byte(`{"spec": {"ipAddresses": ["127.0.0.1"]}}`)
	if _, err := live.client.Resource(certificateResource).Namespace(namespace).Patch(t.Context(), "gpufabric-webhook",
		"application/merge-patch+json", address, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	programs, err := toolchain.Ensure(t.Context(), "cert-manager-controller", "cert-manager-cainjector")
	if err != nil {
		t.Fatal(err)
	}
	config := kubeconfigOf(t, live.config, live.config.BearerToken)
	for _, program := range programs {
		start(t, program, config, "--kubeconfig="+config)
	}
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	live.awaitSecret(t, admin, webhookSecret, nil)

	// The kubelet takes up to a minute and a half; what it is late by makes no difference as long as it is later than cainjector.
	dir, port := t.TempDir(), freePort(t)
	mountSecret(t, admin, dir, 5*time.Second)
	start(t, buildProgram(t), "/nonexistent", "webhook", "--address=127.0.0.1", fmt.Sprintf("--port=%d", port), "--cert-dir="+dir)
	live.callAt(t, admin, fmt.Sprintf("https://127.0.0.1:%d/validate", port))
	stop := live.writeClaims(t)
	for _, step := range []struct {
		name   string
		secret string
		renew  func()
	}{
		{"the certificate is renewed", webhookSecret, func() { live.renew(t, "gpufabric-webhook") }},
		{"somebody deletes its Secret", webhookSecret, func() {
			if err := admin.CoreV1().Secrets(namespace).Delete(t.Context(), webhookSecret, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		{"the authority is renewed", authoritySecret, func() { live.renew(t, authoritySecret) }},
		{"the certificate is renewed by the new authority", webhookSecret, func() { live.renew(t, "gpufabric-webhook") }},
	} {
		before, err := admin.CoreV1().Secrets(namespace).Get(t.Context(), step.secret, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		step.renew()
		after := live.awaitSecret(t, admin, step.secret, before.Data["tls.crt"])
		if same := bytes.Equal(before.Data["tls.key"], after.Data["tls.key"]); same != (step.secret == authoritySecret) {
			t.Errorf("%s: its key stayed: %t; an authority keeps its key, so that what it signed is still trusted, and a certificate has a new one",
				step.name, same)
		}
		if step.secret == webhookSecret {
			awaitServed(t, port, after.Data["tls.crt"])
		}
		t.Logf("%s: done", step.name)
	}
	if written := stop(); written < 100 {
		t.Errorf("%d writes are no load", written)
	} else {
		t.Logf("%d writes, none refused", written)
	}
}

// installCertManagersKinds makes the CRDs that lie in cert-manager's module.
func (s *server) installCertManagersKinds(t *testing.T) {
	t.Helper()
	module, err := toolchain.ModuleDirectory(t.Context(), "cert-manager-controller")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(module, "deploy/crds/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in %s: %v", module, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kind := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &kind.Object); err != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		if _, err := s.client.Resource(crdResource).Create(t.Context(), kind, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		await(t, kind.GetName(), s.client.Resource(crdResource).Watch, func(event watch.Event) bool {
			made, ok := event.Object.(*unstructured.Unstructured)
			return ok && conditionOf(made, "Established") == "True"
		}, metav1.ListOptions{FieldSelector: "metadata.name=" + kind.GetName()})
	}
}

func conditionOf(object *unstructured.Unstructured, kind string) any {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		if one, ok := entry.(map[string]any); ok && one["type"] == kind {
			return one["status"]
		}
	}
	return nil
}

// awaitSecret returns a Secret with another certificate than before.
func (s *server) awaitSecret(t *testing.T, admin kubernetes.Interface, name string, before []byte) *corev1.Secret {
	t.Helper()
	var found *corev1.Secret
	await(t, "another certificate in "+name, admin.CoreV1().Secrets(namespace).Watch, func(event watch.Event) bool {
		one, ok := event.Object.(*corev1.Secret)
		if !ok || event.Type == watch.Deleted || len(one.Data["tls.crt"]) == 0 || bytes.Equal(one.Data["tls.crt"], before) {
			return false
		}
		found = one
		return true
	}, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	return found
}

// renew has cert-manager renew a certificate now, as its command-line tool does.
func (s *server) renew(t *testing.T, name string) {
	t.Helper()
	certificates := s.client.Resource(certificateResource).Namespace(namespace)
	for {
		one, err := certificates.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conditions, _, _ := unstructured.NestedSlice(one.Object, "status", "conditions")
		conditions = append(conditions, map[string]any{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
			"message": "a test asks for it", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339), "observedGeneration": one.GetGeneration()})
		if err := unstructured.SetNestedSlice(one.Object, conditions, "status", "conditions"); err != nil {
			t.Fatal(err)
		}
		if _, err = certificates.UpdateStatus(t.Context(), one, metav1.UpdateOptions{}); err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
}

// awaitServed returns when the webhook serves a certificate (PEM). It says nowhere when it begins to.
func awaitServed(t *testing.T, port int, certificate []byte) {
	t.Helper()
	wanted, _ := pem.Decode(certificate)
	if wanted == nil {
		t.Fatalf("no certificate: %s", certificate)
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // it is compared
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		connection, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			served := connection.(*tls.Conn).ConnectionState().PeerCertificates
			_ = connection.Close()
			if len(served) > 0 && bytes.Equal(served[0].Raw, wanted.Bytes) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the webhook does not serve the certificate of its Secret: %v", err)
		}
	}
}
