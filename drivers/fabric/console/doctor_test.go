package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/fabric/reader"
)

func TestDoctorUsesTheViewersRights(t *testing.T) {
	server := apiserver.Start(t)
	address := serving(t, Settings{Config: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: server.CA},
		// Credentials of the server itself, which no viewer may borrow.
		BearerToken: apiserver.AdminToken}, Viewers: 1, Options: reader.Options{Agent: "test"}})
	const lacks = "cannot list resource"
	for _, c := range []struct {
		name, token, kind, subject string
		status                     int
		says, saysNot              string
	}{
		{"an administrator", apiserver.AdminToken, "install", "", http.StatusOK, `"code":"NotInstalled"`, lacks},
		{"a viewer without rights", apiserver.ViewerToken, "install", "", http.StatusOK, lacks, "NotInstalled"},
		{"no token", "", "install", "", http.StatusUnauthorized, `"wants":"token"`, lacks},
		{"a wrong token", "wrong", "install", "", http.StatusUnauthorized, `"wants":"token"`, lacks},
		{"a node that is not there", apiserver.AdminToken, "node", "n7", http.StatusNotFound, "there is no node n7", lacks},
		{"a domain that is not there", apiserver.AdminToken, "domain", "a/b", http.StatusNotFound, "domain a/b", lacks},
		{"a hostile name", apiserver.AdminToken, "node", "<script>alert(1)</script>\x1b[2J", http.StatusNotFound, `\u003cscript\u003e`,
			"<script>"},
		{"no kind of ours", apiserver.AdminToken, "secret", "a", http.StatusBadRequest, "allowed are pod", lacks},
		{"no name", apiserver.AdminToken, "node", "", http.StatusBadRequest, "name is", lacks},
		{"a name without end", apiserver.AdminToken, "node", strings.Repeat("n", 2000), http.StatusBadRequest, "2000 bytes", lacks},
	} {
		t.Run(c.name, func(t *testing.T) {
			query := url.Values{"kind": {c.kind}, "name": {c.subject}}
			status, header, body := ask(t, http.MethodGet, address+"/api/doctor?"+query.Encode(), func(r *http.Request) {
				r.Header.Set("Authorization", "Bearer "+c.token)
			})
			if status != c.status || !strings.Contains(body, c.says) || strings.Contains(body, c.saysNot) || strings.Contains(body, server.URL) {
				t.Errorf("%d %s", status, body)
			}
			if !json.Valid([]byte(body)) || header.Get("Content-Type") != "application/json" || header.Get("Cache-Control") != "no-store" {
				t.Errorf("not what a page reads: %v", header)
			}
		})
	}
}

func TestDoctorNamesAnAbsentAPIServer(t *testing.T) {
	address := serving(t, local())
	status, _, body := ask(t, http.MethodGet, address+"/api/doctor?kind=install", func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+key)
	})
	if status != http.StatusBadGateway || !strings.Contains(body, "apiserversilent") || strings.Contains(body, "127.0.0.1") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, _ := ask(t, http.MethodGet, address+"/api/doctor?kind=install", nil); status != http.StatusUnauthorized {
		t.Errorf("without the key: %d", status)
	}
}
