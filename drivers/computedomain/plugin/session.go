package plugin

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/draplugin"
)

// reasonSession is why a claim waits for pods of a domain of another mode (computeDomains.imex) to leave the node.
const reasonSession = "WaitingForIMEXSession"

// sharing says whether the node's channel is one that several claims may have, and returns a channel that is closed when that may have
// changed. The node follows the chart's setting once it has no claim of the other mode: until then a domain that was made in that mode can
// still get what it needs here, and the scheduler keeps domains of the new mode off where they could not run.
func (k *kind) sharing() (bool, <-chan struct{}) {
	own, shared, changed := k.holdings.sharing()
	return !own && (shared || k.shared), changed
}

// enter makes the node part of a claim's domain by a label, once no pod of another domain has the node's IMEX session. The claim is
// recorded before the label, which a crash must not leave without a claim to answer for it, and which another claim of the domain that
// ends now must not take away.
func (k *kind) enter(ctx context.Context, claim *draplugin.Claim, data held, domain *v1beta1.ComputeDomain, f fabric,
	label func(context.Context, types.UID) error) error {
	var failed error
	var named types.UID
	var message string
	err := k.awaitQuietly(ctx, claim, reasonSession, domain, func(ctx context.Context, waiting func(string)) error {
		for {
			other, changed, err := k.tryEnter(ctx, claim, data, f.state == nvml.Joined, label)
			if other == "" {
				failed = err
				return nil
			}
			if other != named {
				named, message = other, k.heldBy(ctx, claim, other, data.Shared)
			}
			waiting(message)
			select {
			case <-changed:
			case <-ctx.Done():
				return errors.New(message)
			}
		}
	})
	return errors.Join(err, failed)
}

// tryEnter is enter without the wait: it returns the domain whose claims keep this one off the node.
func (k *kind) tryEnter(ctx context.Context, claim *draplugin.Claim, data held, joined bool,
	label func(context.Context, types.UID) error) (other types.UID, changed <-chan struct{}, err error) {
	unlock, err := k.joining.Lock(ctx, string(data.Channel))
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	other, changed, undo := k.holdings.admit(claim.UID, claim.Namespace, data, joined)
	if other != "" {
		return other, changed, nil
	}
	if err := claim.Intend(data); err != nil {
		undo()
		return "", nil, err
	}
	return "", nil, label(ctx, data.Channel)
}

// heldBy says which domain has the node's IMEX session, to a claim of a domain that cannot have it now. Of another namespace's domain only
// the log has the name.
func (k *kind) heldBy(ctx context.Context, claim *draplugin.Claim, other types.UID, wantsShared bool) string {
	namespace := k.holdings.namespaceOf(other)
	name := "with UID " + string(other)
	// For the words alone; without an answer the UID has to do.
	if domain, err := k.domains.ByUID(ctx, namespace, "", other); err == nil && domain != nil {
		name = domain.Name
	}
	klog.FromContext(ctx).Info("A claim waits for pods of a domain of another mode", "claim", klog.KObj(claim), "namespace", namespace,
		"domain", name)
	if namespace != claim.Namespace {
		name = "of another namespace (the log of this node's plugin names it)"
	}
	mode := "shares the IMEX daemon of the node's clique (it was made with computeDomains.imex clique or host)"
	if wantsShared || k.holdings.own(other) {
		mode = "has an IMEX daemon of its own (it was made with computeDomains.imex domain)"
	}
	return fmt.Sprintf("pods of ComputeDomain %s are on the node, which %s, and a node has one IMEX session: this pod starts when they have "+
		"ended; a pod that need not run here can be deleted, so that another node takes it", name, mode)
}

// leaveOwn takes the label of a domain with daemons of its own off the node with the last claim of the domain here.
func (k *kind) leaveOwn(ctx context.Context, claim types.UID, data held) error {
	unlock, err := k.joining.Lock(ctx, string(data.Channel))
	if err != nil {
		return err
	}
	defer unlock()
	if k.holdings.lastChannel(claim, data.Channel) {
		if err := k.node.leave(ctx, data.Channel); err != nil {
			return err
		}
	}
	return k.holdings.release(claim, data, k.removeDir)
}
