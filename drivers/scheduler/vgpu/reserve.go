package vgpu

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"gpufabric.io/drivers/vgpu/annotation"
)

// bindAllocating is the bind phase between the scheduler's choice and the plugin's answer.
const bindAllocating = "allocating"

// unreserveTimeout bounds requests to the API server after a failed attempt, whose own context has ended.
const unreserveTimeout = 10 * time.Second

// Reserve chooses the shares and books them, so that the next pod's cycle sees them in use.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	w := wanted(state)
	if w == nil {
		return nil
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(nodeName)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("read node %s: %w", nodeName, err))
	}
	node, err := p.node(info, pod)
	if err != nil {
		return fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	shares, err := node.Place(w)
	if err != nil {
		return fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	p.ledger.assume(pod.UID, nodeName, shares)
	return nil
}

// PreBindPreFlight implements fwk.PreBindPlugin.
func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, _ *corev1.Pod, _ string) (*fwk.PreBindPreFlightResult,
	*fwk.Status) {
	if wanted(state) == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}

// PreBind takes the node's lock, where nodes are locked.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	if wanted(state) == nil || p.locks == nil {
		return nil
	}
	if err := p.lock(ctx, pod.UID, nodeName); errors.Is(err, errLocked) {
		return fwk.NewStatus(fwk.Unschedulable, err.Error())
	} else if err != nil {
		return fwk.AsStatus(err)
	}
	return nil
}

// Bind binds a pod with shares, and makes the API server write them in the same step. The kubelet may allocate the pod's devices the moment
// it is bound; a failed attempt does not change the pod; and no right to change pods is needed. Other pods are left to the next binder.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	if wanted(state) == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	shares := p.ledger.assumed(pod.UID)
	if shares == nil {
		return fwk.AsStatus(fmt.Errorf("pod %s/%s: no shares were reserved on %s", pod.Namespace, pod.Name, nodeName))
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: p.annotations(nodeName, shares)},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}
	if err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fwk.AsStatus(fmt.Errorf("bind pod %s/%s to node %s with its shares: %w", pod.Namespace, pod.Name, nodeName, err))
	}
	return nil
}

// annotations are those that Volcano's scheduler writes.
func (p *Plugin) annotations(node string, shares [][]annotation.Share) map[string]string {
	devices, now := annotation.FormatShares(shares), strconv.FormatInt(p.now().Unix(), 10)
	return map[string]string{
		annotation.PodNode: node, annotation.PodTime: now,
		annotation.PodDevices: devices, annotation.PodPending: devices,
		annotation.BindPhase: bindAllocating, annotation.BindTime: now,
	}
}

// Unreserve releases the shares, unless the pod was bound after all: then they are its own.
func (p *Plugin) Unreserve(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, nodeName string) {
	if p.ledger.assumed(pod.UID) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unreserveTimeout)
	defer cancel()
	bound, err := p.bound(ctx, pod)
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Bind failed with an unknown outcome; its shares count as taken until it is seen",
			"pod", pod.Namespace+"/"+pod.Name, "node", nodeName)
	}
	if bound || err != nil {
		return // the binding may still arrive; the lock expires
	}
	p.ledger.forget(pod.UID)
	if taken, ok := p.locks.take(pod.UID); ok {
		p.unlock(ctx, taken)
	}
}

// release removes the lock of a deleted pod from its node: its plugin may never have got a request for the pod's shares.
func (p *Plugin) release(ctx context.Context, taken lock) {
	ctx, cancel := context.WithTimeout(ctx, unreserveTimeout)
	defer cancel()
	p.unlock(ctx, taken)
}

// bound reports whether a pod is on a node: a binding whose answer was lost may have succeeded.
func (p *Plugin) bound(ctx context.Context, pod *corev1.Pod) (bool, error) {
	live, err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != pod.UID:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return live.Spec.NodeName != "", nil
}
