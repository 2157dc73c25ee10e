package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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

	"gpufabric.io/drivers/node/httpserver"
)

// cluster accepts two tokens: prometheus may read metrics, a tenant may not. asked counts requests.
func cluster(reviews *int, down *bool) *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*reviews++
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

func TestMetricsAreServedOnlyToAuthorizedClients(t *testing.T) {
	var reviews int
	var down bool
	now := time.Now()
	access := &Access{Client: cluster(&reviews, &down), Now: func() time.Time { return now }}
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
		{"nobody", "", http.StatusUnauthorized},
		{"a forged token", "Bearer forged", http.StatusUnauthorized},
		{"a password", "Basic dG9rZW4=", http.StatusUnauthorized},
		{"an endless token", "Bearer " + strings.Repeat("x", 1<<20), http.StatusUnauthorized},
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
	if reviews != 3 {
		t.Errorf("the API server was asked of tokens %d times, want once for each that could be one", reviews)
	}
	// A removed right ends within a minute. Without the API server, metrics cannot be read.
	now, down = now.Add(2*remembered), true
	if answer := get("Bearer token-of-prometheus"); answer.Code != http.StatusServiceUnavailable {
		t.Errorf("without the API server: %d %s", answer.Code, answer.Body)
	}
}

// The role checks tokens with the client that it prepares claims with.
func TestAccessSurvivesAFloodOfTokens(t *testing.T) {
	var reviews int
	var down bool
	now := time.Now()
	access := &Access{Client: cluster(&reviews, &down), Now: func() time.Time { return now }}
	handler := access.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get := func(from, token string) int {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		request.RemoteAddr = from
		request.Header.Set("Authorization", "Bearer "+token)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		return answer.Code
	}
	const scraper = "10.0.0.9:40000"
	if status := get(scraper, "token-of-prometheus"); status != http.StatusOK {
		t.Fatalf("prometheus: %d", status)
	}
	flood := func(round int) map[int]int {
		reviews = 0
		statuses := map[int]int{}
		for i := range 10_000 {
			statuses[get(fmt.Sprintf("10.0.1.%d:%d", i%4, 1024+i), fmt.Sprintf("flood-%d-%d", round, i))]++ // four pods of a tenant's
		}
		return statuses
	}
	for round := range 3 {
		statuses := flood(round)
		t.Logf("attacker sees: %v", statuses)
		refused, away := statuses[http.StatusUnauthorized], statuses[http.StatusTooManyRequests]
		if reviews > 4*httpserver.TokensAtOnce || refused != reviews || refused+away != 10_000 {
			t.Errorf("the API server is asked %d times, and the attacker told %v", reviews, statuses)
		}
		if status := get(scraper, "token-of-prometheus"); status != http.StatusOK {
			t.Errorf("prometheus, in the flood: %d", status)
		}
		now = now.Add(2 * remembered)
		flood(10 + round)
		if status := get(scraper, "token-of-prometheus"); status != http.StatusOK {
			t.Errorf("prometheus, whose token has to be asked of again: %d", status)
		}
		if status := get("10.0.0.10:40000", fmt.Sprintf("token-of-somebody-%d", round)); status == http.StatusTooManyRequests {
			t.Error("somebody else, with a token that is new, is turned away for the flood")
		}
	}
	if len(access.allowed) > mostTokens || len(access.refused) > mostTokens {
		t.Errorf("%d and %d tokens are stored", len(access.allowed), len(access.refused))
	}
}

func TestGuardedMetricsGoByTLSAndHealthIsOpen(t *testing.T) {
	var reviews int
	var down bool
	address := free(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&Access{Client: cluster(&reviews, &down)}).Serve(ctx, address, prometheus.NewRegistry(), nil)
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
