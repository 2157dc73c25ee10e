package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/node/draplugin"
)

// awaitFabric waits while the node's driver is on its way, or its GPUs are joining their fabric.
func (k *preparer) awaitFabric(ctx context.Context, claim preparation) (fabric, error) {
	ready := func(f fabric) bool { return !f.passing() }
	if now := k.fabric.Now(); !ready(now) {
		claim.Waiting(waitingFor(now, k.node.name))
	}
	current, ok := k.fabric.Await(ctx, ready)
	if !ok {
		reason, message := waitingFor(current, k.node.name)
		return fabric{}, draplugin.Refuse(reason, "%s", message)
	}
	if current.problem != "" {
		return fabric{}, draplugin.Refuse(current.problemKind, "the NVLink fabric of node %s cannot be used: %s", k.node.name, current.problem)
	}
	return current, nil
}

// waitingFor returns the reason of a wait for the node's fabric.
func waitingFor(f fabric, node string) (reason, message string) {
	if f.problemKind == problemNoDriver {
		return "WaitingForDriver", fmt.Sprintf("waiting for the NVIDIA driver of node %s: %s", node, f.problem)
	}
	return "WaitingForFabric", "waiting for the GPUs of node " + node + " to join their NVLink fabric"
}

// awaitDaemon waits for the daemon on this node that serves the domain, and reports a long wait. of is the owner of the daemon: the domain,
// or the ComputeDomain of the node's clique.
func (k *preparer) awaitDaemon(ctx context.Context, claim preparation, domain *v1beta1.ComputeDomain, of types.UID) error {
	return k.awaitQuietly(ctx, claim, "WaitingForIMEXDaemon", domain, func(ctx context.Context, waiting func(string)) error {
		return k.daemons.await(ctx, of, waiting)
	})
}

// awaitQuietly waits by await. It passes await's reports on once the wait has taken longer than quiet.
func (k *preparer) awaitQuietly(ctx context.Context, claim preparation, reason string, domain *v1beta1.ComputeDomain,
	await func(ctx context.Context, waiting func(string)) error) error {
	// await reports to report, which passes it on once the quiet time is over.
	var mu sync.Mutex
	var latest string
	loud := false
	report := func() {
		if loud && latest != "" {
			claim.Waiting(reason, fmt.Sprintf("ComputeDomain %s on node %s: %s", domain.Name, k.node.name, latest))
		}
	}
	timer := time.AfterFunc(quiet, func() { mu.Lock(); defer mu.Unlock(); loud = true; report() })
	defer timer.Stop()
	err := await(ctx, func(message string) { mu.Lock(); defer mu.Unlock(); latest = message; report() })
	if err != nil {
		return draplugin.Refuse(reason, "ComputeDomain %s on node %s: %w", domain.Name, k.node.name, err)
	}
	mu.Lock()
	defer mu.Unlock()
	latest = ""
	return nil
}
