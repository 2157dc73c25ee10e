// Package hook gives containers their shares of GPUs at the moment the container runtime makes them, through NRI.
//
// The kubelet's Allocate names no pod, which is why the public plugin guesses and now and then gives a container another pod's GPUs. The runtime's hook
// carries the pod's UID and the container's name, so here nothing is guessed.
package hook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/assignment"
	"gpufabric.io/drivers/vgpu/cards"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
)

// Pods finds the pods of this node.
type Pods interface {
	// Pod returns the pod of that UID; a pod of the same name with another UID is not it. fresh asks the API server rather than a cache.
	Pod(ctx context.Context, namespace, name, uid string, fresh bool) (*corev1.Pod, error)
}

// Outcome hears what became of a container, so that the scheduler can be told. It must not block: the runtime gives a hook two seconds.
type Outcome interface {
	Served(pod *corev1.Pod, container string)
	Failed(pod *corev1.Pod, container string, why error)
}

// Hook is the NRI plugin. Fill it before it is started; it is not copied afterwards.
type Hook struct {
	Resources assignment.Resources
	Pods      Pods
	Book      *holdings.Book
	Limiter   injection.Limiter
	Outcome   Outcome
	// Deck is the node's shared GPUs now.
	Deck func() *cards.Deck
	// Device is the CDI device that brings a GPU's device nodes and the driver's files into a container ("gpufabric.io/vgpu=GPU-...").
	Device func(uuid string) string
	// NoCoreLimit leaves cores unlimited.
	NoCoreLimit bool

	connected atomic.Bool
}

// Connected tells whether a container runtime calls the hook.
func (h *Hook) Connected() bool { return h.connected.Load() }

// Configure is called by the runtime first.
func (h *Hook) Configure(ctx context.Context, _, runtime, version string) (api.EventMask, error) {
	klog.FromContext(ctx).Info("Connected to the container runtime", "runtime", runtime, "version", version)
	return 0, nil // 0: every event that the plugin has a method for
}

// Synchronize is called when the hook connects: what runs already is booked again, and what ended meanwhile is dropped.
func (h *Hook) Synchronize(ctx context.Context, sandboxes []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	log := klog.FromContext(ctx)
	byID := make(map[string]*api.PodSandbox, len(sandboxes))
	pods := map[string]bool{}
	for _, sandbox := range sandboxes {
		byID[sandbox.GetId()] = sandbox
		pods[sandbox.GetUid()] = true
	}
	live := map[string]bool{}
	for _, container := range containers {
		sandbox := byID[container.GetPodSandboxId()]
		if sandbox == nil || container.GetState() == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		shares := standing(container)
		if len(shares) == 0 {
			continue
		}
		live[container.GetId()] = true
		if err := h.Book.Take(h.Deck(), holder(sandbox, container), shares); err != nil {
			// It runs, whatever the book says; the drift is for a person to see.
			log.Error(err, "A running container holds a share that does not fit", "pod", klog.KRef(sandbox.GetNamespace(), sandbox.GetName()))
		}
	}
	h.Book.Keep(live)
	h.connected.Store(true)
	return nil, h.removeLeftovers(pods)
}

// removeLeftovers removes the accounting directories of pods that ended while nobody watched.
func (h *Hook) removeLeftovers(live map[string]bool) error {
	uids, err := h.Limiter.Pods()
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range uids {
		if !live[uid] {
			errs = append(errs, h.Limiter.Remove(uid))
		}
	}
	return errors.Join(errs...)
}

// heldAnnotation is put on a container with a share, and holds the share: after a restart of the plugin the runtime tells what runs with what, whatever
// has become of the pod's own annotations since.
const heldAnnotation = "vgpu.gpufabric.io/shares"

// standing are the shares of a container that runs already.
func standing(container *api.Container) []annotation.Share {
	lists, err := annotation.ParseShares(container.GetAnnotations()[heldAnnotation])
	if err != nil || len(lists) != 1 {
		return nil
	}
	return lists[0]
}

// CreateContainer gives a container its shares. An error keeps the container from being made, and stands in the pod's Events.
func (h *Hook) CreateContainer(ctx context.Context, sandbox *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	pod, shares, err := h.shares(ctx, sandbox, container.GetName())
	if err == nil && len(shares) == 0 {
		return nil, nil, nil
	}
	var adjustment *api.ContainerAdjustment
	if err == nil {
		adjustment, err = h.give(sandbox, container, shares)
	}
	if err != nil {
		if pod != nil {
			h.Outcome.Failed(pod, container.GetName(), err)
		}
		return nil, nil, fmt.Errorf("gpufabric vgpu: pod %s/%s: %w", sandbox.GetNamespace(), sandbox.GetName(), err)
	}
	h.Outcome.Served(pod, container.GetName())
	return adjustment, nil, nil
}

// shares finds the pod and the container's shares. The cache may be older than the scheduler's decision, so what cannot be right is looked up afresh.
func (h *Hook) shares(ctx context.Context, sandbox *api.PodSandbox, container string) (*corev1.Pod, []annotation.Share, error) {
	namespace, name, uid := sandbox.GetNamespace(), sandbox.GetName(), sandbox.GetUid()
	pod, err := h.Pods.Pod(ctx, namespace, name, uid, false)
	var shares []annotation.Share
	if err == nil {
		if shares, err = h.Resources.Of(pod, container); err == nil {
			return pod, shares, nil
		}
	}
	if pod == nil && !mentioned(sandbox) {
		// Static pods and others that the API does not know, or not yet: without the scheduler's annotation they have no share to be given.
		return nil, nil, nil
	}
	pod, err = h.Pods.Pod(ctx, namespace, name, uid, true)
	if err != nil {
		return nil, nil, err
	}
	shares, err = h.Resources.Of(pod, container)
	return pod, shares, err
}

// mentioned tells whether the pod had the scheduler's annotation when its sandbox was made.
func mentioned(sandbox *api.PodSandbox) bool {
	return sandbox.GetAnnotations()[annotation.PodDevices] != ""
}

func (h *Hook) give(sandbox *api.PodSandbox, container *api.Container, shares []annotation.Share) (*api.ContainerAdjustment, error) {
	deck := h.Deck()
	who := holder(sandbox, container)
	for _, share := range shares {
		if share.Slot != nil {
			return nil, fmt.Errorf("the scheduler gave container %s a MIG slot of %s: Dynamic MIG through Volcano is not served; claim an instance through the DeviceClass mig.nvidia.com",
				container.GetName(), share.UUID)
		}
	}
	if err := h.Book.Take(deck, who, shares); err != nil {
		return nil, err
	}
	identity := injection.Container{PodUID: sandbox.GetUid(), Name: container.GetName()}
	edits, err := h.Limiter.Edits(identity, injection.Limits(shares, deck.Factor, h.NoCoreLimit))
	if err == nil {
		err = h.Limiter.Make(identity)
	}
	if err != nil {
		h.Book.Release(who.ID)
		return nil, err
	}
	adjustment := Adjust(edits)
	seen := map[string]bool{}
	for _, share := range shares {
		if !seen[share.UUID] {
			adjustment.AddCDIDevice(&api.CDIDevice{Name: h.Device(share.UUID)})
		}
		seen[share.UUID] = true
	}
	adjustment.AddAnnotation(heldAnnotation, annotation.FormatShares([][]annotation.Share{shares}))
	return adjustment, nil
}

// Adjust says edits in NRI's words: environment and mounts; nothing else is in an injection.
func Adjust(edits specs.ContainerEdits) *api.ContainerAdjustment {
	adjustment := &api.ContainerAdjustment{}
	for _, variable := range edits.Env {
		key, value, _ := strings.Cut(variable, "=")
		adjustment.AddEnv(key, value)
	}
	for _, mount := range edits.Mounts {
		adjustment.AddMount(&api.Mount{Source: mount.HostPath, Destination: mount.ContainerPath, Type: "bind", Options: mount.Options})
	}
	return adjustment
}

// StopContainer gives a container's shares back as soon as it runs no more.
func (h *Hook) StopContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	h.Book.Release(container.GetId())
	return nil, nil
}

// RemoveContainer gives back the shares of a container that was made and never started.
func (h *Hook) RemoveContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) error {
	h.Book.Release(container.GetId())
	return nil
}

// RemovePodSandbox removes the pod's accounting directories, which nothing mounts any more.
func (h *Hook) RemovePodSandbox(_ context.Context, sandbox *api.PodSandbox) error {
	return h.Limiter.Remove(sandbox.GetUid())
}

// Disconnected is called when the runtime is gone; until it is back, nothing is given.
func (h *Hook) Disconnected() { h.connected.Store(false) }

func holder(sandbox *api.PodSandbox, container *api.Container) holdings.Holder {
	return holdings.Holder{
		ID:   container.GetId(),
		Name: fmt.Sprintf("%s/%s, container %s", sandbox.GetNamespace(), sandbox.GetName(), container.GetName()),
	}
}
