package simnode

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	cadvisorapi "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
)

// newManagerImpl is the constructor beneath NewManagerImpl, which would put the socket of every node at
// /var/lib/kubelet/device-plugins/kubelet.sock of this machine.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(logger klog.Logger, socketPath string, topology []cadvisorapi.Node,
	store topologymanager.Store) (*devicemanager.ManagerImpl, error)

// capacityPeriod is how often the node checks for changes of the plugins' devices. The kubelet does it every 10 s.
const capacityPeriod = time.Second

// deviceManager is the kubelet's device manager on the node's own socket.
type deviceManager struct {
	*devicemanager.ManagerImpl
	node *Node
	// admission serialises the allocation of devices to pods. The kubelet admits pods one by one, and its code depends on that.
	admission sync.Mutex
}

func newDeviceManager(n *Node) (*deviceManager, error) {
	manager, err := newManagerImpl(klog.Background(), n.dir(kubeletDir, "device-plugins", "kubelet.sock"), nil,
		topologymanager.NewFakeManager())
	if err != nil {
		return nil, fmt.Errorf("start the device manager of node %s: %w", n.config.Name, err)
	}
	return &deviceManager{ManagerImpl: manager, node: n}, nil
}

func (d *deviceManager) start(ctx context.Context, ready config.SourcesReady) error {
	if err := d.Start(klog.FromContext(ctx), d.node.activePods, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return fmt.Errorf("start the device manager of node %s: %w", d.node.config.Name, err)
	}
	return nil
}

func (d *deviceManager) handler() cache.PluginHandler { return d.GetWatcherHandler() }

// admit allocates devices to a pod's containers.
func (d *deviceManager) admit(pod *corev1.Pod) error {
	d.admission.Lock()
	defer d.admission.Unlock()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if err := d.Allocate(pod, &c); err != nil {
			return fmt.Errorf("allocate device plugin resources: %w", err)
		}
	}
	return nil
}

// publish keeps the device plugins' resources in the node's status until ctx is done, and stops the manager then.
func (d *deviceManager) publish(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var published corev1.ResourceList
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		capacity, allocatable, removed := d.GetCapacity()
		for _, name := range removed {
			capacity[corev1.ResourceName(name)] = resource.Quantity{}
			allocatable[corev1.ResourceName(name)] = resource.Quantity{}
		}
		if apiequality.Semantic.DeepEqual(published, allocatable) || (len(published) == 0 && len(allocatable) == 0) {
			return
		}
		if err := d.node.addCapacity(ctx, capacity, allocatable); err != nil {
			logger.V(2).Info("Publishing the device plugins' resources failed and is tried again", "err", err)
			return
		}
		published = allocatable
	}, capacityPeriod)
	if err := d.Stop(logger); err != nil {
		logger.Error(err, "Stopping the device manager")
	}
}

func (n *Node) addCapacity(ctx context.Context, capacity, allocatable corev1.ResourceList) error {
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.config.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", n.config.Name, err)
	}
	for name, quantity := range capacity {
		node.Status.Capacity[name] = quantity
	}
	for name, quantity := range allocatable {
		node.Status.Allocatable[name] = quantity
	}
	if _, err := n.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the capacity of node %s: %w", n.config.Name, err)
	}
	return nil
}
