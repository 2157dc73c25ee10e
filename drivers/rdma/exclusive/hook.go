package exclusive

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// Hook is the NRI plugin that moves devices as pods come and go. Set its fields before it starts, and do not copy it afterwards.
type Hook struct {
	Mover *Mover
	// Grants returns the devices of prepared claims for a pod, by its UID.
	Grants func(podUID string) []Grant
	// Nodes returns the present device nodes of an RDMA device, wherever it is.
	Nodes func(ctx context.Context, device string) ([]*api.LinuxDevice, error)
	// Events writes Events on pods.
	Events record.EventRecorder

	connected atomic.Bool
}

// Connected reports whether the hook is connected to a container runtime.
func (h *Hook) Connected() bool { return h.connected.Load() }

// Configure is the runtime's first call.
func (h *Hook) Configure(ctx context.Context, _, runtime, version string) (api.EventMask, error) {
	klog.FromContext(ctx).Info("Connected to the container runtime", "runtime", runtime, "version", version)
	return 0, nil // 0: every event for which the plugin has a method
}

// Synchronize is called when the hook connects. It takes devices back from pods that ended in between, and gives devices to pods
// that started.
func (h *Hook) Synchronize(ctx context.Context, sandboxes []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	live := make(map[string]bool, len(sandboxes))
	for _, sandbox := range sandboxes {
		live[sandbox.GetId()] = true
	}
	errs := []error{h.Mover.Keep(ctx, live)}
	for _, sandbox := range sandboxes {
		errs = append(errs, h.RunPodSandbox(ctx, sandbox))
	}
	if err := errors.Join(errs...); err != nil {
		// The runtime would drop a plugin that fails here, and then no later pod would get its devices.
		klog.FromContext(ctx).Error(err, "Some RDMA devices are in the wrong network namespace")
	}
	h.connected.Store(true)
	return nil, nil
}

// RunPodSandbox gives a pod its devices: its network namespace exists, its containers do not. An error keeps the pod from starting,
// and appears in its Events.
func (h *Hook) RunPodSandbox(ctx context.Context, sandbox *api.PodSandbox) error {
	grants := h.Grants(sandbox.GetUid())
	if len(grants) == 0 {
		return nil
	}
	pod := sandbox.GetNamespace() + "/" + sandbox.GetName()
	namespace := namespaceOf(sandbox)
	if namespace == "" {
		return nil // The pod is in the node's network, as the devices are.
	}
	missing, err := h.Mover.Give(ctx, sandbox.GetId(), pod, namespace, grants)
	if len(missing) > 0 {
		text := strings.Join(missing, "; ")
		klog.FromContext(ctx).Info("A pod's RDMA interfaces lack some of their addresses or routes", "pod", pod, "missing", text)
		h.Events.Event(reference(sandbox), corev1.EventTypeWarning, ReasonIncomplete, shortened(text))
	}
	if err != nil {
		return fmt.Errorf("gpufabric rdma: %w", err)
	}
	return nil
}

// ReasonIncomplete is the reason of the Event on a pod whose interfaces lack some of the addresses or routes that they have on the
// node.
const ReasonIncomplete = "RDMAInterfaceIncomplete"

// reference is the pod of a sandbox, as Events refer to it.
func reference(sandbox *api.PodSandbox) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: sandbox.GetNamespace(), Name: sandbox.GetName(), UID: types.UID(sandbox.GetUid()),
	}
}

// maxEvent is the API server's limit for an Event's message, in bytes.
const maxEvent = 1024

func shortened(text string) string {
	if len(text) <= maxEvent {
		return text
	}
	const more = " ..."
	return strings.ToValidUTF8(text[:maxEvent-len(more)], "") + more
}

// CreateContainer gives a container its device nodes, whose numbers changed when the device moved to the pod. It refuses a
// container whose device is in another pod's network.
func (h *Hook) CreateContainer(ctx context.Context, sandbox *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	injected := make(map[string]bool) // by claim: a container may have the same one twice
	for _, variable := range container.GetEnv() {
		_, claim, ok := claimOf(variable)
		if !ok || injected[claim] {
			continue
		}
		injected[claim] = true
		if grant := h.grant(sandbox.GetUid(), claim); grant != nil {
			if err := h.inject(ctx, adjustment, grant); err != nil {
				return nil, nil, fmt.Errorf("gpufabric rdma: container %s of pod %s/%s: %w", container.GetName(), sandbox.GetNamespace(),
					sandbox.GetName(), err)
			}
			continue
		}
		return nil, nil, fmt.Errorf("gpufabric rdma: container %s of pod %s/%s: the RDMA devices of claim %s were given to the network of "+
			"another pod, and can be in one at a time; give each pod a claim of its own (a ResourceClaimTemplate does)",
			container.GetName(), sandbox.GetNamespace(), sandbox.GetName(), claim)
	}
	if adjustment.Linux == nil && h.closed(sandbox, container) {
		h.Events.Event(reference(sandbox), corev1.EventTypeWarning, ReasonNotOpened,
			fmt.Sprintf("container %s: %s", container.GetName(), NotOpened))
	}
	if adjustment.Linux == nil {
		return nil, nil, nil
	}
	return adjustment, nil, nil
}

// closed reports whether a container was given an RDMA device that is not in its pod's network: a unit of a device plugin, or a
// share of a claim.
func (h *Hook) closed(sandbox *api.PodSandbox, container *api.Container) bool {
	given := slices.ContainsFunc(container.GetLinux().GetDevices(), func(d *api.LinuxDevice) bool {
		return strings.HasPrefix(d.GetPath(), "/dev/infiniband/uverbs")
	})
	if !given || namespaceOf(sandbox) == "" {
		return false
	}
	exclusively, err := h.Mover.Exclusive()
	return exclusively && err == nil
}

// inject adds the device nodes of a grant.
func (h *Hook) inject(ctx context.Context, adjustment *api.ContainerAdjustment, grant *Grant) error {
	for _, device := range grant.Devices {
		nodes, err := h.Nodes(ctx, device.RDMA)
		if err != nil {
			return fmt.Errorf("the device nodes of %s: %w", device.RDMA, err)
		}
		if !slices.ContainsFunc(nodes, func(n *api.LinuxDevice) bool { return strings.HasPrefix(filepath.Base(n.GetPath()), "uverbs") }) {
			return fmt.Errorf("%s of claim %s cannot be opened: the kernel no longer has a uverbs device for it", device.RDMA, grant.Claim)
		}
		for _, node := range nodes {
			adjustment.AddDevice(node)
		}
	}
	return nil
}

// grant is a claim's Grant for a pod; nil: none.
func (h *Hook) grant(podUID, claim string) *Grant {
	for _, grant := range h.Grants(podUID) {
		if grant.Claim == claim {
			return &grant
		}
	}
	return nil
}

// StopPodSandbox takes the devices back while the pod's network namespace is still there.
func (h *Hook) StopPodSandbox(ctx context.Context, sandbox *api.PodSandbox) error {
	return h.Mover.Take(ctx, sandbox.GetId())
}

// RemovePodSandbox takes back devices that could not be taken back before.
func (h *Hook) RemovePodSandbox(ctx context.Context, sandbox *api.PodSandbox) error {
	return h.Mover.Take(ctx, sandbox.GetId())
}

// Disconnected is called when the connection to the runtime is lost. Until it is back, no device is given.
func (h *Hook) Disconnected() { h.connected.Store(false) }

// namespaceOf is the path of the pod's network namespace; empty: the node's.
func namespaceOf(sandbox *api.PodSandbox) string {
	for _, namespace := range sandbox.GetLinux().GetNamespaces() {
		if namespace.GetType() == "network" {
			return namespace.GetPath()
		}
	}
	return ""
}
