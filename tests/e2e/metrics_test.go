package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// testGuardedMetrics reads the metrics of four roles without a token, with one without the right and with one that has it. The pods are
// ready, so the kubelet's own probes have passed by TLS.
func testGuardedMetrics(t *testing.T, e *environment) {
	for _, name := range []string{"scraper", "stranger"} {
		e.kubectl(t, "create", "serviceaccount", name)
		t.Cleanup(func() { e.kubectlCleanup(t, "delete", "serviceaccount", name) })
	}
	e.kubectl(t, "create", "clusterrolebinding", "scraper", "--clusterrole=gpufabric-metrics-reader", "--serviceaccount=default:scraper")
	t.Cleanup(func() { e.kubectlCleanup(t, "delete", "clusterrolebinding", "scraper") })
	scraper, stranger := e.kubectl(t, "create", "token", "scraper"), e.kubectl(t, "create", "token", "stranger")
	for _, component := range []string{"compute-domain-plugin", "controller", "gpu-plugin", "rdma-plugin"} {
		pod := e.kubectl(t, "--namespace", "gpufabric-system", "get", "pods", "--selector", "app.kubernetes.io/component="+component, "--output",
			"name")
		pod, _, _ = strings.Cut(strings.TrimSpace(pod), "\n")
		url := strings.Replace(e.forward(t, "gpufabric-system", pod, "metrics-tls"), "http:", "https:", 1) + "/metrics"
		for _, reader := range []struct {
			name, token string
			status      int
		}{
			{"nobody", "", http.StatusUnauthorized},
			{"a token of nobody", "no-token-of-this-cluster", http.StatusUnauthorized},
			{"an account without the right", stranger, http.StatusForbidden},
			{"an account with the right", scraper, http.StatusOK},
		} {
			// The right is taken up within a second.
			e.eventually(t, fmt.Sprintf("%s to answer %s with status %d", pod, reader.name, reader.status),
				func(ctx context.Context) (bool, string, error) {
					status, body, err := scrape(ctx, url, reader.token)
					figures := strings.Contains(body, "# HELP ")
					if figures && reader.token != scraper {
						t.Errorf("%s gives %s figures", pod, reader.name)
					}
					return status == reader.status && figures == (status == http.StatusOK), fmt.Sprint(status, " ", body), err
				})
		}
	}
}

// scrape reads metrics by TLS, from a role whose certificate is of its own making.
func scrape(ctx context.Context, url, token string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	//nolint:gosec // The certificate is made at each start, and the way leads through the API server.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close() //nolint:errcheck // read
	read, err := io.ReadAll(io.LimitReader(response.Body, pageMemory))
	return response.StatusCode, string(read), err
}
