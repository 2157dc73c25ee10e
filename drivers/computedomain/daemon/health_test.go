package daemon

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/computedomain/imexd"
	"gpufabric.io/drivers/hardware/imex"
)

func TestProbeAnswersWhenTheDaemonIsReady(t *testing.T) {
	dir := t.TempDir()
	spec, err := imex.NewSpec(dir, filepath.Join(dir, "hosts"), "127.0.0.1", 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	supervisor := imexd.NewSupervisor(nil, spec, func(string, string) {}) // without fabric nothing is started
	server := httptest.NewServer(handler(supervisor, figures(supervisor)))
	defer server.Close()
	get := func(path string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close() //nolint:errcheck // read only
		body := new(strings.Builder)
		if err := response.Write(body); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, body.String()
	}
	began := time.Now()
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "number this node") ||
		time.Since(began) < probeHold {
		t.Errorf("before: %d after %s: %s", code, time.Since(began), body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- supervisor.Run(ctx) }()
	time.AfterFunc(100*time.Millisecond, func() { supervisor.Join(imexd.Group{}) })
	// A waiting probe is answered when the daemon is ready. On a busy machine it may be a later probe.
	for code := 0; code != http.StatusOK; {
		if code, _ = get("/readyz"); time.Since(began) > 2*time.Minute {
			t.Fatalf("not ready after %s: %d", time.Since(began), code)
		}
	}
	guarded := httptest.NewRecorder()
	handler(supervisor, nil).ServeHTTP(guarded, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if guarded.Code != http.StatusNotFound {
		t.Errorf("metrics that are not for everybody: %d %s", guarded.Code, guarded.Body)
	}
	if _, body := get("/metrics"); !strings.Contains(body, "gpufabric_imex_daemon_ready 1") {
		t.Errorf("metrics:\n%s", body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
