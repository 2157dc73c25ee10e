package charts

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// webhookHost is the name by which the API server calls the webhook, and verifies it.
const webhookHost = "gpufabric-webhook." + namespace + ".svc"

// TestChartRendersSameObjectsTwice renders twice, as a GitOps controller does every few minutes. Each difference would be rolled
// out each time.
func TestChartRendersSameObjectsTwice(t *testing.T) {
	for _, values := range []map[string]any{nil, everything(), {"webhook": map[string]any{"certManager": on()}}} {
		first := renderValues(t, "gpufabric", values)
		again, err := Render(load(t, "gpufabric"), values, Cluster{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("values %v:\n%s", values, diff)
		}
		for _, object := range first {
			for _, secret := range []string{"PRIVATE KEY", "tls.key:", "caBundle:", "LS0tLS1"} { // LS0tLS1 is ----- in base64
				if strings.Contains(object.YAML, secret) {
					t.Errorf("%s has %s, which then stands in Helm's history:\n%s", object.Template, secret, object.YAML)
				}
			}
		}
	}
}

func TestChartUsesCertManagerOnRequest(t *testing.T) {
	for _, test := range []struct {
		name    string
		issuer  map[string]any
		made    []string
		issuers map[string]any
	}{
		{"an issuer of its own", nil, []string{"Certificate gpufabric-webhook", "Certificate gpufabric-webhook-authority",
			"Issuer gpufabric-webhook", "Issuer gpufabric-webhook-authority"}, map[string]any{
			"gpufabric-webhook":           map[string]any{"name": "gpufabric-webhook", "kind": "Issuer"},
			"gpufabric-webhook-authority": map[string]any{"name": "gpufabric-webhook-authority", "kind": "Issuer"}}},
		{"the cluster's issuer", map[string]any{"name": "corporate", "kind": "ClusterIssuer"}, []string{"Certificate gpufabric-webhook"},
			map[string]any{"gpufabric-webhook": map[string]any{"name": "corporate", "kind": "ClusterIssuer"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			manager := map[string]any{"enabled": true}
			if test.issuer != nil {
				manager["issuer"] = test.issuer
			}
			var made []string
			for _, object := range renderValues(t, "gpufabric", map[string]any{"webhook": map[string]any{"certManager": manager}}) {
				switch {
				case object.GetAPIVersion() == "cert-manager.io/v1":
					made = append(made, object.GetKind()+" "+object.GetName())
					if issuer, _, _ := unstructured.NestedMap(object.Object, "spec", "issuerRef"); object.GetKind() == "Certificate" &&
						!cmp.Equal(issuer, test.issuers[object.GetName()]) {
						t.Errorf("the certificate %s is of issuer %v", object.GetName(), issuer)
					}
				case object.GetKind() == "Secret":
					t.Errorf("the chart makes Secret %s, which is cert-manager's", object.GetName())
				case object.GetKind() == "ValidatingWebhookConfiguration":
					if from := object.GetAnnotations()["cert-manager.io/inject-ca-from"]; from != namespace+"/gpufabric-webhook" {
						t.Errorf("caBundle comes from %q", from)
					}
				}
				if strings.Contains(object.YAML, "--webhook-secret") || strings.Contains(object.YAML, "gpufabric-webhook-certificate]") {
					t.Errorf("%s: the controller keeps a certificate too", object.Template)
				}
			}
			slices.Sort(made)
			if diff := cmp.Diff(test.made, made); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWebhookServesTLS runs the program with a certificate, and sends it what the API server would send.
func TestWebhookServesTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the program; -short does not")
	}
	dir := t.TempDir()
	authority := selfSigned(t, dir)
	port := freePort(t)
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
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // no event shows when another process listens
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

// TestWebhookReceivesOnlyClaimsThatConfigureOwnDrivers makes requests while the webhook is away. With failurePolicy Fail a
// request that waits for it fails; with Ignore none does.
func TestWebhookReceivesOnlyClaimsThatConfigureOwnDrivers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	tool := newHelmInMemory(t, live.config)
	if _, err := tool.install("gpufabric", load(t, "gpufabric"),
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
	// The webhook is in force once it makes a claim fail that configures one of our drivers.
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // the server says nowhere when it takes a webhook up
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

	// With Ignore no request fails. The plugin checks the claim in prepare.
	if _, err := tool.upgrade("gpufabric", load(t, "gpufabric"),
		map[string]any{"webhook": map[string]any{"failurePolicy": "Ignore"}}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := create("gpu.nvidia.com")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with failurePolicy Ignore: %v", err)
		}
	}
}
