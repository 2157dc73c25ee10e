package vgpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"gpufabric.io/drivers/vgpu/annotation"
)

// bindAllocating is the bind phase between the scheduler's choice and the plugin's answer.
const bindAllocating = "allocating"

// restoreTimeout bounds putting annotations back, which outlives the scheduling attempt's own context.
const restoreTimeout = 10 * time.Second

// Reserve chooses the shares and books them, so that the next pod's cycle sees them taken.
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

// PreBind writes the pod's annotations before it is bound: the kubelet may ask for its devices the moment it is.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	if wanted(state) == nil {
		return nil
	}
	shares := p.ledger.assumed(pod.UID)
	if shares == nil {
		return fwk.AsStatus(fmt.Errorf("pod %s/%s: no shares were reserved on %s", pod.Namespace, pod.Name, nodeName))
	}
	if p.locks != nil {
		if err := p.lock(ctx, pod.UID, nodeName); errors.Is(err, errLocked) {
			return fwk.NewStatus(fwk.Unschedulable, err.Error())
		} else if err != nil {
			return fwk.AsStatus(err)
		}
	}
	written := map[string]*string{}
	for key, value := range p.annotations(nodeName, shares) {
		written[key] = &value
	}
	if err := p.patch(ctx, pod, "", written); err != nil {
		return fwk.AsStatus(fmt.Errorf("write the shares of pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	return nil
}

// annotations are what Volcano's scheduler writes.
func (p *Plugin) annotations(node string, shares [][]annotation.Share) map[string]string {
	devices, now := annotation.FormatShares(shares), strconv.FormatInt(p.now().Unix(), 10)
	return map[string]string{
		annotation.PodNode: node, annotation.PodTime: now,
		annotation.PodDevices: devices, annotation.PodPending: devices,
		annotation.BindPhase: bindAllocating, annotation.BindTime: now,
	}
}

// Unreserve gives the shares back and puts the annotations back as they were, unless the pod was bound after all: then they are what its
// devices are known by.
func (p *Plugin) Unreserve(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, nodeName string) {
	if p.ledger.assumed(pod.UID) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	bound, err := p.restore(ctx, pod)
	if err != nil {
		// What stays is harmless: without a node the pod has no devices, and the next attempt overwrites it.
		utilruntime.HandleErrorWithContext(ctx, err, "Cannot put a pod's annotations back", "pod", pod.Namespace+"/"+pod.Name, "node", nodeName)
	}
	if !bound {
		p.ledger.forget(pod.UID)
	}
	if bound || err != nil {
		return // it may be on its way, and the lock expires
	}
	if taken, ok := p.locks.take(pod.UID); ok {
		p.unlock(ctx, taken)
	}
}

// release takes the lock of a pod that is gone off its node: its plugin may never have been asked for the pod's shares.
func (p *Plugin) release(ctx context.Context, taken lock) {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	p.unlock(ctx, taken)
}

// restore puts back the annotations that pod had when its cycle began; bound says that it left them, since the pod is on a node.
func (p *Plugin) restore(ctx context.Context, pod *corev1.Pod) (bound bool, err error) {
	live, err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != pod.UID:
		return false, nil
	case err != nil:
		return false, err
	case live.Spec.NodeName != "":
		return true, nil
	}
	before := map[string]*string{}
	for _, key := range slices.Sorted(maps.Keys(p.annotations("", nil))) {
		value, had := pod.Annotations[key]
		now, has := live.Annotations[key]
		if had && value != now {
			before[key] = &value
		} else if !had && has {
			before[key] = nil
		}
	}
	if len(before) == 0 {
		return false, nil
	}
	// The version refuses the patch if somebody, such as a binding that was thought lost, changed the pod meanwhile.
	err = p.patch(ctx, pod, live.ResourceVersion, before)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return false, err
}

// patch sets annotations of this very pod (a nil removes one), of a given version where that is not empty.
func (p *Plugin) patch(ctx context.Context, pod *corev1.Pod, version string, annotations map[string]*string) error {
	metadata := map[string]any{"uid": pod.UID, "annotations": annotations}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: Name})
	return err
}
