package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/build/port"
)

// free is a loopback address without a listener.
func free(t *testing.T) string {
	t.Helper()
	ports, err := port.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

func TestMetricsAndHealthAreServedUntilTheEnd(t *testing.T) {
	address := free(t)
	p := New("test.example.com")
	p.Observe("prepare", "total", time.Now())
	p.Errors.WithLabelValues("prepare", "DeviceInUse").Inc()
	ill := errors.New("the driver does not answer")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, address, p.Registry, func() error { return ill }) }()
	if body := get(t, "http://"+address+"/metrics", http.StatusOK); !strings.Contains(body,
		`gpufabric_claim_errors_total{driver="test.example.com",operation="prepare",reason="DeviceInUse"} 1`) {
		t.Errorf("metrics:\n%s", body)
	}
	if body := get(t, "http://"+address+"/healthz", http.StatusServiceUnavailable); !strings.Contains(body, ill.Error()) {
		t.Errorf("health: %s", body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMetricsAreServedBesideACollectorThatFails(t *testing.T) {
	address := free(t)
	p := New("test.example.com")
	p.Errors.WithLabelValues("prepare", "DeviceInUse").Inc()
	twice := prometheus.NewDesc("twice", "A series that is collected twice.", nil, nil)
	p.Registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		for range 2 {
			to <- prometheus.MustNewConstMetric(twice, prometheus.GaugeValue, 1)
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, address, p.Registry, nil) }()
	body := get(t, "http://"+address+"/metrics", http.StatusOK)
	if !strings.Contains(body, "gpufabric_claim_errors_total{") {
		t.Errorf("metrics:\n%s", body)
	}
	t.Log("attacker sees: the other metrics of the role, with status 200")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// get retries until the server answers.
func get(t *testing.T, url string, want int) string {
	t.Helper()
	for {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			time.Sleep(time.Millisecond) // not listening yet; there is no event for it
			continue
		}
		body, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", url, response.StatusCode, want)
		}
		return string(body)
	}
}

func TestServeNamesFlagWhenAddressIsTaken(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was written
	err = Serve(t.Context(), listener.Addr().String(), New("d").Registry, nil)
	if err == nil || !strings.Contains(err.Error(), "--metrics-address") {
		t.Errorf("error %v", err)
	}
}
