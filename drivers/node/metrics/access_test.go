package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cluster knows the tokens of prometheus, who may read metrics, and of a tenant, who may not. asked counts questions.
func cluster(asked *int, down *bool) *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*asked++
		if *down {
			return true, nil, errors.New("the API server is away")
		}
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if user, ok := strings.CutPrefix(review.Spec.Token, "token-of-"); ok {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: user}}
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		attributes := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && attributes.Path == "/metrics" && attributes.Verb == "get"
		return true, review, nil
	})
	return client
}

//shows:tenants gpu-metrics
func TestMetricsAreForThoseWhomTheClusterAllowsThem(t *testing.T) {
	var asked int
	var down bool
	now := time.Now()
	access := &Access{Client: cluster(&asked, &down), Now: func() time.Time { return now }}
	handler := access.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret_pod_names 1") }))
	get := func(header string) *httptest.ResponseRecorder {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		if header != "" {
			request.Header.Set("Authorization", header)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		return answer
	}
	for _, c := range []struct {
		name, header string
		status       int
	}{
		{"prometheus", "Bearer token-of-prometheus", http.StatusOK},
		{"prometheus again", "bearer token-of-prometheus", http.StatusOK},
		//attack:metrics-anonymous A tenant's pod reads the names of other tenants' pods off the metrics, without a token
		{"nobody", "", http.StatusUnauthorized},
		//attack:metrics-forged A tenant's pod reads metrics with a token that it made up
		{"a forged token", "Bearer forged", http.StatusUnauthorized},
		{"a password", "Basic dG9rZW4=", http.StatusUnauthorized},
		{"an endless token", "Bearer " + strings.Repeat("x", 1<<20), http.StatusUnauthorized},
		//attack:metrics-tenant A tenant's pod reads metrics with its own service account's token
		{"a tenant", "Bearer token-of-tenant", http.StatusForbidden},
	} {
		answer := get(c.header)
		if answer.Code != c.status || c.status != http.StatusOK && strings.Contains(answer.Body.String(), "secret_pod_names") {
			t.Errorf("%s: %d %s, want %d", c.name, answer.Code, answer.Body, c.status)
		}
		if c.status != http.StatusOK {
			t.Logf("attacker sees: %d %s", answer.Code, strings.TrimSpace(answer.Body.String()))
		}
	}
	if asked != 3 {
		t.Errorf("the API server was asked of tokens %d times, want once for each that could be one", asked)
	}
	// Whoever sends new tokens all day takes no memory.
	for i := range 3 * mostTokens {
		get(fmt.Sprintf("Bearer flood-%d", i))
	}
	if len(access.known) > mostTokens {
		t.Errorf("%d tokens are remembered, want %d at most", len(access.known), mostTokens)
	}
	// A right that is taken away ends within a minute, and without the API server nobody reads.
	now, down = now.Add(2*remembered), true
	if answer := get("Bearer token-of-prometheus"); answer.Code != http.StatusServiceUnavailable {
		t.Errorf("without the API server: %d %s", answer.Code, answer.Body)
	}
}

func TestGuardedMetricsGoByTLSAndHealthIsOpen(t *testing.T) {
	var asked int
	var down bool
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&Access{Client: cluster(&asked, &down)}).Serve(ctx, address, prometheus.NewRegistry(), nil)
	}()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/metrics": http.StatusUnauthorized} {
		for {
			answer, err := client.Get("https://" + address + path)
			if err != nil {
				if t.Context().Err() != nil {
					t.Fatal(err)
				}
				continue // it does not listen yet
			}
			_ = answer.Body.Close()
			if answer.StatusCode != want {
				t.Errorf("%s: %d, want %d", path, answer.StatusCode, want)
			}
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
