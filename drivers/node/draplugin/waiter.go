package draplugin

import (
	"sync"

	"gpufabric.io/drivers/node/metrics"
)

// waiter counts one claim in the metric of waiting claims, under its present reason.
type waiter struct {
	metrics *metrics.Plugin

	mu     sync.Mutex
	reason string
}

// forReason sets what the claim waits for from now on.
func (w *waiter) forReason(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reason != "" {
		w.metrics.Waiting.WithLabelValues(w.reason).Dec()
	}
	if reason != "" {
		w.metrics.Waiting.WithLabelValues(reason).Inc()
	}
	w.reason = reason
}

// end removes the claim from the metric.
func (w *waiter) end() { w.forReason("") }
