package plugin

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// settleTime is how long the label and the claims may disagree before the label is changed: preparing and unpreparing make both
// changes themselves, a moment apart.
const settleTime = 5 * time.Second

// keepLabel keeps the domain's label as the node's claims require, until ctx ends. It restores a label that somebody removed, or
// that was lost with a recreated Node object, while a claim of the domain is prepared: without it the domain's daemon goes, and the
// job's memory with it. It removes a label without a claim (its record was lost, or belonged to an earlier plugin): that label
// would keep a daemon here for ever.
func (k *preparer) keepLabel(ctx context.Context) {
	backoff := wait.Backoff{Duration: k.settle, Factor: 2, Jitter: 0.1, Steps: 6, Cap: 2 * time.Minute}
	retry := backoff
	for ctx.Err() == nil {
		held, sure, heldChanged := k.holdings.channel()
		labels, labelsChanged := k.node.labels.Get()
		var again <-chan time.Time
		if labels.known && sure && labels.domain != held {
			again = time.After(retry.Step())
		} else {
			retry = backoff
		}
		select {
		case <-heldChanged:
		case <-labelsChanged:
		case <-again:
			if err := k.mendLabel(ctx, held, labels.domain); err != nil {
				klog.FromContext(ctx).Error(err, "Could not set the node's label of its compute domain", "label", labels.domain, "claims",
					held)
			}
		case <-ctx.Done():
		}
	}
}

// mendLabel makes the label match the claims.
func (k *preparer) mendLabel(ctx context.Context, held, label types.UID) error {
	logger := klog.FromContext(ctx)
	if label != "" {
		logger.Info("Removing the label of a compute domain without claims on the node", "domain", label)
		if err := k.node.leave(ctx, label); err != nil {
			return err
		}
	}
	if held == "" {
		return nil
	}
	domain, err := k.domains.ByUID(ctx, k.holdings.namespaceOf(held), "", held)
	if err != nil {
		return fmt.Errorf("restore the label of compute domain %s: %w", held, err)
	}
	if domain == nil || domain.DeletionTimestamp != nil {
		return nil // the controller has removed it
	}
	logger.Info("Restoring the label of a compute domain: a claim of it is prepared here", "domain", held)
	return k.node.join(ctx, held)
}
