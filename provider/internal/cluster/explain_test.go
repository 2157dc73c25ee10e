package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// certificate makes a certificate for 127.0.0.1 that signs itself and is valid in that period.
func certificate(t *testing.T, from, to time.Time) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, string(text)
}

// secure starts a server that presents a certificate.
func secure(t *testing.T, config *tls.Config) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // failed handshakes are the test's
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// TestExplainNamesTheCauseOfAFailedLogin: each error comes from client-go's own connection.
func TestExplainNamesTheCauseOfAFailedLogin(t *testing.T) {
	now := time.Now()
	valid, ca := certificate(t, now.Add(-time.Hour), now.Add(time.Hour))
	old, oldCA := certificate(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
	failing := filepath.Join(t.TempDir(), "login")
	script := []byte("#!/bin/sh\necho 'the session has expired: run sso login' >&2\nexit 3\n")
	if err := os.WriteFile(failing, script, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	exec := func(command string) *Exec {
		return &Exec{APIVersion: "client.authentication.k8s.io/v1", Command: command}
	}
	for name, c := range map[string]struct {
		settings      Settings
		summary       string
		detail, never []string
	}{
		"a server's certificate that has expired": {
			Settings{Host: secure(t, &tls.Config{Certificates: []tls.Certificate{old}}), CA: oldCA}, "Server certificate not valid",
			[]string{"has expired", "clock"}, []string{"tls_server_name", "address that is in the certificate"},
		},
		"a server that demands a client certificate": {
			Settings{Host: secure(t, &tls.Config{Certificates: []tls.Certificate{valid}, ClientAuth: tls.RequireAnyClientCert}), CA: ca},
			"Credentials rejected", []string{"certificate required", "client_certificate"}, []string{"the address is right"},
		},
		"a command that fails": {
			Settings{Host: secure(t, &tls.Config{Certificates: []tls.Certificate{valid}}), CA: ca, Exec: exec(failing)},
			"No credentials", []string{failing, "exit code 3"}, []string{"does not answer", "API server:"},
		},
		"a command that is not installed": {
			Settings{Host: secure(t, &tls.Config{Certificates: []tls.Certificate{valid}}), CA: ca, Exec: exec("gpufabric-no-such-login")},
			"No credentials", []string{"gpufabric-no-such-login"}, []string{"does not answer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewConnection(c.settings).Client(t.Context())
			if err == nil {
				t.Fatal("connected")
			}
			summary, detail := Explain("read x", err)
			if summary != c.summary {
				t.Errorf("%q, want %q: %s", summary, c.summary, detail)
			}
			for _, part := range c.detail {
				if !strings.Contains(detail, part) {
					t.Errorf("%q is not in %q", part, detail)
				}
			}
			for _, part := range c.never {
				if strings.Contains(detail, part) {
					t.Errorf("%q is in %q", part, detail)
				}
			}
		})
	}
}

// TestExplainAdvisesRightsOnlyWhereRightsAreMissing: the API server answers 403 for admission, quota and namespaces that end, too.
func TestExplainAdvisesRightsOnlyWhereRightsAreMissing(t *testing.T) {
	resource := schema.GroupResource{Group: "resource.nvidia.com", Resource: "computedomains"}
	ending := apierrors.NewForbidden(resource, "rack",
		errors.New("unable to create new content in namespace team because it is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace"}}
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden,
		Reason: metav1.StatusReasonForbidden, Message: `admission webhook "validate.kyverno.svc" denied the request: label team is missing`}}
	for name, c := range map[string]struct {
		err    error
		rights bool
		part   string
	}{
		"no right": {apierrors.NewForbidden(resource, "rack",
			errors.New(`User "ci" cannot create resource "computedomains" in API group "resource.nvidia.com" in the namespace "team"`)),
			true, "Role"},
		"rights that the user would grant and lacks": {apierrors.NewForbidden(schema.GroupResource{Resource: "clusterroles"}, "x",
			errors.New(`user "ci" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held`)), true, "Role"},
		"a proxy": {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: "access denied"}}, true, "access denied"},
		"a namespace that ends": {ending, false, "being terminated"},
		"a webhook":             {webhook, false, "label team is missing"},
		"a quota": {apierrors.NewForbidden(resource, "rack", errors.New("exceeded quota: few, requested: count/computedomains=1, used: "+
			"count/computedomains=1, limited: count/computedomains=1")), false, "exceeded quota"},
		"a policy": {apierrors.NewForbidden(resource, "rack", errors.New(`ValidatingAdmissionPolicy 'names' with binding 'names' denied `+
			`request: names begin with the team's`)), false, "names begin"},
	} {
		t.Run(name, func(t *testing.T) {
			summary, detail := Explain("create x", c.err)
			if rights := strings.Contains(detail, "Grant this verb"); rights != c.rights || !strings.Contains(detail, c.part) {
				t.Errorf("%s: %s", summary, detail)
			}
			if (summary == "Not allowed") != c.rights {
				t.Errorf("the summary is %q", summary)
			}
		})
	}
}
