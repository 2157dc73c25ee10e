package draplugin

import (
	"context"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/metrics"
)

// progress is the Progress of one try to prepare a claim.
type progress struct {
	ctx    context.Context //nolint:containedctx // of the call, which the preparer may report from another goroutine
	plugin *Plugin
	claim  *resourceapi.ResourceClaim
	record claimstate.Record
	waiter waiter
}

// Intend implements Progress.
func (p *progress) Intend(data any) error { return p.plugin.put(p.record, claimstate.Preparing, data) }

// Waiting implements Progress.
func (p *progress) Waiting(reason, message string) {
	defer caught(p.ctx, new(error)) // it may run in a goroutine of the preparer's own
	p.waiter.forReason(reason)
	p.plugin.report.waiting(p.claim, reason, message)
}

// waiter counts one claim in the metric of waiting claims, under its present reason.
type waiter struct {
	metrics *metrics.Plugin

	mu     sync.Mutex
	reason string
}

// forReason sets the reason of the claim's wait.
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
