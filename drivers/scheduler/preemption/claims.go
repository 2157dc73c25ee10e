package preemption

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/utils/ptr"
)

// compiledSelectors is how many CEL selectors stay compiled, the same number as in the stock plugin.
const compiledSelectors = 10

// claims checks whether a pod's claims could be allocated on a node without some of the node's pods.
type claims struct {
	manager  fwk.SharedDRAManager
	pods     corelisters.PodLister
	features structured.Features
	selector *cel.Cache
}

func newClaims(handle fwk.Handle, features feature.Features) *claims {
	return &claims{
		manager:  handle.SharedDRAManager(),
		pods:     handle.SharedInformerFactory().Core().V1().Pods().Lister(),
		features: dynamicresources.AllocatorFeatures(features),
		selector: cel.NewCache(compiledSelectors, cel.Features{
			EnableConsumableCapacity: features.EnableDRAConsumableCapacity, EnableListTypeAttributes: features.EnableDRAListTypeAttributes}),
	}
}

// fit succeeds where every claim of pod is allocated on the node, or could be beside the pods in info. A claim counts as free if
// its last user is no longer in info, or has ended. Extended resources that DRA serves on the node count as one more claim.
func (c *claims) fit(ctx context.Context, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	open, status := c.unallocated(pod, info.Node())
	if !status.IsSuccess() {
		return status
	}
	extended := c.extended(pod, info)
	if extended != nil {
		open = append(open, extended)
	}
	if len(open) == 0 {
		return nil
	}
	state, err := c.manager.ResourceClaims().GatherAllocatedState()
	if err != nil {
		// It changed while it was read: the next attempt will see the change.
		return fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("read what is allocated: %v", err))
	}
	all, err := c.manager.ResourceClaims().List()
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("list claims: %w", err))
	}
	if old := stale(pod, all); extended != nil && old != nil {
		return fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("claim %s, of an earlier attempt, is about to be deleted", old.Name))
	}
	for _, claim := range all {
		if claim.Status.Allocation != nil && !c.used(claim, info) {
			release(state, claim)
		}
	}
	slices, err := c.slices(info.Node().Name)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("list ResourceSlices: %w", err))
	}
	allocator, err := structured.NewAllocator(ctx, c.features, *state, c.manager.DeviceClasses(), slices, c.selector)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("prepare an allocation: %w", err))
	}
	results, err := allocator.Allocate(ctx, info.Node(), open)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return fwk.NewStatus(fwk.Unschedulable, err.Error())
	case err != nil:
		return fwk.AsStatus(err)
	case results == nil:
		return fwk.NewStatus(fwk.Unschedulable, "cannot allocate all claims")
	}
	return nil
}

// unallocated returns the pod's claims without devices. Where a claim has devices elsewhere, no preemption on this node can help.
func (c *claims) unallocated(pod *corev1.Pod, node *corev1.Node) ([]*resourceapi.ResourceClaim, *fwk.Status) {
	var open []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
		}
		if name == nil { // none was created, so none is needed
			continue
		}
		claim, err := c.manager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("claim %s: %v", *name, err))
		}
		if claim.Status.Allocation == nil {
			open = append(open, claim)
			continue
		}
		if placed := claim.Status.Allocation.NodeSelector; placed != nil {
			selector, err := nodeaffinity.NewNodeSelector(placed)
			if err != nil {
				return nil, fwk.AsStatus(fmt.Errorf("claim %s: %w", *name, err))
			}
			if !selector.Match(node) {
				return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("claim %s has its devices on another node", *name))
			}
		}
	}
	return open, nil
}

// used reports whether a claim has a user: a pod in info, a pod of another node that has not ended, or an object that is not a pod. A claim
// without a reservation counts as used: it is between two writes of its user.
func (c *claims) used(claim *resourceapi.ResourceClaim, info fwk.NodeInfo) bool {
	if len(claim.Status.ReservedFor) == 0 {
		return true
	}
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" || c.present(claim.Namespace, user.Name, user.UID, info) {
			return true
		}
	}
	return false
}

func (c *claims) present(space, name string, uid types.UID, info fwk.NodeInfo) bool {
	for _, other := range info.GetPods() {
		if other.GetPod().UID == uid {
			return true
		}
	}
	pod, err := c.pods.Pods(space).Get(name)
	if err != nil || pod.UID != uid || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	// On this node but not in info: removed in the simulation. Not bound yet according to the API server: about to be bound to some
	// node.
	return pod.Spec.NodeName != info.Node().Name
}

// release removes a claim's devices from the allocated ones.
func release(state *structured.AllocatedState, claim *resourceapi.ResourceClaim) {
	for _, result := range claim.Status.Allocation.Devices.Results {
		if ptr.Deref(result.AdminAccess, false) { // never counted
			continue
		}
		id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		if result.ShareID == nil {
			state.AllocatedDevices.Delete(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Delete(structured.MakeSharedDeviceID(id, result.ShareID))
		if result.ConsumedCapacity != nil {
			state.AggregatedCapacity.Remove(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
		}
	}
}

// slices returns those that matter for a node: its own, and those for more than one node. Otherwise the allocator would read every
// slice of the cluster.
func (c *claims) slices(node string) ([]*resourceapi.ResourceSlice, error) {
	all, err := c.manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	var near []*resourceapi.ResourceSlice
	for _, slice := range all {
		if slice.Spec.NodeName == nil || *slice.Spec.NodeName == node {
			near = append(near, slice)
		}
	}
	return near, nil
}
