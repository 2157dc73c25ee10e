package simnode

import (
	"context"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// leaseDuration is the kubelet's; the lease is renewed four times within it.
const leaseDuration = 40 * time.Second

// defaultHeartbeat is how often the kubelet renews the lease and checks its node's status.
const defaultHeartbeat = leaseDuration / 4

// register creates the Node object, or after a reboot updates the existing one.
func (n *Node) register(ctx context.Context) error {
	labels := map[string]string{
		corev1.LabelHostname: n.config.Name,
		corev1.LabelOSStable: "linux",
	}
	if n.config.Machine != nil {
		maps.Copy(labels, n.config.Machine.Labels)
	}
	maps.Copy(labels, n.config.Labels)
	status := n.nodeStatus(nil)
	labels[corev1.LabelArchStable] = status.NodeInfo.Architecture
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.config.Name, Labels: labels}, Status: status}
	created, err := n.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		created, err = n.client.CoreV1().Nodes().Get(ctx, n.config.Name, metav1.GetOptions{})
		if err == nil {
			created.Status = n.nodeStatus(&created.Status)
			created, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("register node %s: %w", n.config.Name, err)
	}
	n.mu.Lock()
	n.object = created
	n.mu.Unlock()
	return nil
}

func (n *Node) nodeStatus(old *corev1.NodeStatus) corev1.NodeStatus {
	status := corev1.NodeStatus{}
	if old != nil {
		status = *old.DeepCopy()
	}
	// A GB200 compute tray: two Grace processors.
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("144"),
		corev1.ResourceMemory:           resource.MustParse("960Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("3Ti"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	architecture := "arm64" // a GB200's host processor is a Grace
	if n.config.Machine != nil {
		maps.Copy(capacity, n.config.Machine.Status.Capacity)
		architecture = n.config.Machine.Status.NodeInfo.Architecture
	}
	status.Capacity, status.Allocatable = capacity, capacity.DeepCopy()
	status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.config.Addresses.Node()},
		{Type: corev1.NodeHostName, Address: n.config.Name},
	}
	status.NodeInfo = corev1.NodeSystemInfo{
		KubeletVersion: "v1.36.3", OperatingSystem: "linux", Architecture: architecture,
		MachineID: n.config.Name, SystemUUID: n.config.Name, BootID: n.bootID,
		OSImage: "simulated", KernelVersion: "simulated", ContainerRuntimeVersion: "simulated://1",
	}
	now := metav1.Now()
	status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", Message: "the simulated node is up",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	return status
}

// heartbeat renews the node's lease until ctx is done. A node whose lease stops is found unreachable by the controller
// manager, and Ready again by its own next status.
func (n *Node) heartbeat(ctx context.Context) {
	logger := klog.FromContext(ctx)
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var lease *coordinationv1.Lease
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		if n.silent.Load() {
			return
		}
		n.stayReady(ctx)
		now := metav1.NewMicroTime(time.Now().Add(time.Duration(n.ahead.Load())))
		var err error
		if lease == nil {
			lease, err = leases.Get(ctx, n.config.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				lease, err = leases.Create(ctx, &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{
						Name: n.config.Name, Namespace: corev1.NamespaceNodeLease,
						OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.config.Name, UID: n.Object().UID}},
					},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(n.config.Name), LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)),
						RenewTime: &now},
				}, metav1.CreateOptions{})
				if err == nil {
					return
				}
			}
		}
		if err == nil {
			lease.Spec.RenewTime = &now
			lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if err != nil {
			lease = nil // read it again the next time
			if ctx.Err() == nil {
				logger.V(2).Info("Renewing the node's lease failed and is tried again", "err", err)
			}
		}
	}, n.config.Heartbeat, 0.1, true)
}

// stayReady writes the node's status again when the control plane counts it as not Ready, as after a time without leases. A node that
// leaves ends when its object is gone.
func (n *Node) stayReady(ctx context.Context) {
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.config.Name, metav1.GetOptions{ResourceVersion: "0"})
	if n.config.Leaves && apierrors.IsNotFound(err) { // or the server's cache does not have the new node yet
		if node, err = n.client.CoreV1().Nodes().Get(ctx, n.config.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Info("The Node object was deleted; the node ends")
			n.left.Store(true)
			n.leave()
		}
	}
	if err != nil {
		return // the lease shows the same
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			if err := n.register(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Writing the node's status failed and is tried again", "err", err)
			}
			return
		}
	}
}
