// Package profiles places slices of DRA by a policy: those of VGPUProfiles, and the claims of a pod with its own policy for the GPU
// driver.
//
// kube-scheduler's own plugin for claims, unchanged, still decides which devices satisfy a claim, and that none is allocated twice.
// Its allocator takes the first device that fits, pool by pool and within a pool in the order of the ResourceSlices' names, and the
// GPU driver publishes one slice per GPU. So the plugin here is the stock one with a view of the ResourceSlices in which a node's
// GPUs are in the policy's order. For the choice among nodes there is a score.
package profiles

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/scheduler/cards"
)

// Name is the plugin's name in a KubeSchedulerConfiguration, where it replaces DynamicResources.
const Name = "GPUFabricDynamicResources"

// Args are the plugin's arguments: the policies for slices whose VGPUProfile has none.
type Args struct {
	NodePolicy cards.Policy `json:"nodePolicy,omitempty"` // binpack (default) or spread
	// CardPolicy is spread; any other value means binpack here: which GPUs of a claim are close is up to its constraints
	CardPolicy cards.Policy `json:"cardPolicy,omitempty"`
}

// Plugin is kube-scheduler's plugin for claims, but sees GPUs in the order of a pod's policy.
type Plugin struct {
	*dynamicresources.DynamicResources
	manager  *manager
	defaults cards.Policies
}

var (
	_ fwk.PreEnqueuePlugin  = (*Plugin)(nil)
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PostFilterPlugin  = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.PreBindPlugin     = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
)

// New is the plugin's factory. It refuses unknown arguments; the stock plugin's own defaults apply.
func New(ctx context.Context, configuration runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args := Args{NodePolicy: cards.Binpack, CardPolicy: cards.Binpack}
	if unknown, ok := configuration.(*runtime.Unknown); ok && len(unknown.Raw) > 0 {
		if err := yaml.UnmarshalStrict(unknown.Raw, &args); err != nil {
			return nil, fmt.Errorf("arguments of plugin %s: %w", Name, err)
		}
	}
	defaults := cards.Policies{Node: args.NodePolicy, Card: args.CardPolicy}
	if err := defaults.Check(); err != nil {
		return nil, fmt.Errorf("arguments of plugin %s: %w", Name, err)
	}
	var versioned configv1.DynamicResourcesArgs
	scheme.Scheme.Default(&versioned)
	var stockArgs config.DynamicResourcesArgs
	if err := scheme.Scheme.Convert(&versioned, &stockArgs, nil); err != nil {
		return nil, err
	}
	m := &manager{SharedDRAManager: handle.SharedDRAManager()}
	stock, err := dynamicresources.New(ctx, &stockArgs, steered{handle, m},
		feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	claims, ok := stock.(*dynamicresources.DynamicResources)
	if !ok {
		return nil, fmt.Errorf("plugin %s: the stock plugin has the unsupported type %T", Name, stock)
	}
	return &Plugin{claims, m, defaults}, nil
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// PreFilter runs the stock plugin's PreFilter. Its allocator keeps the ResourceSlices that it is shown for the rest of the pod's
// cycle.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult,
	*fwk.Status) {
	policies, err := p.policies(pod)
	if err != nil {
		// The stock plugin's PostFilter needs the state that its PreFilter writes.
		if _, status := p.DynamicResources.PreFilter(ctx, state, pod, nodes); !status.IsSuccess() {
			return nil, status
		}
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if policies == nil {
		return p.DynamicResources.PreFilter(ctx, state, pod, nodes)
	}
	c := &cycle{policy: policies.Card}
	p.manager.cycle.Store(c)
	defer p.manager.cycle.Store(nil)
	result, status := p.DynamicResources.PreFilter(ctx, state, pod, nodes)
	if status.IsSuccess() {
		state.Write(placementKey, placement{policies.Node, c.usage})
	}
	return result, status
}

// placement is PreFilter's state for the score; it is never changed.
type placement struct {
	policy cards.Policy
	usage  usage
}

const placementKey fwk.StateKey = Name + "/placement"

func (p placement) Clone() fwk.StateData { return p }

// Score rates a node for a pod whose slices have a policy, from 0 to 100: for binpack the mean used part of its GPUs' memory, for
// spread the free part. Without a policy every node gets 0. It is separate from the stock plugin's score, which serves claims with
// alternatives.
func Score(state fwk.CycleState, node string) int64 {
	data, err := state.Read(placementKey)
	if err != nil {
		return 0
	}
	p := data.(placement)
	if p.policy == cards.Spread {
		return 100 - p.usage.percent(node)
	}
	return p.usage.percent(node)
}

// steered is the scheduler's framework with another view of DRA's devices.
type steered struct {
	fwk.Handle
	manager *manager
}

// SharedDRAManager implements fwk.Handle.
func (s steered) SharedDRAManager() fwk.SharedDRAManager { return s.manager }

// manager shows ResourceSlices in the order of the policy of the pod whose PreFilter runs. The scheduler runs one PreFilter at a
// time; bindings, which run concurrently, list no slices.
type manager struct {
	fwk.SharedDRAManager
	cycle atomic.Pointer[cycle]
}

// cycle is one pod's PreFilter.
type cycle struct {
	policy    cards.Policy
	allocated *structured.AllocatedState // the allocated devices, as the allocator will see them
	usage     usage
}

// ResourceClaims implements fwk.SharedDRAManager.
func (m *manager) ResourceClaims() fwk.ResourceClaimTracker {
	return tracker{m.SharedDRAManager.ResourceClaims(), m}
}

// ResourceSlices implements fwk.SharedDRAManager.
func (m *manager) ResourceSlices() fwk.ResourceSliceLister {
	return lister{m.SharedDRAManager.ResourceSlices(), m}
}

type tracker struct {
	fwk.ResourceClaimTracker
	manager *manager
}

// GatherAllocatedState keeps, for the order, the claims that the stock plugin reads before it lists the slices.
func (t tracker) GatherAllocatedState() (*structured.AllocatedState, error) {
	state, err := t.ResourceClaimTracker.GatherAllocatedState()
	if c := t.manager.cycle.Load(); c != nil && err == nil {
		c.allocated = state
	}
	return state, err
}

type lister struct {
	fwk.ResourceSliceLister
	manager *manager
}

// ListWithDeviceTaintRules implements fwk.ResourceSliceLister.
func (l lister) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	all, err := l.ResourceSliceLister.ListWithDeviceTaintRules()
	if c := l.manager.cycle.Load(); c != nil && err == nil && c.allocated != nil {
		all, c.usage = order(all, c.allocated, c.policy)
	}
	return all, err
}
