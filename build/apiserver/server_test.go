package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// status is the status of the server's response for a path to the user of a token; 0: there was none.
func status(t *testing.T, s *Server, path, token string) int {
	t.Helper()
	answer := get(t, s, path, token)
	if answer == nil {
		return 0
	}
	_ = answer.Body.Close() // not read
	return answer.StatusCode
}

// body is the body of that response.
func body(t *testing.T, s *Server, path, token string) string {
	t.Helper()
	answer := get(t, s, path, token)
	if answer == nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }() // only read
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// get returns the server's response, nil where no server answers.
func get(t *testing.T, s *Server, path, token string) *http.Response {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.CA) {
		t.Fatalf("no certificate in %q", s.CA)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return nil
	}
	return answer
}

func TestServerHasTwoUsersAndKeepsItsData(t *testing.T) {
	s := Start(t)
	const namespaces = "/api/v1/namespaces/kube-system"
	if got := status(t, s, namespaces, AdminToken); got != http.StatusOK {
		t.Errorf("the administrator is answered %d", got)
	}
	if got := status(t, s, namespaces, ViewerToken); got != http.StatusForbidden {
		t.Errorf("a user without rights is answered %d", got)
	}
	if got := status(t, s, namespaces, "another"); got != http.StatusUnauthorized {
		t.Errorf("a stranger is answered %d", got)
	}
	s.Pause()
	if got := status(t, s, "/readyz", AdminToken); got != 0 {
		t.Errorf("a paused server answers %d", got)
	}
	s.Resume(t)
	if got := status(t, s, namespaces, AdminToken); got != http.StatusOK {
		t.Errorf("after a pause the administrator is answered %d", got)
	}
}

func TestServerReportsEmulatedVersion(t *testing.T) {
	programs, missing := Installed()
	if testing.Short() || missing != "" {
		t.Skip("starts etcd and kube-apiserver: " + missing)
	}
	s := programs.Start(t, Emulating("1.35"))
	if got := body(t, s, "/version", AdminToken); !strings.Contains(got, `"emulationMinor": "35"`) {
		t.Errorf("/version is %s, want emulationMinor 35", got)
	}
	if got := status(t, s, "/apis/resource.k8s.io/v1/resourceslices", AdminToken); got != http.StatusOK {
		t.Errorf("resource.k8s.io/v1, stable since 1.34, answers %d", got)
	}
}

func TestServerTakesProgramsFromTheEnvironmentFirst(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("GPUFABRIC_CACHE", t.TempDir())
	assets, own := t.TempDir(), filepath.Join(t.TempDir(), "mine")
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	if _, missing := Installed(); missing == "" {
		t.Error("programs were found where there are none")
	}
	for _, path := range []string{filepath.Join(assets, "etcd"), own} {
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := Find("etcd", "TEST_ASSET_ETCD"); got != filepath.Join(assets, "etcd") {
		t.Errorf("found %q", got)
	}
	t.Setenv("TEST_ASSET_ETCD", own)
	if got := Find("etcd", "TEST_ASSET_ETCD"); got != own {
		t.Errorf("found %q", got)
	}
}
