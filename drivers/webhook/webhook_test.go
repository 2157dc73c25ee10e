package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"gpufabric.io/build/port"
)

// certificate makes a key pair for localhost in dir, and a pool that trusts it.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, data := range map[string][]byte{"tls.crt": crt, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(crt)
	return pool
}

// start runs the role and returns a client function.
func start(t *testing.T) func(group, version, kind, object string) *admissionv1.AdmissionResponse {
	t.Helper()
	dir := t.TempDir()
	pool := certificate(t, dir)
	ports, err := port.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, Options{Address: "127.0.0.1", Port: ports[0], CertDir: dir}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the role ended with %v", err)
		}
	})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	url := fmt.Sprintf("https://127.0.0.1:%d%s", ports[0], Path)
	ask := func(group, version, kind, object string) (*admissionv1.AdmissionResponse, error) {
		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID: "u", Operation: admissionv1.Create, Kind: metav1.GroupVersionKind{Group: group, Version: version, Kind: kind},
				Object: runtime.RawExtension{Raw: []byte(object)},
			},
		})
		if err != nil {
			return nil, err
		}
		answer, err := client.Post(url, "application/json", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		defer func() { _ = answer.Body.Close() }()
		var review admissionv1.AdmissionReview
		err = json.NewDecoder(answer.Body).Decode(&review)
		return review.Response, err
	}
	return func(group, version, kind, object string) *admissionv1.AdmissionResponse {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			answer, err := ask(group, version, kind, object)
			if err == nil {
				return answer
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // there is no event for a listening server
		}
	}
}

func TestReviews(t *testing.T) {
	ask := start(t)
	parameters := func(raw string) string {
		return `{"devices":{"config":[{"opaque":{"driver":"gpu.nvidia.com","parameters":` + raw + `}}]}}`
	}
	good := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`
	bad := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"Magic"}}`
	for _, c := range []struct{ name, group, version, kind, object, want string }{
		{"a claim that is right", "resource.k8s.io", "v1", "ResourceClaim", `{"spec":` + parameters(good) + `}`, ""},
		{"a claim that is wrong", "resource.k8s.io", "v1", "ResourceClaim", `{"spec":` + parameters(bad) + `}`,
			`spec.devices.config[0].opaque.parameters`},
		{"a template that is wrong", "resource.k8s.io", "v1", "ResourceClaimTemplate", `{"spec":{"spec":` + parameters(bad) + `}}`,
			`spec.spec.devices.config[0].opaque.parameters`},
		{"a class that is wrong", "resource.k8s.io", "v1", "DeviceClass",
			`{"spec":{"config":[{"opaque":{"driver":"gpu.nvidia.com","parameters":` + bad + `}}]}}`, `spec.config[0].opaque.parameters`},
		{"a claim without parameters", "resource.k8s.io", "v1", "ResourceClaim",
			`{"spec":{"devices":{"config":[{"opaque":{"driver":"gpu.nvidia.com"}}]}}}`, `not a JSON object`},
		{"a claim of another driver", "resource.k8s.io", "v1", "ResourceClaim",
			`{"spec":{"devices":{"config":[{"opaque":{"driver":"x.example.com","parameters":{}}}]}}}`, ""},
		{"a layout that is wrong", "gpufabric.io", "v1alpha1", "MIGLayout", `{"spec":{"layout":"a","config":{"version":"v1","mig-configs":{}}}}`,
			`spec.config.mig-configs`},
		{"a profile without memory", "gpufabric.io", "v1alpha1", "VGPUProfile", `{"spec":{"mode":"Software"}}`, `spec.memory`},
		{"a pool without a name", "gpufabric.io", "v1alpha1", "RDMAPool", `{"spec":{}}`, `spec.resourceName`},
		{"something that concerns no webhook", "", "v1", "Pod", `{}`, ""},
		{"an object that is none", "resource.k8s.io", "v1", "ResourceClaim", `{"spec":7}`, `cannot unmarshal`},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := ask(c.group, c.version, c.kind, c.object)
			if answer.Allowed != (c.want == "") {
				t.Fatalf("allowed %t: %v", answer.Allowed, answer.Result)
			}
			if c.want != "" && !strings.Contains(answer.Result.Message, c.want) {
				t.Errorf("the refusal %q does not say %q", answer.Result.Message, c.want)
			}
		})
	}
}

// The claim controller removes its finalizer by an update of the claim. If that were refused, a claim from before the webhook could
// never be deleted.
func TestExistingClaimsMayBeUpdatedAndDeleted(t *testing.T) {
	claim := func(metadata, strategy string) string {
		return `{"metadata":` + metadata + `,"spec":{"devices":{"config":[{"opaque":{"driver":"gpu.nvidia.com",` +
			`"parameters":{"apiVersion":"resource.nvidia.com/v1beta1",` +
			`"kind":"GpuConfig","sharing":{"strategy":"` + strategy + `"}}}}]}}}`
	}
	for _, c := range []struct {
		name, before, after string
		allowed             bool
	}{
		{"a finalizer goes", claim(`{"finalizers":["resource.kubernetes.io/delete-protection"]}`, "Magic"), claim(`{}`, "Magic"), true},
		{"a spec that is being deleted", claim(`{}`, "Magic"), claim(`{"deletionTimestamp":"2026-11-22T06:00:00Z"}`, "Tricks"), true},
		{"a spec becomes wrong", claim(`{}`, "MPS"), claim(`{}`, "Magic"), false},
		{"a wrong spec becomes another", claim(`{}`, "Magic"), claim(`{}`, "Tricks"), false},
		{"nothing is known of before", "", claim(`{}`, "Magic"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Update, Kind: metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
				Object: runtime.RawExtension{Raw: []byte(c.after)}, OldObject: runtime.RawExtension{Raw: []byte(c.before)},
			}}
			if answer := (Reviewer{}).Handle(t.Context(), request); answer.Allowed != c.allowed {
				t.Errorf("allowed %t: %v", answer.Allowed, answer.Result)
			}
		})
	}
}
