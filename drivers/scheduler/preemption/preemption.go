// Package preemption extends kube-scheduler's preemption: it also makes room for ResourceClaims, and for extended resources that
// DRA serves by claims that the scheduler creates. Kubernetes 1.36's own preemption never does, since removing a pod in the
// simulation does not free the devices of its claims. A pod that needs them waits behind pods of lower priority for ever.
//
// The stock plugin still decides which pods may be victims and in which order, and handles disruption budgets, nominations and
// evictions. It queries the scheduler's framework whether the pod would fit without some pods; the framework that it gets here also
// answers for claims.
package preemption

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"gpufabric.io/drivers/scheduler/profiles"
)

// Name is the plugin's name in a KubeSchedulerConfiguration, where it replaces DefaultPreemption.
const Name = "GPUFabricPreemption"

// forClaims are the filters for claims: the stock one, and its replacement.
var forClaims = sets.New(names.DynamicResources, profiles.Name)

// Plugin preempts for device-plugin resources and for claims.
type Plugin struct {
	*defaultpreemption.DefaultPreemption
}

// New is the plugin's factory. It does not take arguments: the stock plugin's defaults apply.
func New(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	var versioned configv1.DefaultPreemptionArgs
	scheme.Scheme.Default(&versioned)
	var args config.DefaultPreemptionArgs
	if err := scheme.Scheme.Convert(&versioned, &args, nil); err != nil {
		return nil, err
	}
	claims := newClaims(handle, features)
	stock, err := defaultpreemption.New(ctx, &args, trial{handle, claims}, features)
	if err != nil {
		return nil, err
	}
	stock.Evaluator.PluginName = Name
	stock.Evaluator.Interface = patient{stock, handle, claims}
	return &Plugin{stock}, nil
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// EventsToRegister implements fwk.EnqueueExtensions: the events that can admit a pod that PreEnqueue held back while its victims
// were being evicted. The stock plugin leaves that to the filters. The filter for claims reacts only to the release of a claim,
// which may come before the end of the pod that held it. The event would then be lost on a pod that is still held back, and nothing
// would wake the pod for minutes.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}}}, nil
}

// PostFilter implements fwk.PostFilterPlugin.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod,
	statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	return p.DefaultPreemption.PostFilter(ctx, state, pod, resolvable{statuses})
}

// resolvable reads the filters' verdicts. The stock filter for claims rules preemption out on a node without free devices; here it can
// help.
type resolvable struct{ fwk.NodeToStatusReader }

// Get implements fwk.NodeToStatusReader.
func (r resolvable) Get(node string) *fwk.Status {
	status := r.NodeToStatusReader.Get(node)
	if status.Code() == fwk.UnschedulableAndUnresolvable && forClaims.Has(status.Plugin()) {
		return fwk.NewStatus(fwk.Unschedulable, status.Reasons()...).WithPlugin(status.Plugin())
	}
	return status
}

// NodesForStatusCode implements fwk.NodeToStatusReader.
func (r resolvable) NodesForStatusCode(nodes fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	found, err := r.NodeToStatusReader.NodesForStatusCode(nodes, code)
	if err != nil || code != fwk.Unschedulable {
		return found, err
	}
	hopeless, err := r.NodeToStatusReader.NodesForStatusCode(nodes, fwk.UnschedulableAndUnresolvable)
	if err != nil {
		return nil, err
	}
	for _, node := range hopeless {
		if r.Get(node.Node().Name).Code() == code {
			found = append(found, node)
		}
	}
	return found, nil
}

// trial is the scheduler's framework, but counts claims of pods that are removed in the simulation as free.
type trial struct {
	fwk.Handle
	claims *claims
}

// RunFilterPluginsWithNominatedPods runs every filter except the stock one for claims, and then checks whether the claims fit
// beside the pods in info.
func (t trial) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *corev1.Pod,
	info fwk.NodeInfo) *fwk.Status {
	if !t.claims.asks(pod) {
		return t.Handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, info)
	}
	state = state.Clone()
	state.SetSkipFilterPlugins(state.GetSkipFilterPlugins().Union(forClaims))
	if status := t.Handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, info); !status.IsSuccess() {
		return status
	}
	return t.claims.fit(ctx, pod, info)
}

// patient prevents a pod from preempting again before the result of its last preemption has arrived. The devices of a deleted pod
// are free only once the claim controller has seen the deletion, but the stock plugin waits only for the pods.
type patient struct {
	preemption.Interface
	handle fwk.Handle
	claims *claims
}

// PodEligibleToPreemptOthers implements preemption.Interface.
func (p patient) PodEligibleToPreemptOthers(ctx context.Context, pod *corev1.Pod, nominated *fwk.Status) (bool, string) {
	if ok, why := p.Interface.PodEligibleToPreemptOthers(ctx, pod, nominated); !ok || pod.Status.NominatedNodeName == "" ||
		!p.claims.asks(pod) {
		return ok, why
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(pod.Status.NominatedNodeName)
	if err != nil {
		return true, "" // the node is gone
	}
	if forClaims.Has(nominated.Plugin()) && p.claims.fit(ctx, pod, info).IsSuccess() {
		return false, "not eligible while the claims of preempted pods are being released on the nominated node."
	}
	return true, ""
}
