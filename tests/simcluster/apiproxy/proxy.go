// Package apiproxy is a proxy between the drivers of a simulated cluster and its API server. It passes everything on unchanged
// until a test makes it disturb watches (DisturbWatches) or react to writes (Tap).
package apiproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// Proxy is a running proxy.
type Proxy struct {
	server   http.Server
	listener net.Listener
	upstream *http.Transport
	served   chan struct{} // closed when the server has ended

	disorder atomic.Pointer[disorder]
	tap      atomic.Pointer[Tap]
}

// Write is a request that changes something.
type Write struct {
	// User is the requester, such as system:serviceaccount:NAMESPACE:NAME.
	User         string
	Method, Path string
	Body         []byte
}

// Tap sees each write twice: before the API server gets it, and after it was applied but before its answer is passed on. True cuts
// the connection there, as the death of either side would.
type Tap struct {
	Before, After func(Write) (cut bool)
}

// errCut is an answer that never arrives.
var errCut = errors.New("the connection was cut on purpose")

// Open listens on a free loopback port for the API server at a URL whose certificate ca (PEM) signed.
func Open(server string, ca []byte, certificate tls.Certificate) (*Proxy, error) {
	target, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("open a proxy to the API server: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("open a proxy to the API server: its authority is no PEM certificate")
	}
	p := &Proxy{served: make(chan struct{}), upstream: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		// As in client-go: pings detect a server that went away silently.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("open a proxy to the API server: %w", err)
	}
	p.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	silence := log.New(io.Discard, "", 0) // connections end on purpose here, and each would be a line
	p.server.ErrorLog = silence
	p.server.Handler = &httputil.ReverseProxy{
		ErrorLog: silence, Transport: p, FlushInterval: -1, // watches are passed on as they come
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			if !errors.Is(err, errCut) {
				klog.FromContext(r.Context()).V(2).Info("The API server did not answer", "path", r.URL.Path, "err", err)
			}
			panic(http.ErrAbortHandler) // the client sees its connection end, as without a proxy
		},
	}
	go func() { // ends with Close
		defer close(p.served)
		_ = p.server.ServeTLS(p.listener, "", "")
	}()
	return p, nil
}

// URL is the address for clients, in place of the API server's.
func (p *Proxy) URL() string { return "https://" + p.listener.Addr().String() }

// Close ends the proxy and every connection through it.
func (p *Proxy) Close() {
	_ = p.server.Close() // the listener's error, which is no longer needed
	<-p.served
	p.upstream.CloseIdleConnections()
}

// Tap calls a function with every write until stop is called.
func (p *Proxy) Tap(tap Tap) (stop func()) {
	p.tap.Store(&tap)
	return func() { p.tap.CompareAndSwap(&tap, nil) }
}

// RoundTrip implements http.RoundTripper towards the API server.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet:
		if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
			return p.watch(r)
		}
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		if tap := p.tap.Load(); tap != nil {
			return p.tapped(r, tap)
		}
	}
	return p.upstream.RoundTrip(r)
}

func (p *Proxy) tapped(r *http.Request, tap *Tap) (*http.Response, error) {
	w := Write{User: user(r), Method: r.Method, Path: r.URL.Path}
	if r.Body != nil {
		var err error
		if w.Body, err = io.ReadAll(r.Body); err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(w.Body))
	}
	if tap.Before != nil && tap.Before(w) {
		return nil, errCut
	}
	response, err := p.upstream.RoundTrip(r)
	if err == nil && tap.After != nil && tap.After(w) {
		_ = response.Body.Close() // unread on purpose
		return nil, errCut
	}
	return response, err
}

// user is the subject of the request's service account token; "" where it has none.
func user(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	_ = json.Unmarshal(payload, &claims) // a token without a subject has no user
	return claims.Subject
}

// watch passes a watch on. It asks for lines of JSON, so that it can separate the events. A watch for which the client accepts
// only protobuf passes unchanged.
func (p *Proxy) watch(r *http.Request) (*http.Response, error) {
	accepted := slices.DeleteFunc(strings.Split(r.Header.Get("Accept"), ","),
		func(kind string) bool { return strings.Contains(kind, "protobuf") })
	if len(accepted) == 0 {
		return p.upstream.RoundTrip(r)
	}
	r.Header.Set("Accept", strings.Join(accepted, ","))
	response, err := p.upstream.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	reader, writer := io.Pipe()
	events := &stream{proxy: p, name: user(r) + " " + r.URL.Path, upstream: response.Body, out: writer}
	ctx, cancel := context.WithCancel(r.Context())
	go events.run(ctx) // ends with either side's end
	response.Body = &body{PipeReader: reader, upstream: response.Body, cancel: cancel}
	return response, nil
}

// body is what the client reads of a watch.
type body struct {
	*io.PipeReader
	upstream io.Closer
	cancel   context.CancelFunc
}

// Close ends both sides.
func (b *body) Close() error {
	b.cancel()
	_ = b.PipeReader.Close() // never fails
	return b.upstream.Close()
}
