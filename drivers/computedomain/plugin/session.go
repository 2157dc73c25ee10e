package plugin

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/mode"
	"gpufabric.io/drivers/hardware/nvml"
)

// reasonSession is why a claim waits for pods of a domain of another mode (computeDomains.imex) to leave the node.
const reasonSession = "WaitingForIMEXSession"

// sharing reports whether the node's channel is one that several claims may have (mode.Publishes), and returns a channel that is closed
// when that may have changed.
func (k *preparer) sharing() (bool, <-chan struct{}) {
	own, shared, changed := k.holdings.sharing()
	return mode.Publishes(mode.Of(k.mode), own, shared), changed
}

// enter makes the node part of a claim's domain by a label, once no pod of another domain has the node's IMEX session. The claim is
// recorded before the label, which a crash must not leave without a claim to answer for it, and which another claim of the domain that
// ends now must not take away.
func (k *preparer) enter(ctx context.Context, claim preparation, data claimData, domain *v1beta1.ComputeDomain, f fabric,
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
func (k *preparer) tryEnter(ctx context.Context, claim preparation, data claimData, joined bool,
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

// heldBy names the domain that has the node's IMEX session, for a claim of another domain. Of another namespace's domain only
// the log has the name.
func (k *preparer) heldBy(ctx context.Context, claim preparation, other types.UID, wantsShared bool) string {
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
	of := v1beta1.IMEXClique
	if wantsShared || k.holdings.own(other) {
		of = v1beta1.IMEXDomain
	}
	return fmt.Sprintf("pods of ComputeDomain %s are on the node, which %s, and a node has one IMEX session: this pod starts when they have "+
		"ended; a pod that need not run here can be deleted, so that another node takes it", name, mode.Of(of).Server())
}

// leaveOwn takes the label of a domain with daemons of its own off the node with the last claim of the domain here.
func (k *preparer) leaveOwn(ctx context.Context, claim types.UID, data claimData) error {
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
