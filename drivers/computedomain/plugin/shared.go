package plugin

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/mode"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/draplugin"
)

// awaitMode waits until the controller has recorded whose daemons serve the domain: a pod may be faster than the first write of a status.
// Where the node's channels are for one claim at a time the claim goes on, and confirmMode checks later.
func (k *preparer) awaitMode(ctx context.Context, claim preparation, domain *v1beta1.ComputeDomain) (*v1beta1.ComputeDomain, error) {
	if !mode.Of(k.mode).Shared() {
		return domain, nil
	}
	return k.confirmMode(ctx, claim, domain)
}

// confirmMode is awaitMode on any node. While a cluster goes from one mode to another its controller may have a mode that this node has
// not.
func (k *preparer) confirmMode(ctx context.Context, claim preparation, domain *v1beta1.ComputeDomain) (*v1beta1.ComputeDomain, error) {
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.5, Jitter: 0.1, Steps: 8, Cap: time.Second}
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if domain.Status.IMEX != "" || len(domain.Status.Conditions) > 0 {
			return true, nil
		}
		again, err := k.findDomain(ctx, claim, domain.UID)
		if err == nil {
			domain = again
		}
		return false, err
	})
	if err != nil && ctx.Err() != nil {
		return nil, draplugin.Refuse("WaitingForController", "the controller has not looked at ComputeDomain %s/%s yet", domain.Namespace,
			domain.Name)
	}
	return domain, err
}

// prepareShared gives a claim the channel that its domain has in the node's clique.
//
// The order of three steps keeps a number from having two domains. The node gets the domain's label; then the plugin checks that the
// domain is not being deleted; only then it reads the number. The controller takes a number only from a domain that is being deleted or
// gone, once no node has its label.
func (k *preparer) prepareShared(ctx context.Context, claim preparation, config *v1beta1.ComputeDomainChannelConfig,
	domain *v1beta1.ComputeDomain, data *claimData) (specs.ContainerEdits, error) {
	none := specs.ContainerEdits{}
	before, err := k.awaitFabric(ctx, claim)
	if err != nil {
		return none, err
	}
	data.Shared = true
	if now, _ := k.clique.wanted.Get(); !now {
		k.clique.wanted.Set(true)
	}
	if err := k.enter(ctx, claim, *data, domain, before, k.node.joinShared); err != nil {
		return none, err
	}
	if domain, err = k.findDomain(ctx, claim, domain.UID); err != nil || before.state != nvml.Joined {
		return none, err
	}
	var held cliqueChannel
	err = k.awaitQuietly(ctx, claim, "WaitingForChannel", domain, func(ctx context.Context, waiting func(string)) error {
		held, err = k.clique.await(ctx, before.clique, domain.UID, waiting)
		return err
	})
	if err != nil {
		return none, err
	}
	channel := held.channel
	daemons := mode.Of(held.mode).Daemons(true)
	if !daemons {
		err = k.awaitHost(ctx, claim, domain, before.clique)
	} else if err = k.refuseWhileHostDaemonRuns(); err == nil {
		err = k.awaitDaemon(ctx, claim, domain, held.daemons)
	}
	if err != nil {
		return none, err
	}
	data.Server = held.daemons
	// Checked last, as for any other channel.
	current, err := k.awaitFabric(ctx, claim)
	if err != nil {
		return none, err
	}
	first, count := channel.Number, 1
	if config.AllocationMode == v1beta1.AllocationModeAll {
		first, count = 0, current.channelCount()
	}
	switch {
	case current.clique != before.clique:
		return none, draplugin.Refuse("WaitingForFabric", "node %s went from NVLink clique %s to %s: the channel is another there", k.node.name,
			before.clique, current.clique)
	case config.AllocationMode == v1beta1.AllocationModeAll && !channel.All:
		return none, draplugin.Refuse("InvalidConfig", "allocationMode is All, but ComputeDomain %s/%s holds channel %d alone", domain.Namespace,
			domain.Name, channel.Number)
	case first+count > current.channelCount():
		return none, draplugin.Refuse("NoIMEXChannels", "ComputeDomain %s/%s holds channel %d of clique %s, but the driver of node %s made %d: "+
			"load it with the NVreg_ImexChannelCount of the other nodes", domain.Namespace, domain.Name, first, current.clique, k.node.name,
			current.channelCount())
	}
	channels, err := k.imex.ChannelRange(first, count)
	if err != nil {
		return none, draplugin.Refuse("NoIMEXChannels", "the node's GPUs are in NVLink clique %s, but it has no IMEX channels: %w",
			current.clique, err)
	}
	var by *server
	if daemons {
		by = &server{k.namespace, computedomain.CliqueName(current.clique), held.daemons}
	}
	env, err := k.environment(ctx, domain, current.clique, first, by)
	if err != nil {
		return none, err
	}
	return specs.ContainerEdits{Env: env, DeviceNodes: deviceNodes(channels)}, nil
}

// leaveShared gives the domain's channel back with the last claim of the domain here.
func (k *preparer) leaveShared(ctx context.Context, claim types.UID, data claimData) error {
	unlock, err := k.joining.Lock(ctx, string(data.Channel))
	if err != nil {
		return err
	}
	defer unlock()
	if k.holdings.only(claim, data.Channel) {
		if err := k.node.leaveShared(ctx, data.Channel); err != nil {
			return err
		}
	}
	return k.holdings.release(claim, data, k.removeDir)
}

// keepMembers keeps the labels of domains with a channel of the clique as the node's claims require, until ctx ends, for the reasons
// that keepLabel has: a missing label releases a number that is in use, and a label too many holds a number for ever.
func (k *preparer) keepMembers(ctx context.Context) {
	backoff := wait.Backoff{Duration: k.settle, Factor: 2, Jitter: 0.1, Steps: 6, Cap: 2 * time.Minute}
	retry := backoff
	for ctx.Err() == nil {
		held, sure, heldChanged := k.holdings.members()
		labels, labelsChanged := k.node.labels.Get()
		missing, idle := differences(held, labels)
		var again <-chan time.Time
		if labels.known && sure && len(missing)+len(idle) > 0 {
			again = time.After(retry.Step())
		} else {
			retry = backoff
		}
		select {
		case <-heldChanged:
		case <-labelsChanged:
		case <-again:
			for _, domain := range append(missing, idle...) {
				if err := k.mendMember(ctx, domain); err != nil {
					klog.FromContext(ctx).Error(err, "Could not set the node's labels of the compute domains whose channels it has", "domain", domain)
				}
			}
		case <-ctx.Done():
		}
	}
}

// differences are the domains that claims are for and no label names, and those that a label names and no claim is for.
func differences(held []types.UID, labels nodeLabels) (missing, idle []types.UID) {
	for _, domain := range held {
		if !labels.has(domain) {
			missing = append(missing, domain)
		}
	}
	for _, domain := range labels.domains() {
		if !slices.Contains(held, domain) {
			idle = append(idle, domain)
		}
	}
	return missing, idle
}

// mendMember brings one domain's label into line with the claims of now.
func (k *preparer) mendMember(ctx context.Context, domain types.UID) error {
	unlock, err := k.joining.Lock(ctx, string(domain))
	if err != nil {
		return err
	}
	defer unlock()
	if k.holdings.only("", domain) {
		klog.FromContext(ctx).Info("Releasing the channel of a compute domain without claims on the node", "domain", domain)
		return k.node.leaveShared(ctx, domain)
	}
	klog.FromContext(ctx).Info("Restoring the label of a compute domain: a claim here has its channel", "domain", domain)
	return k.node.joinShared(ctx, domain)
}

// joinShared labels the node with a domain that has a channel of its clique; no write where it is labelled so already.
func (n *node) joinShared(ctx context.Context, domain types.UID) error {
	if n.labels.Now().has(domain) {
		return nil
	}
	return n.patch(ctx, map[string]any{computedomain.MemberLabel(domain): ""})
}

// leaveShared takes that label off.
func (n *node) leaveShared(ctx context.Context, domain types.UID) error {
	return n.patch(ctx, map[string]any{computedomain.MemberLabel(domain): nil})
}
