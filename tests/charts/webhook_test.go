//shows:chart-checks
package charts

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// webhookHost is the name by which the API server calls the webhook, and verifies it.
const webhookHost = "gpufabric-webhook." + namespace + ".svc"

// certificates are what the chart rendered: the webhook's Secret, and the authority that the API server is told.
func certificates(t *testing.T, objects []Object) (secret corev1.Secret, authority []byte) {
	t.Helper()
	for _, object := range objects {
		switch object.GetKind() {
		case "Secret":
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &secret); err != nil {
				t.Fatal(err)
			}
		case "ValidatingWebhookConfiguration":
			var configuration admissionregistrationv1.ValidatingWebhookConfiguration
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &configuration); err != nil {
				t.Fatal(err)
			}
			authority = configuration.Webhooks[0].ClientConfig.CABundle
			for _, webhook := range configuration.Webhooks {
				if !bytes.Equal(webhook.ClientConfig.CABundle, authority) {
					t.Errorf("webhook %s has an authority of its own", webhook.Name)
				}
			}
		}
	}
	return secret, authority
}

func TestTheAPIServerCanVerifyTheWebhook(t *testing.T) {
	secret, authority := certificates(t, renderValues(t, "gpufabric", nil))
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatalf("the API server is told no certificate: %q", authority)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Time{time.Now(), time.Now().AddDate(9, 11, 0)} {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: webhookHost, Roots: roots, CurrentTime: at}); err != nil {
			t.Errorf("in %d: %v", at.Year(), err)
		}
	}
}

func TestAnUpgradeKeepsTheWebhooksCertificateWhileItIsYoung(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, test := range []struct {
		name string
		age  time.Duration
		kept bool
	}{
		{"a day old", 24 * time.Hour, true},
		{"four years old", 4 * year, true},
		{"six years old", 6 * year, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			made := strconv.FormatInt(time.Now().Add(-test.age).Unix(), 10)
			standing := existing("v1", "Secret", namespace, "gpufabric-webhook", nil, map[string]any{"gpufabric.io/made": made})
			standing.Object["data"] = map[string]any{
				"ca.crt": base64.StdEncoding.EncodeToString([]byte("authority")), "tls.crt": base64.StdEncoding.EncodeToString([]byte("certificate")),
				"tls.key": base64.StdEncoding.EncodeToString([]byte("key")),
			}
			objects, err := Render(load(t, "gpufabric"), nil, Cluster{Objects: []unstructured.Unstructured{standing}})
			if err != nil {
				t.Fatal(err)
			}
			secret, authority := certificates(t, objects)
			if kept := string(authority) == "authority" && string(secret.Data["tls.key"]) == "key"; kept != test.kept {
				t.Errorf("kept: %v, want %v", kept, test.kept)
			}
			if sameAge := secret.Annotations["gpufabric.io/made"] == made; sameAge != test.kept {
				t.Errorf("the certificate's age is told as %s", secret.Annotations["gpufabric.io/made"])
			}
		})
	}
}

// TestTheWebhookAnswersWithTheChartsCertificate runs the program with it, and asks it what the API server would.
func TestTheWebhookAnswersWithTheChartsCertificate(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the program; -short does not")
	}
	secret, authority := certificates(t, renderValues(t, "gpufabric", nil))
	dir := t.TempDir()
	for name, content := range secret.Data {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	start(t, buildProgram(t), "/nonexistent", "webhook", "--address=127.0.0.1", fmt.Sprintf("--port=%d", port), "--cert-dir="+dir)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: webhookHost,
		MinVersion: tls.VersionTLS12}}}

	claim := func(parameters string) string {
		return `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"},
			"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
			"config": [{"requests": ["gpu"], "opaque": {"driver": "gpu.nvidia.com", "parameters": ` + parameters + `}}]}}}`
	}
	for _, test := range []struct {
		name, parameters string
		allowed          bool
	}{
		{"a right configuration", `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", ` +
			`"timeSlicingConfig": {"interval": "Long"}}}`, true},
		{"a wrong configuration", `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", ` +
			`"timeSlicingConfig": {"interval": "Longest"}}}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			review := admissionv1.AdmissionReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
				Request: &admissionv1.AdmissionRequest{
					UID: "1", Operation: admissionv1.Create, Kind: metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
					Object: runtime.RawExtension{Raw: []byte(claim(test.parameters))},
				},
			}
			answer := ask(t, client, fmt.Sprintf("https://127.0.0.1:%d/validate", port), review)
			if answer.Response == nil || answer.Response.Allowed != test.allowed {
				t.Errorf("answered %+v", answer.Response)
			}
		})
	}
}

// ask posts a review; the webhook may still be starting.
func ask(t *testing.T, client *http.Client, url string, review admissionv1.AdmissionReview) (answer admissionv1.AdmissionReview) {
	t.Helper()
	body, err := json.Marshal(review)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // nothing tells when another process listens
		response, err := client.Post(url, "application/json", bytes.NewReader(body))
		if err == nil {
			err = json.NewDecoder(response.Body).Decode(&answer)
			_ = response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}
		if time.Now().After(end) || !strings.Contains(err.Error(), "connection refused") {
			t.Fatal(err)
		}
	}
}

// TestOnlyClaimsThatConfigureOurDriversWaitForTheWebhook has the webhook away and its failurePolicy Fail: who waits for it fails.
func TestOnlyClaimsThatConfigureOurDriversWaitForTheWebhook(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	if _, err := newHelm(t, live.config).install("gpufabric", load(t, "gpufabric"),
		map[string]any{"webhook": map[string]any{"failurePolicy": "Fail"}}); err != nil {
		t.Fatal(err)
	}
	claims := live.client.Resource(schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1",
		Resource: "resourceclaims"}).Namespace("default")
	claim := func(driver string) *unstructured.Unstructured {
		made := object(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"},
			"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}}`)
		if driver != "" {
			config := object(`{"requests": ["gpu"], "opaque": {"driver": "` + driver +
				`", "parameters": {"apiVersion": "a/v1", "kind": "K"}}}`).Object
			if err := unstructured.SetNestedSlice(made.Object, []any{config}, "spec", "devices", "config"); err != nil {
				t.Fatal(err)
			}
		}
		return made
	}
	create := func(driver string) error {
		_, err := claims.Create(t.Context(), claim(driver), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// The webhook is in force when a claim that configures a driver of ours fails for it.
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) { // the server says nowhere when it takes a webhook up
		err := create("gpu.nvidia.com")
		if err != nil && strings.Contains(err.Error(), `failed calling webhook "claims.gpufabric.io"`) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("a claim that configures gpu.nvidia.com, with the webhook away: %v", err)
		}
	}
	for _, driver := range []string{"", "dra.example.com"} {
		if err := create(driver); err != nil {
			t.Errorf("a claim that configures %q: %v", driver, err)
		}
	}
}
