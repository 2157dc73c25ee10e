package apiproxy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// server is an API server that records its requests, and a proxy to it.
type server struct {
	proxy  *Proxy
	client *http.Client

	mu    sync.Mutex
	asked []string
}

func open(t *testing.T, answer func(http.ResponseWriter, *http.Request)) *server {
	t.Helper()
	s := &server{}
	upstream := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what the client sent before it was cut off
		s.mu.Lock()
		s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(upstream.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: upstream.Certificate().Raw})
	var err error
	if s.proxy, err = Open(upstream.URL, ca, upstream.TLS.Certificates[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.proxy.Close)
	roots := x509.NewCertPool()
	roots.AddCert(upstream.Certificate())
	// On a new connection the client does not retry requests without a body when the connection ends. On a reused connection it
	// would.
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true}}
	return s
}

func (s *server) ask(t *testing.T, method, path, body string, header ...string) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.proxy.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := s.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	content, err := io.ReadAll(response.Body)
	return string(content), err
}

func (s *server) heard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, "; ")
}

func done(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }

// token is a service account's, unsigned.
func token(subject string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return "Bearer " + encode([]byte(`{}`)) + "." + encode([]byte(`{"sub":"`+subject+`"}`)) + ".signature"
}

func TestTapSeesWritesAndCutsThem(t *testing.T) {
	const path, account = "/api/v1/namespaces/n/pods", "system:serviceaccount:n:writer"
	want := Write{User: account, Method: http.MethodPost, Path: path, Body: []byte("body")}
	for name, test := range map[string]struct {
		before, after bool // where the tap cuts
		heard         string
		answered      bool
	}{
		"nowhere":                       {false, false, "POST " + path + " body", true},
		"before the API server hears":   {true, false, "", false},
		"before the client is answered": {false, true, "POST " + path + " body", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, done)
			var seen []Write
			stop := s.proxy.Tap(Tap{
				Before: func(w Write) bool { seen = append(seen, w); return test.before },
				After:  func(w Write) bool { seen = append(seen, w); return test.after },
			})
			answer, err := s.ask(t, http.MethodPost, path, "body", "Authorization", token(account))
			if answered := err == nil && answer == "done"; answered != test.answered {
				t.Errorf("the client got %q, %v; want an answer: %t", answer, err, test.answered)
			}
			if got := s.heard(); got != test.heard {
				t.Errorf("the API server heard %q; want %q", got, test.heard)
			}
			for _, w := range seen {
				if w.User != want.User || w.Method != want.Method || w.Path != want.Path || string(w.Body) != string(want.Body) {
					t.Errorf("the tap saw %+v; want %+v", w, want)
				}
			}
			if len(seen) == 0 {
				t.Error("the tap saw nothing")
			}
			stop()
			if answer, err := s.ask(t, http.MethodPost, path, "more"); err != nil || answer != "done" {
				t.Errorf("after the tap's end the client got %q, %v", answer, err)
			}
		})
	}
}

func TestTapSeesNoReads(t *testing.T) {
	s := open(t, done)
	s.proxy.Tap(Tap{Before: func(w Write) bool { t.Errorf("it saw %s %s", w.Method, w.Path); return true }})
	if answer, err := s.ask(t, http.MethodGet, "/api/v1/pods", ""); err != nil || answer != "done" {
		t.Errorf("the client got %q, %v", answer, err)
	}
}

func TestProxyRequestsWatchesAsJSON(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	for name, test := range map[string]struct{ accept, want string }{
		"either":               {protobuf + ",application/json", "application/json"},
		"nothing but protobuf": {protobuf, protobuf},
	} {
		t.Run(name, func(t *testing.T) {
			var accepted string
			s := open(t, func(w http.ResponseWriter, r *http.Request) {
				accepted = r.Header.Get("Accept")
				done(w, r)
			})
			answer, err := s.ask(t, http.MethodGet, "/api/v1/pods?watch=true", "", "Accept", test.accept)
			if err != nil || answer != "done" || accepted != test.want {
				t.Errorf("the API server was asked for %q and the client got %q, %v; want %q", accepted, answer, err, test.want)
			}
		})
	}
}

func TestProxyForwardsARefusedWatch(t *testing.T) {
	s := open(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "too old", http.StatusGone) })
	if answer, err := s.ask(t, http.MethodGet, "/api/v1/pods?watch=1", ""); err != nil || !strings.Contains(answer, "too old") {
		t.Errorf("the client got %q, %v", answer, err)
	}
}

func TestProxyTakesTheRequesterFromTheToken(t *testing.T) {
	for name, test := range map[string]struct{ authorization, want string }{
		"a service account":      {token("system:serviceaccount:a:b"), "system:serviceaccount:a:b"},
		"a token without parts":  {"Bearer secret", ""},
		"one that is no base64":  {"Bearer a.!.c", ""},
		"one without a subject":  {"Bearer e30.e30.x", ""},
		"nobody who says a name": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", test.authorization)
			if got := user(r); got != test.want {
				t.Errorf("%q; want %q", got, test.want)
			}
		})
	}
}

func TestProxyRejectsAnInvalidAuthority(t *testing.T) {
	if p, err := Open("https://127.0.0.1:1", []byte("nothing"), tls.Certificate{}); err == nil {
		p.Close()
		t.Error("a proxy was opened; want the reason why not")
	}
}
