package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/imexd"
	"gpufabric.io/drivers/node/httpserver"
)

// probeHold is how long to delay the answer to a probe while the daemon is not ready. The kubelet probes once a second. By holding
// its request for nearly that long, it is notified of readiness within milliseconds, instead of half a second later on average. It must
// be shorter than the probe's time-out and period.
const probeHold = 900 * time.Millisecond

// figures are a daemon's series.
func figures(supervisor *imexd.Supervisor) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpufabric_imex_daemon_ready",
			Help: "1 while the IMEX daemon is READY, or none is needed."},
			func() float64 {
				if status, _ := supervisor.Status(); status.Ready {
					return 1
				}
				return 0
			}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpufabric_imex_peers",
			Help: "IMEX daemons in this node's clique of the domain, this one included."},
			func() float64 { status, _ := supervisor.Status(); return float64(status.Peers) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "gpufabric_imex_daemon_restarts_total",
			Help: "Times that the IMEX daemon ended by itself."},
			func() float64 { status, _ := supervisor.Status(); return float64(status.Restarts) }),
	)
	return registry
}

// handler answers the kubelet's probes (/readyz, /livez), the controller's question for connections, and scrapes (/metrics) of the
// public metrics; nil: none.
func handler(supervisor *imexd.Supervisor, shown *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	if shown != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(shown, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if err := supervisor.Alive(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET "+computedomain.ConnectionsPath, func(w http.ResponseWriter, r *http.Request) {
		connections, err := supervisor.Connections(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(connections); err != nil {
			klog.FromContext(r.Context()).V(2).Info("The client that requested the connections is gone", "err", err)
		}
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), probeHold)
		defer cancel()
		if status := supervisor.AwaitReady(ctx); !status.Ready {
			http.Error(w, status.Reason, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// serveHealth serves until ctx ends.
func serveHealth(ctx context.Context, listener net.Listener, supervisor *imexd.Supervisor, shown *prometheus.Registry) error {
	if err := (httpserver.Server{Handler: handler(supervisor, shown)}).Serve(ctx, listener); err != nil {
		return fmt.Errorf("serve the readiness probe: %w", err)
	}
	return nil
}
