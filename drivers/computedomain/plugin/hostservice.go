package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/hostimex"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/observed"
)

// DefaultHostSocket is where the control socket of a node's own nvidia-imex is looked for: where NVIDIA's DRA driver has it by default, so
// that nodes which are configured for that driver serve this one.
const DefaultHostSocket = "/etc/nvidia-imex/imex_ctrl.sock"

// nvidia-imex has no event for its state, so it is polled: a query is a short program on the node, and no call of the API server.
const (
	hostSteadyInterval  = 10 * time.Second
	hostWaitingInterval = 2 * time.Second
)

// hostService is the node's own nvidia-imex (hostimex.Service).
type hostService interface {
	Look(ctx context.Context) hostimex.Finding
	Peers(ctx context.Context, own hostimex.Peer, others []hostimex.Peer) (hostimex.Finding, error)
}

// hostState is the published state of the node's own nvidia-imex.
type hostState struct {
	// known is false until it was looked at.
	known bool
	// label is the value of computedomain.LabelHostIMEX; empty: no label, since the node does not need a service, or another serves.
	label string
}

// hostIMEX observes the node's own nvidia-imex.
type hostIMEX struct {
	// service is nil where another serves the node's domains.
	service hostService
	state   observed.Value[hostState]
	// runs reports whether it runs; nil where it is not to.
	runs func() bool
}

// followHost keeps hostState and unready until ctx ends, and calls changed when the service stops serving, begins to serve, or fails to for
// another reason. A service that answers once that it is not READY is not reported until unreadyAfter has passed: each change is a write of
// the node and of its clique.
func (k *preparer) followHost(ctx context.Context, changed func(hostimex.Finding)) {
	var bad time.Time // since when the service has not been READY; zero: it is
	for {
		f, fabricChanged := k.fabric.Get()
		interval := hostSteadyInterval
		if f.state != nvml.Joined {
			// Without a fabric there is nothing to serve.
			if bad = (time.Time{}); f.known && !f.passing() && k.hostIMEX.state.Now() != (hostState{known: true}) {
				k.hostIMEX.state.Set(hostState{known: true})
				k.unready.Set("")
			}
		} else {
			finding := k.hostIMEX.service.Look(ctx)
			if ctx.Err() != nil {
				return
			}
			now := hostState{known: true, label: computedomain.HostIMEXReady}
			if finding.Reason != "" {
				now.label, interval = finding.Reason, hostWaitingInterval
			}
			switch {
			case finding.Reason == "":
				bad = time.Time{}
			case bad.IsZero():
				bad = time.Now()
			}
			before := k.hostIMEX.state.Now()
			wasReady := before.known && before.label == computedomain.HostIMEXReady
			if settled := finding.Reason == "" || !wasReady || time.Since(bad) >= unreadyAfter; settled && now != before {
				k.hostIMEX.state.Set(now)
				k.unready.Set(finding.Reason)
				changed(finding)
			}
		}
		select {
		case <-fabricChanged:
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
	}
}

// reportHost reports a change of the node's own nvidia-imex: the log, and for a finding an Event on the node.
func reportHost(ctx context.Context, recorder record.EventRecorder, nodeName string, finding hostimex.Finding) {
	klog.FromContext(ctx).Info("The node's own nvidia-imex", "ready", finding.Reason == "", "reason", finding.Reason, "message",
		finding.Message)
	if finding.Reason != "" {
		recorder.Event(&corev1.ObjectReference{Kind: "Node", Name: nodeName, UID: types.UID(nodeName)}, corev1.EventTypeWarning, finding.Reason,
			finding.Message)
	}
}

// refuseWhileHostDaemonRuns refuses a claim that needs an IMEX daemon of ours where the node's own runs. It does not stop the node's.
func (k *preparer) refuseWhileHostDaemonRuns() error {
	if k.hostIMEX.runs == nil || !k.hostIMEX.runs() {
		return nil
	}
	return draplugin.Refuse(problemHostDaemon, "this ComputeDomain was made for IMEX daemons of gpufabric (status.imex): %s, or make the "+
		"domain again", hostDaemonConflict)
}

// awaitHost waits until the node's own nvidia-imex serves a domain: it is READY, and nothing keeps it apart for good from the nodes that
// are part of the domain already.
func (k *preparer) awaitHost(ctx context.Context, claim preparation, domain *v1beta1.ComputeDomain, clique string) error {
	if k.hostIMEX.service == nil {
		return draplugin.Refuse("IMEXModeChanged", "ComputeDomain %s is served by the nodes' own nvidia-imex, which the node plugin does not "+
			"ask any more: set computeDomains.imex of the chart to host again, or make the domain again", domain.Name)
	}
	begun := time.Now()
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.1, Steps: 8, Cap: hostSteadyInterval}
	finding := hostimex.Finding{Reason: hostimex.NotAnswering,
		Message: "the node's nvidia-imex gave no answer in the time that the kubelet allows"}
	for {
		now := k.serves(ctx, domain, clique)
		if ctx.Err() == nil { // an interrupted query is no evidence about the service
			finding = now
		}
		if finding.Reason == "" {
			return nil
		}
		message := fmt.Sprintf("ComputeDomain %s on node %s: %s", domain.Name, k.node.name, finding.Message)
		if time.Since(begun) >= quiet {
			claim.Waiting(finding.Reason, message)
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return draplugin.Refuse(finding.Reason, "%s", message)
		}
	}
}

// serves reports whether the node's own nvidia-imex serves a domain, or the reason why not. A claim does not wait for an unreadable list of
// nodes: the service itself reports READY.
func (k *preparer) serves(ctx context.Context, domain *v1beta1.ComputeDomain, clique string) hostimex.Finding {
	if finding := k.hostIMEX.service.Look(ctx); finding.Reason != "" {
		return finding
	}
	own, others, err := k.peers(ctx, domain.UID, clique)
	if err == nil {
		var finding hostimex.Finding
		if finding, err = k.hostIMEX.service.Peers(ctx, own, others); err == nil {
			return finding
		}
	}
	klog.FromContext(ctx).Error(err, "Could not determine whether the node's nvidia-imex lists the nodes of a compute domain", "domain",
		klog.KObj(domain))
	return hostimex.Finding{}
}

// peers are this node and the others of its clique that are part of a domain.
func (k *preparer) peers(ctx context.Context, domain types.UID, clique string) (own hostimex.Peer, others []hostimex.Peer, err error) {
	own = hostimex.Peer{Name: k.node.name}
	selector := labels.Set{computedomain.MemberLabel(domain): "", v1beta1.LabelClique: clique}.AsSelector()
	nodes, err := k.node.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return own, nil, fmt.Errorf("list the nodes of compute domain %s: %w", domain, err)
	}
	for i := range nodes.Items {
		peer := hostimex.Peer{Name: nodes.Items[i].Name}
		for _, address := range nodes.Items[i].Status.Addresses {
			if !slices.Contains(peer.Addresses, address.Address) {
				peer.Addresses = append(peer.Addresses, address.Address)
			}
		}
		if peer.Name == own.Name {
			own = peer
			continue
		}
		others = append(others, peer)
	}
	return own, others, nil
}
