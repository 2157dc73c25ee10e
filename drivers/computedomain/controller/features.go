package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/node/capability"
)

// reasonNeedsFeature is the reason of a domain whose nodes publish no channel, because the API server would drop a field of it.
const reasonNeedsFeature = "NeedsKubernetesFeature"

// features are the features of resource.k8s.io that the cluster lacks. A server drops the same features' fields of a ResourceClaimTemplate,
// which the controller may write, as of a ResourceSlice, which it may not.
type features struct {
	client    client.Client
	namespace string

	mu      sync.Mutex
	missing capability.Missing
}

func (f *features) now() capability.Missing {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.missing
}

// probeUID is the UID of a ComputeDomain that does not exist.
const probeUID = "00000000-0000-0000-0000-000000000000"

// ask finds the fields of a template that the API server drops, by a dry run. Counters are not in templates.
func (f *features) ask(ctx context.Context) (capability.Missing, error) {
	// The chart's policies allow a template of a domain alone, with its number in the configuration.
	domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "capability-probe", UID: probeUID}}
	probe, err := claimTemplate(domain, channelRequest, computedomain.ChannelClass, &v1beta1.ComputeDomainChannelConfig{
		TypeMeta: configType("ComputeDomainChannelConfig"), DomainID: probeUID, AllocationMode: v1beta1.AllocationModeSingle})
	if err != nil {
		return capability.Missing{}, err
	}
	probe.Namespace, probe.Name = domain.Namespace, domain.Name
	request := probe.Spec.Spec.Devices.Requests[0].Exactly
	request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		"probe": *resource.NewQuantity(1, resource.DecimalSI)}}
	request.Tolerations = []resourceapi.DeviceToleration{{Key: "gpufabric.io/probe", Operator: resourceapi.DeviceTolerationOpExists}}
	if err := f.client.Create(ctx, probe, client.DryRunAll); err != nil {
		return capability.Missing{}, fmt.Errorf("find the fields of a ResourceClaimTemplate that the API server keeps, by a dry run: %w", err)
	}
	var kept resourceapi.ExactDeviceRequest
	if requests := probe.Spec.Spec.Devices.Requests; len(requests) == 1 && requests[0].Exactly != nil {
		kept = *requests[0].Exactly
	}
	return capability.Missing{Taints: len(kept.Tolerations) == 0, Shares: kept.Capacity == nil}, nil
}

// learn repeats the dry run, and calls changed when the result differs. If the server refuses the dry run, the last result stays.
func (f *features) learn(ctx context.Context, changed func()) bool {
	missing, err := f.ask(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not detect the API server's features; the last result stays")
		return capability.Refused(err)
	}
	f.mu.Lock()
	same := f.missing == missing
	f.missing = missing
	f.mu.Unlock()
	if !same {
		klog.FromContext(ctx).Info("The features of the API server changed", "missing", missing.Error())
		changed()
	}
	return true
}

// run follows the API server's features until ctx ends, and has all domains looked at when they change.
func (f *features) run(ctx context.Context, server discovery.DiscoveryInterface, add func(types.UID)) {
	tick := time.NewTicker(capability.StateInterval)
	defer tick.Stop()
	state := func(ctx context.Context) (capability.State, error) { return capability.StateOf(ctx, server) }
	capability.Follow(ctx, tick.C, state, func(ctx context.Context) bool {
		return f.learn(ctx, func() {
			var all v1beta1.ComputeDomainList
			if err := f.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
				return // the cache has stopped
			}
			for i := range all.Items {
				add(all.Items[i].UID)
			}
		})
	})
}

// checkFeatures explains a domain that waits for nodes which cannot come: they publish no channel that several domains share. A domain that
// has its nodes stays as it is, its claims are allocated.
func (r *Reconciler) checkFeatures(_ context.Context, p *pass) error {
	missing := capability.Missing{Shares: r.features.now().Shares}
	if !missing.Any() || !p.domain.Status.IMEX.Shared() || p.problem != nil || len(p.shown.Nodes) >= max(1, p.domain.Spec.NumNodes) {
		return nil
	}
	p.problem = &metav1.Condition{
		Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonNeedsFeature,
		Message: fmt.Sprintf("nodes publish no channel that several domains share (mode %s): that needs %v. Switch the gate on for the "+
			"API server "+
			"and the scheduler, or set computeDomains.imex to domain", p.domain.Status.IMEX, missing),
	}
	return nil
}
