package draplugin

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// repeatPause is how long other messages of one wait ("the pod is not here yet", "its container is being created") are held back
	// after the last report. They follow each other in seconds while a cluster is busy, and each costs an Event on the claim and one
	// on every pod.
	repeatPause = 30 * time.Second
	// conditionPatience is how long a claim may wait, over as many of the kubelet's calls as that takes, before the wait is written to
	// the claim's status. A thousand nodes that join their domains at once on two cores wait for two minutes. Without this pause each
	// would write a condition, and another to remove it, for something that is going well.
	conditionPatience = 5 * time.Minute
)

// waits are the reported waits of claims.
type waits struct {
	mu    sync.Mutex
	claim map[types.UID]*claimWait
}

// claimWait is the wait of one claim.
type claimWait struct {
	reason, message string
	since, reported time.Time
}

// due reports whether to report a wait: another reason at once, another message for the same reason after a pause.
func (w *waits) due(claim types.UID, reason, message string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.claim[claim]
	switch {
	case known == nil || known.reason != reason:
		known = &claimWait{reason: reason, since: now}
		w.claim[claim] = known
	case known.message == message || now.Sub(known.reported) < repeatPause:
		return false
	}
	known.message, known.reported = message, now
	return true
}

// patient reports whether a claim waits for that reason, and has waited only briefly.
func (w *waits) patient(claim types.UID, reason string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.claim[claim]
	return known != nil && known.reason == reason && now.Sub(known.since) < conditionPatience
}

// forget removes a claim that no longer waits.
func (w *waits) forget(claim types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.claim, claim)
}
