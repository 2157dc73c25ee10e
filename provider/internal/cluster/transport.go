package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// requestTimeout bounds one request that is no watch, so that an API server that accepts connections and does not answer ends a plan
// with an error.
const requestTimeout = 30 * time.Second

// errSilent is the cause of a request that was not answered in time.
var errSilent = errors.New("it accepted the request and did not answer")

// silence is the shared record of a server that does not answer, of all clients of one connection. A server that left one request
// unanswered, and has answered none since that began, is not called again for failureMemory: with a thousand resources the user
// waits once.
type silence struct {
	mu       sync.Mutex
	answered time.Time // of the last answer
	since    time.Time // of the last silence; zero: it answers
}

func (s *silence) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered, s.since = time.Now(), time.Time{}
}

// unanswered records a request that began at a time and got no answer.
func (s *silence) unanswered(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered.Before(began) {
		s.since = time.Now()
	}
}

// lasts reports whether the server need not be called.
func (s *silence) lasts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.since.IsZero() && time.Since(s.since) < failureMemory
}

// patient limits the time of each request, and makes client-go repeat requests that the API server refused for the moment: it does
// so by itself only where the answer says when to come back.
type patient struct {
	next    http.RoundTripper
	timeout time.Duration
	silence *silence
}

func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	if p.silence.lasts() {
		if req.Body != nil {
			_ = req.Body.Close() // nothing was read of it
		}
		return nil, p.silent(req)
	}
	if req.URL.Query().Get("watch") != "" {
		return p.next.RoundTrip(req)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(req.Context(), p.timeout, errSilent)
	resp, err := p.next.RoundTrip(req.WithContext(ctx)) // the caller closes the body
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			p.silence.unanswered(began)
			err = p.silent(req)
		}
		cancel()
		return nil, err
	}
	p.silence.answer()
	resp.Body = &bounded{resp.Body, cancel}
	if err := whole(req, resp); err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = p.silent(req)
		}
		return nil, err
	}
	if passing(req, resp.StatusCode) && resp.Header.Get("Retry-After") == "" {
		resp.Header.Set("Retry-After", "1")
	}
	return resp, nil
}

func (p *patient) silent(req *http.Request) error {
	return fmt.Errorf("%s %s: %w for %s", req.Method, req.URL.Path, errSilent, p.timeout)
}

// whole reads the answer to a read before client-go does, which repeats a read whose connection broke, but not where it broke in the middle
// of the answer. Logs, which may be followed, are left as streams.
func whole(req *http.Request, resp *http.Response) error {
	if req.Method != http.MethodGet || resp.StatusCode != http.StatusOK || strings.HasSuffix(req.URL.Path, "/log") {
		return nil
	}
	defer func(body io.Closer) { _ = body.Close() }(resp.Body) // all of it was read, or none of it counts
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(content))
	return nil
}

// passing reports whether a request may be repeated after an answer: one that was turned away had no effect, and one that means the
// same twice may have had it.
func passing(req *http.Request, status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return repeatable(req)
	}
	return false
}

// repeatable reports whether a request means the same twice: a read, a server-side apply, a merge, and a deletion.
func repeatable(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodDelete:
		return true
	case http.MethodPatch:
		kind := types.PatchType(req.Header.Get("Content-Type"))
		return kind == types.ApplyYAMLPatchType || kind == types.MergePatchType
	}
	return false
}

// bounded ends a request's time when its body was read.
type bounded struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *bounded) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
