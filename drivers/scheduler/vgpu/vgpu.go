// Package vgpu is the kube-scheduler plugin that places shares of GPUs: pods that request volcano.sh/vgpu-number, on nodes that
// register their GPUs as for Volcano's scheduler. It writes the same annotations as Volcano, so that the node's plugin serves its
// pods and Volcano's alike.
//
// The plugin reads the used part of a node from the annotations of its pods each time. So there is nothing to restore after a
// restart, and a pod that preemption removes in its simulation counts correctly. Only pods that were chosen and not yet seen with
// their annotations are remembered, in a ledger.
package vgpu

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/scheduler/cards"
	"gpufabric.io/drivers/scheduler/profiles"
	"gpufabric.io/drivers/vgpu/annotation"
)

// Name is the plugin's name in a KubeSchedulerConfiguration.
const Name = "GPUFabricVGPU"

// Args are the plugin's arguments in a KubeSchedulerConfiguration.
type Args struct {
	NodePolicy cards.Policy `json:"nodePolicy,omitempty"` // binpack (default) or spread
	CardPolicy cards.Policy `json:"cardPolicy,omitempty"` // binpack, spread, numa or nvlink (default)
	// Names of the resources by which shares are requested; Volcano's by default.
	NumberResource string `json:"numberResource,omitempty"`
	MemoryResource string `json:"memoryResource,omitempty"`
	CoresResource  string `json:"coresResource,omitempty"`
	// PercentageResource is memory in percent of each GPU's.
	PercentageResource string `json:"percentageResource,omitempty"`
	// NodeLock binds one pod with shares after another to a node, with the lock that Volcano uses.
	NodeLock bool `json:"nodeLock,omitempty"`
}

func defaults() Args {
	return Args{NodePolicy: cards.Binpack, CardPolicy: cards.NVLink,
		NumberResource: "volcano.sh/vgpu-number", MemoryResource: "volcano.sh/vgpu-memory", CoresResource: "volcano.sh/vgpu-cores",
		PercentageResource: "volcano.sh/vgpu-memory-percentage"}
}

// Plugin places shares of GPUs.
type Plugin struct {
	handle    fwk.Handle
	resources annotation.Resources
	policies  cards.Policies
	ledger    *ledger
	topology  *topology
	locks     *locks // nil: nodes are not locked
	now       func() time.Time
	// background runs work that must not be waited for.
	background func(func(context.Context))
}

var (
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.PreBindPlugin     = (*Plugin)(nil)
	_ fwk.BindPlugin        = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
)

// New is the plugin's factory. It refuses unknown arguments, and reports the allowed ones.
func New(ctx context.Context, configuration runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args := defaults()
	if unknown, ok := configuration.(*runtime.Unknown); ok && len(unknown.Raw) > 0 {
		if err := yaml.UnmarshalStrict(unknown.Raw, &args); err != nil {
			return nil, fmt.Errorf("arguments of plugin %s: %w", Name, err)
		}
	}
	policies := cards.Policies{Node: args.NodePolicy, Card: args.CardPolicy}
	if err := policies.Check(); err != nil {
		return nil, fmt.Errorf("arguments of plugin %s: %w", Name, err)
	}
	informers := handle.SharedInformerFactory()
	pods := informers.Core().V1().Pods().Lister()
	resources := annotation.Resources{Number: args.NumberResource, Memory: args.MemoryResource, Cores: args.CoresResource,
		Percentage: args.PercentageResource}
	p := &Plugin{
		handle:    handle,
		resources: resources,
		policies:  policies,
		ledger: newLedger(resources, func(pod *corev1.Pod) bool {
			live, err := pods.Pods(pod.Namespace).Get(pod.Name)
			return err == nil && live.UID == pod.UID
		}),
		topology: newTopology(),
		now:      time.Now,
		// Work that starts here ends with ctx, or by its own time limit.
		background: func(do func(context.Context)) { go do(ctx) },
	}
	if args.NodeLock {
		p.locks = newLocks()
	}
	if _, err := informers.Resource().V1().ResourceSlices().Informer().AddEventHandler(p.topology.handler()); err != nil {
		return nil, fmt.Errorf("watch ResourceSlices for the location of GPUs: %w", err)
	}
	if _, err := informers.Core().V1().Pods().Informer().AddEventHandler(p.pods()); err != nil {
		return nil, fmt.Errorf("watch deleted pods: %w", err)
	}
	if p.locks != nil {
		if _, err := informers.Core().V1().Nodes().Informer().AddEventHandler(
			cache.ResourceEventHandlerFuncs{UpdateFunc: p.locks.changed}); err != nil {
			return nil, fmt.Errorf("watch the locks of nodes: %w", err)
		}
	}
	if err := registerMetrics(informers.Core().V1(), resources); err != nil {
		return nil, fmt.Errorf("register metrics of shared GPUs: %w", err)
	}
	return p, nil
}

// pods drops pods that are deleted.
func (p *Plugin) pods() cache.ResourceEventHandler {
	forget := func(pod *corev1.Pod) {
		p.ledger.forget(pod.UID)
		if taken, ok := p.locks.take(pod.UID); ok {
			p.background(func(ctx context.Context) { p.release(ctx, taken) }) // an event handler must not wait for the API server
		}
	}
	return cache.ResourceEventHandlerFuncs{
		// After an interruption a watch may show a pod and its successor of the same name as one pod that changed.
		UpdateFunc: func(before, after any) {
			if old, ok := before.(*corev1.Pod); ok && old.UID != after.(*corev1.Pod).UID {
				forget(old)
			}
		},
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				forget(pod)
			}
		},
	}
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// EventsToRegister implements fwk.EnqueueExtensions: the events after which a refused pod may fit.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAnnotation | fwk.UpdateNodeAllocatable}},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update}, QueueingHintFn: mended},
	}, nil
}

// mended wakes a pod when its own annotations changed, and not for updates of others.
func mended(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, had := before.(*corev1.Pod)
	now, has := after.(*corev1.Pod)
	if had && has && now.UID == pod.UID && cards.Changed(old, now) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// wish is PreFilter's state for the rest of the cycle; it is never changed.
type wish struct{ *cards.Wish }

const wishKey fwk.StateKey = Name

func (w wish) Clone() fwk.StateData { return w }

// PreFilter reads the pod's request; it skips a pod that does not request shares.
func (p *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	w, err := cards.Read(pod, p.resources, p.policies)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if w == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(wishKey, wish{w})
	return nil, nil
}

// PreFilterExtensions implements fwk.PreFilterPlugin: there is no state to update for pods that preemption adds or removes in its
// simulation.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func wanted(state fwk.CycleState) *cards.Wish {
	data, err := state.Read(wishKey)
	if err != nil {
		return nil
	}
	return data.(wish).Wish
}

// Filter accepts a node with enough free shares. If even an empty node would not suffice, its status rules preemption out.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	w := wanted(state)
	if w == nil {
		return nil
	}
	if p.locks != nil {
		if err := locked(info.Node().Annotations, p.now()); err != nil {
			p.orphan(info.Node())
			return fwk.NewStatus(fwk.Unschedulable, err.Error())
		}
	}
	node, err := p.node(info, pod)
	if err != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	empty := node.Empty()
	if _, err := node.Place(w); err == nil {
		return nil
	} else if _, never := empty.Place(w); never != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, never.Error())
	} else {
		return fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
}

// Score rates a node by the policy for nodes, from 0 to 100. Package profiles rates nodes for a pod that requests slices of DRA
// instead of shares.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	w := wanted(state)
	if w == nil {
		return profiles.Score(state, info.Node().Name), nil
	}
	before, err := p.node(info, pod)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	shares, err := append(cards.Node(nil), before...).Place(w)
	if err != nil {
		return 0, fwk.AsStatus(fmt.Errorf("node %s no longer fits: %w", info.Node().Name, err))
	}
	return before.Score(shares, w.Policies.Node), nil
}

// ScoreExtensions implements fwk.ScorePlugin: the score is from 0 to 100 already.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

// node reads the node's GPUs and the shares of its pods, except one.
func (p *Plugin) node(info fwk.NodeInfo, besides *corev1.Pod) (cards.Node, error) {
	value := info.Node().Annotations[annotation.NodeRegister]
	if value == "" {
		return nil, fmt.Errorf("the node registers no GPUs to share (annotation %s)", annotation.NodeRegister)
	}
	gpus, err := annotation.ParseGPUs(value)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{p.resources.Number, p.resources.Memory, p.resources.Cores} {
		if info.GetAllocatable().GetScalarResources()[corev1.ResourceName(name)] == 0 {
			return nil, fmt.Errorf("the node has no %s: its vGPU plugin does not run", name)
		}
	}
	slots, err := annotation.ParseSlots(info.Node().Annotations[annotation.NodeMIGSlots])
	if err != nil && besides.Annotations[annotation.PodMode] == string(annotation.ModeMIG) {
		return nil, err
	}
	node := make(cards.Node, len(gpus))
	for i, gpu := range gpus {
		node[i] = cards.Card{GPU: gpu, Near: p.topology.near(info.Node().Name, gpu.UUID), Groups: slots[gpu.UUID]}
	}
	var unplaced []*corev1.Pod
	for _, other := range info.GetPods() {
		pod := other.GetPod()
		if pod.UID == besides.UID {
			continue
		}
		if shares, placed := p.ledger.shares(pod, info.Node().Name); placed {
			node.Book(shares, cards.Before(pod, len(shares)))
			if cards.Siblings(besides, pod) {
				node.Mark(shares)
			}
		} else {
			unplaced = append(unplaced, pod)
		}
	}
	// Nominated by a preemption: no shares are written yet, but they must not be given to another pod.
	for _, pod := range unplaced {
		w, err := cards.Read(pod, p.resources, p.policies)
		if err != nil || w == nil {
			continue
		}
		after := append(cards.Node(nil), node...)
		shares, err := after.Place(w)
		if err != nil {
			continue
		}
		node = after
		if cards.Siblings(besides, pod) {
			node.Mark(shares)
		}
	}
	return node, nil
}
