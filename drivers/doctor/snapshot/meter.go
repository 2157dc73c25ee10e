package snapshot

import (
	"net/http"
	"sync"
	"time"
)

// meter counts requests, and reads the API server's clock.
type meter struct {
	mu        sync.Mutex
	requests  int
	throttled int
	skew      time.Duration
	measured  bool
}

// wrap is a rest.Config's WrapTransport.
func (m *meter) wrap(next http.RoundTripper) http.RoundTripper { return metered{m, next} }

type metered struct {
	*meter
	next http.RoundTripper
}

// WrappedRoundTripper is where client-go looks for the transport that can cancel a request.
func (m metered) WrappedRoundTripper() http.RoundTripper { return m.next }

// RoundTrip implements http.RoundTripper.
func (m metered) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := time.Now()
	response, err := m.next.RoundTrip(request)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if err != nil {
		return response, err
	}
	if response.StatusCode == http.StatusTooManyRequests {
		m.throttled++
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil && !m.measured {
		// The answer was written between the request and now, and its time is cut to whole seconds.
		middle := sent.Add(time.Since(sent) / 2)
		m.skew, m.measured = middle.Sub(date.Add(time.Second/2)).Truncate(time.Second), true
	}
	return response, nil
}

// read returns the count so far.
func (m *meter) read() (requests, throttled int, skew time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests, m.throttled, m.skew
}
