package draplugin

import (
	"sync"

	"gpufabric.io/drivers/node/metrics"
)

// waiter counts one claim among those that wait, under the reason of now.
type waiter struct {
	metrics *metrics.Plugin

	mu     sync.Mutex
	reason string
}

// forReason says what the claim waits for from now on.
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

// end says that it waits no more.
func (w *waiter) end() { w.forReason("") }
