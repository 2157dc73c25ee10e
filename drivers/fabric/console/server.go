package console

import (
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/fabric/reader"
)

// Settings define the page's contents and its viewers.
type Settings struct {
	// Config reaches the API server. With a Key it has the viewer's credentials; without one it has none, and requests bring their own.
	Config *rest.Config
	// Key is the key that a request must have; empty: a bearer token of the cluster.
	Key string
	// Hosts are names that browsers may use for the server, besides the loopback's. A page of another name that resolves to this
	// address (DNS rebinding) is refused.
	Hosts []string
	// Viewers is the maximum number of viewers at once.
	Viewers int
	Options reader.Options
}

//go:embed page
var page embed.FS

// policy is the page's Content-Security-Policy: nothing inline, nothing from elsewhere, and no string becomes markup or a script.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func handler(settings Settings, sessions *sessions) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the directory is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.HandleFunc("/api/stream", sessions.stream)
	mux.HandleFunc("/api/doctor", sessions.doctor)
	guarded := guard(settings.Hosts, mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" { // the kubelet uses the pod's address
			_, _ = w.Write([]byte("ok\n"))
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

// guard accepts only requests of a browser that shows the page.
func guard(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("Cache-Control", "no-store")
		switch site := r.Header.Get("Sec-Fetch-Site"); {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("method %s: only GET is allowed", r.Method))
		case !allowed(r.Host, hosts):
			refuse(w, http.StatusMisdirectedRequest, errors.New("the page is not served under this host name: allow it with --host"))
		case strings.HasPrefix(r.URL.Path, "/api/") && site != "" && site != "same-origin":
			refuse(w, http.StatusForbidden, errors.New("request from another site; only the page itself may send it"))
		case hasBody(r):
			refuse(w, http.StatusRequestEntityTooLarge, errors.New("requests of the page have no body"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func hasBody(r *http.Request) bool { return r.ContentLength != 0 || len(r.TransferEncoding) > 0 }

// allowed reports whether a request's Host is the loopback, or one of the names.
func allowed(requested string, names []string) bool {
	name := requested
	if host, _, err := net.SplitHostPort(requested); err == nil {
		name = host
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if ip := net.ParseIP(name); ip != nil && ip.IsLoopback() {
		return true
	}
	return name == "localhost" || slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}

// refusal is the body of an answer that is no page.
type refusal struct {
	Error string `json:"error"`
	// Wants is the missing credential: key or token.
	Wants string `json:"wants,omitempty"`
}

func refuse(w http.ResponseWriter, status int, err error) {
	answer(w, status, refusal{Error: err.Error()})
}

func answer(w http.ResponseWriter, status int, body refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

// bearer is a request's token.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
