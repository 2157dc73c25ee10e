package console

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/fabric/reader"
	"gpufabric.io/drivers/node/httpserver"
)

// A request that announces a body and sends none gets its answer and loses its connection. The page has few connections.
func TestServerClosesARequestWithoutItsBody(t *testing.T) {
	address := serving(t, local())
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n",
		"POST /api/stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
		"PUT / HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
	} {
		connection, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if err := connection.SetDeadline(time.Now().Add(time.Minute)); err != nil { // for a slow machine
			t.Fatal(err)
		}
		if _, err := io.WriteString(connection, head); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(connection)
		if errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(string(answer), "HTTP/1.1 ") {
			t.Errorf("%q: the connection stays: %.100q, %v", head, answer, err)
		}
		t.Logf("attacker sees: %.40q, and the end of the connection", answer)
		_ = connection.Close()
	}
}

// Connections from one address, some more than all that the page has, each kept open after an answer, keep
// neither another's open one nor its next.
func TestPageServesOthersWhileOneAddressOpensManyConnections(t *testing.T) {
	address := strings.TrimPrefix(serving(t, local()), "http://")
	from := func(ip string) net.Conn {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil { // for a slow machine
			t.Fatal(err)
		}
		return c
	}
	asks := func(c net.Conn) {
		t.Helper()
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("another viewer gets no answer: %v", err)
		}
		_ = answer.Body.Close()
	}
	viewer := from("127.0.0.2")
	asks(viewer)
	attackers := make([]net.Conn, maxConns+httpserver.Reserve+4)
	for i := range attackers {
		attackers[i] = from("127.0.0.3")
		_, _ = io.WriteString(attackers[i], "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") // if it is closed already, its read fails below
	}
	asks(viewer)
	asks(from("127.0.0.4"))
	answer, err := io.ReadAll(attackers[httpserver.Reserve]) // the first ones have the places of the machine itself
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the attacker's oldest connection stays: %v", err)
	}
	t.Logf("attacker sees: %.40q, and the end of its oldest connection", answer)
}

// Unknown tokens cost the API server few requests, and do not take a viewer's place.
func TestPageLimitsChecksOfUnknownTokens(t *testing.T) {
	var asked atomic.Int64
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("Authorization") == "Bearer of-alice" {
			_, _ = fmt.Fprint(w,
				`{"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "status": {"userInfo": {"username": "alice"}}}`)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401}`)
	}))
	defer cluster.Close()
	s := newSessions(t.Context(), Settings{Config: &rest.Config{Host: cluster.URL}, Viewers: 1})
	view := func(from, token string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/stream", nil)
		r.RemoteAddr = from
		r.Header.Set("Authorization", "Bearer "+token)
		_, _, status, _ := s.viewer(r)
		return status
	}
	if status := view("10.0.0.9:1", "of-alice"); status != http.StatusOK {
		t.Fatalf("alice: %d", status)
	}
	said := map[int]int{}
	for i := range 2000 {
		said[view("10.0.1.1:1", fmt.Sprintf("bad-%d", i))]++
		said[view("10.0.1.1:1", "bad-0")]++ // one that was refused
	}
	t.Logf("attacker sees: %v", said)
	if n := asked.Load(); n > 2*httpserver.TokensAtOnce {
		t.Errorf("4,000 requests with made-up tokens ask the API server %d times", n)
	}
	if status := view("10.0.1.1:1", "of-alice"); status != http.StatusOK {
		t.Errorf("alice, from the attacker's address: %d", status)
	}
}

func TestServerLimitsViewersOfANamespace(t *testing.T) {
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") {
			_, _ = fmt.Fprintf(w, `{"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "status":
				{"userInfo": {"username": %q}}}`, token)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
	}))
	defer cluster.Close()
	address := serving(t, Settings{Config: &rest.Config{Host: cluster.URL}, Viewers: 4, Options: reader.Options{Agent: "test"}})
	opened := func(token string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/api/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer.StatusCode
	}
	for _, c := range []struct {
		token string
		want  int
	}{
		{"system:serviceaccount:evil:a", http.StatusOK}, {"system:serviceaccount:evil:b", http.StatusOK},
		{"system:serviceaccount:evil:b", http.StatusOK}, {"system:serviceaccount:evil-too:a", http.StatusOK},
		{"system:serviceaccount:evil-too:b", http.StatusOK}, {"system:serviceaccount:evil:c", http.StatusServiceUnavailable},
		{"alice", http.StatusOK}, {"bob", http.StatusOK}, {"alice", http.StatusOK}, {"carol", http.StatusServiceUnavailable},
		{"system:serviceaccount:evil:c", http.StatusServiceUnavailable},
	} {
		if got := opened(c.token); got != c.want {
			t.Errorf("%s: status %d, want %d", c.token, got, c.want)
		}
	}
}

func TestServerLimitsDoctorRequestsOfAViewer(t *testing.T) {
	var q questions
	for i := range 2 * questionsAtOnce {
		err := q.begin(fmt.Sprintf("system:serviceaccount:evil:%d", i))
		if (err != nil) != (i >= questionsAtOnce) {
			t.Errorf("question %d: %v", i, err)
		}
	}
	for _, other := range []string{"alice", "system:serviceaccount:evil-too:a"} {
		if err := q.begin(other); err != nil {
			t.Errorf("%s: %v", other, err)
		}
		q.end(other)
	}
	for i := range questionsAtOnce {
		q.end(fmt.Sprintf("system:serviceaccount:evil:%d", i))
	}
	if len(q.all) > 0 {
		t.Errorf("left: %v", q.all)
	}
}

// A viewer's name, or another object's, leads to no other path of the API server and to no other object.
func TestDoctorRejectsSubjectsWithPaths(t *testing.T) {
	server := apiserver.Start(t)
	address := serving(t, Settings{Config: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: server.CA}},
		Viewers: 1, Options: reader.Options{Agent: "test"}})
	for _, name := range []string{"../../../secrets/x", "..%2f..", "kube-system/../../secrets", "a/b,metadata.namespace=kube-system", "/",
		"a/", "/b", "a/b/c", "\x00", strings.Repeat("a", 317)} {
		for _, kind := range []string{"pod", "claim", "domain", "node", "pool"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/api/doctor", nil)
			if err != nil {
				t.Fatal(err)
			}
			query := r.URL.Query()
			query.Set("kind", kind)
			query.Set("name", name)
			r.URL.RawQuery = query.Encode()
			r.Header.Set("Authorization", "Bearer "+apiserver.AdminToken)
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusNotFound && answer.StatusCode != http.StatusBadRequest {
				t.Errorf("%s %q: %d %s", kind, name, answer.StatusCode, body)
			}
		}
	}
}

func FuzzRequests(f *testing.F) {
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /../server.go HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:8420\r\n\r\n",
		"GET http://evil.example/api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/doctor?kind=pod&name=%00 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n",
		"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n",
		"POST /api/stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx",
		"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /page.css HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			t.Skip("skipped: the server's own reader refuses it")
		}
		answer := httptest.NewRecorder()
		handler(local(), newSessions(t.Context(), local())).ServeHTTP(answer, request)
		switch answer.Code {
		case http.StatusOK, http.StatusPartialContent, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusNotModified,
			http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
			http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusRequestedRangeNotSatisfiable,
			http.StatusMisdirectedRequest:
		default:
			t.Errorf("%q: status %d %s", raw, answer.Code, answer.Body)
		}
		header := answer.Header()
		strict := header.Get("Content-Security-Policy") == policy && header.Get("X-Content-Type-Options") == "nosniff"
		if request.URL.Path != "/healthz" && !strict {
			t.Errorf("%q is answered without the page's policy: %v", raw, header)
		}
		if strings.HasPrefix(request.URL.Path, "/api/") && answer.Code < http.StatusMultipleChoices {
			t.Errorf("%q is answered without a key", raw)
		}
		if to := header.Get("Location"); strings.HasPrefix(to, "//") || strings.Contains(to, ":") {
			t.Errorf("%q leads elsewhere: %q", raw, to)
		}
	})
}
