// Package metrics holds the metrics that every node plugin has, and serves them.
package metrics

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gpufabric.io/drivers/node/httpserver"
)

// scrapes is the number of answers of /metrics at once. It is more than one address has connections (httpserver.PerAddress), so that
// none keeps others from the metrics.
const scrapes = 40

// Plugin are the metrics of one node plugin, in a registry of its own.
type Plugin struct {
	Registry *prometheus.Registry
	// StepSeconds is the time spent in each step of preparing and unpreparing a claim. Step "total" is all of the plugin's work for
	// that claim. Step "call" is one of the kubelet's calls with all of its claims; before a prepare it includes the GET of each claim
	// from the API server. Labels: operation (prepare, unprepare, recover), step.
	StepSeconds *prometheus.HistogramVec
	// Errors counts claims that could not be prepared or unprepared, and the kubelet's calls that failed as a whole (reasons ClaimNotRead and
	// Stopped). Labels: operation, reason (a CamelCase word).
	Errors *prometheus.CounterVec
	// Waiting is how many claims are being prepared and wait for something. Label: reason.
	Waiting *prometheus.GaugeVec
	// Claims is the number of prepared claims of the plugin.
	Claims prometheus.Gauge
	// Releasing is the number of claims whose devices wait for the claims' last containers.
	Releasing prometheus.Gauge
	// Devices is the number of published devices. Label: state (available, tainted).
	Devices *prometheus.GaugeVec
}

// New makes the metrics of the plugin for driver, each with the constant label driver.
func New(driver string) *Plugin {
	labels := prometheus.Labels{"driver": driver}
	p := &Plugin{
		Registry: prometheus.NewRegistry(),
		StepSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpufabric_claim_step_seconds", Help: "Time spent in each step of preparing and unpreparing a claim.", ConstLabels: labels,
			// From half a millisecond (a file write) to the kubelet's limit of 45 s.
			Buckets: []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 4, 8, 16, 45},
		}, []string{"operation", "step"}),
		Errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpufabric_claim_errors_total", Help: "Claims that could not be prepared or unprepared, by reason.", ConstLabels: labels,
		}, []string{"operation", "reason"}),
		Waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gpufabric_claims_waiting", Help: "Claims whose preparation waits for something, by reason.", ConstLabels: labels,
		}, []string{"reason"}),
		Claims: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpufabric_claims_prepared", Help: "Claims that are prepared on this node.", ConstLabels: labels,
		}),
		Releasing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpufabric_claims_releasing", Help: "Claims that are released, and whose devices wait for the claims' last containers to end.",
			ConstLabels: labels,
		}),
		Devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gpufabric_devices", Help: "Devices published by this node, by state.", ConstLabels: labels,
		}, []string{"state"}),
	}
	p.Registry.MustRegister(p.StepSeconds, p.Errors, p.Waiting, p.Claims, p.Releasing, p.Devices,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return p
}

// Observe records the duration of a step since start and returns the present time, for the next step.
func (p *Plugin) Observe(operation, step string, start time.Time) time.Time {
	now := time.Now()
	p.StepSeconds.WithLabelValues(operation, step).Observe(now.Sub(start).Seconds())
	return now
}

// Serve serves the metrics of a registry on address under /metrics, and /healthz and /readyz, until ctx ends. An empty address serves
// no page. healthy may be nil. Its error makes both probes answer 503 with its text: a restart would help. An error of ready
// affects only /readyz: the role does not serve yet, or no longer, and a rollout has to wait for it.
func Serve(ctx context.Context, address string, registry prometheus.Gatherer, healthy func() error, ready ...func() error) error {
	return (*Access)(nil).Serve(ctx, address, registry, healthy, ready...)
}

// Serve is like the function Serve, with TLS, and serves metrics only to callers that a accepts. Where a is nil it does not use TLS
// and serves every client. The probes are open to everybody: the kubelet shows no token.
func (a *Access) Serve(
	ctx context.Context, address string, registry prometheus.Gatherer, healthy func() error, ready ...func() error,
) error {
	if address == "" {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	// A collector that fails costs its own metrics alone, and not the faults and alerts of the node.
	shown := promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapes})
	if a != nil {
		shown = a.Wrap(shown)
	}
	mux.Handle("/metrics", shown)
	addProbes(mux, healthy, ready)
	var config *tls.Config
	if a != nil {
		var err error
		if config, err = ownCertificate(); err != nil {
			return err
		}
	}
	return serve(ctx, "--metrics-address", address, httpserver.Server{Handler: mux, TLS: config})
}

// ServeProbes serves /healthz and /readyz alone, without TLS; see the function Serve. flag is the flag that address is from.
func ServeProbes(ctx context.Context, flag, address string, healthy func() error, ready ...func() error) error {
	if address == "" {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	addProbes(mux, healthy, ready)
	return serve(ctx, flag, address, httpserver.Server{Handler: mux})
}

func addProbes(mux *http.ServeMux, healthy func() error, ready []func() error) {
	mux.Handle("/healthz", probe(healthy))
	mux.Handle("/readyz", probe(append([]func() error{healthy}, ready...)...))
}

// probe answers 503 with the first error of checks, of which any may be nil.
func probe(checks ...func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, check := range checks {
			if check == nil {
				continue
			}
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
}

func serve(ctx context.Context, flag, address string, server httpserver.Server) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s %q: %w", flag, address, err)
	}
	if err := server.Serve(ctx, listener); err != nil {
		return fmt.Errorf("serve %s %q: %w", flag, address, err)
	}
	return nil
}
