// Package hook gives containers their shares of GPUs when the container runtime makes them, through NRI.
//
// The kubelet's Allocate does not name a pod, so the public plugin guesses, and now and then gives a container another pod's GPUs. The
// runtime's hook gets the pod's UID and the container's name, so nothing is guessed here.
package hook

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// Pods finds the pods of this node.
type Pods interface {
	// Pod returns the pod with that UID; a pod of the same name with another UID does not match. fresh reads the API server instead of
	// a cache.
	Pod(ctx context.Context, namespace, name, uid string, fresh bool) (*corev1.Pod, error)
}

// Outcome receives the result for a container, for the scheduler. It must not block: the runtime gives a hook two seconds.
type Outcome interface {
	// Served also receives the mechanism that enforces the container's share; empty where that is unknown.
	Served(pod *corev1.Pod, container string, by injection.Backend)
	Failed(pod *corev1.Pod, container string, why error)
	// Partitioned is given the MIG instances of a container.
	Partitioned(pod *corev1.Pod, container string, given []instances.Instance)
}

// Instances makes and removes MIG instances.
type Instances interface {
	Give(ctx context.Context, owner instances.Owner, asks []instances.Ask) ([]instances.Instance, error)
	// End removes one pod's instances, Keep those of every pod that is not in live.
	End(podUID string)
	Keep(live map[string]bool)
}

// Hook is the NRI plugin. Set its fields before it starts, and do not copy it afterwards.
type Hook struct {
	Resources annotation.Resources
	Pods      Pods
	Book      *holdings.Book
	Limiter   injection.Limiter
	Outcome   Outcome
	// SharedGPUs returns the node's shared GPUs now.
	SharedGPUs func() *sharedgpus.Set
	// Device is the CDI device for a GPU's device nodes and the driver's files in a container ("gpufabric.io/vgpu=GPU-...").
	Device func(uuid string) string
	// NoCoreLimit leaves cores unlimited.
	NoCoreLimit bool
	// ForbidControlOff refuses containers that switch off their limiter, or its limit of cores.
	ForbidControlOff bool
	// Memory lets the driver limit the memory of containers whose Limiter is injection.Native.
	Memory Memory
	// Instances makes MIG instances on the GPUs in mode mig.
	Instances Instances
	// Capabilities are the device nodes that open an instance.
	Capabilities func(g *inventory.GPU, i instances.Instance) ([]*specs.DeviceNode, error)

	// Runs reports whether a container has processes, by the node's cgroups, or any of the pod's where the container is empty; nil: the
	// runtime's messages count.
	Runs func(ctx context.Context, podUID, container string) bool

	once      sync.Once
	sweep     chan struct{} // by sweeping
	connected atomic.Bool
	sandboxes sandboxes
	first     first
	lingering lingering
}

// Connected reports whether the hook is connected to a container runtime.
func (h *Hook) Connected() bool { return h.connected.Load() }

// Configure is the runtime's first call.
func (h *Hook) Configure(ctx context.Context, _, runtime, version string) (api.EventMask, error) {
	klog.FromContext(ctx).Info("Connected to the container runtime", "runtime", runtime, "version", version)
	return 0, nil // 0: every event for which the plugin has a method
}

// Synchronize is called when the hook connects. It books running containers, and drops those that ended in between.
func (h *Hook) Synchronize(ctx context.Context, sandboxes []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	log := klog.FromContext(ctx)
	byID := make(map[string]*api.PodSandbox, len(sandboxes))
	pods := map[string]bool{}
	for _, sandbox := range sandboxes {
		byID[sandbox.GetId()] = sandbox
		pods[sandbox.GetUid()] = true
	}
	h.sandboxes.replace(sandboxes)
	live := map[string]bool{}
	for _, container := range containers {
		sandbox := byID[container.GetPodSandboxId()]
		if sandbox == nil {
			continue
		}
		held, _ := granted(container)
		shares := held.in(h.SharedGPUs().Factor)
		if len(shares) == 0 {
			continue
		}
		stopped := container.GetState() == api.ContainerState_CONTAINER_STOPPED
		if stopped && (h.Runs == nil || !h.Runs(ctx, sandbox.GetUid(), container.GetId())) {
			continue
		}
		live[container.GetId()] = true
		by := container.GetAnnotations()[annotation.Limits]
		who := holder(sandbox, container)
		who.Limits = by
		if err := h.Book.Hold(h.SharedGPUs(), who, shares); err != nil {
			// The container runs, even where the books refuse it. The log shows the difference.
			logHolders(ctx, who, err)
			log.Error(err, "A running container has a share that does not fit", "pod", klog.KRef(sandbox.GetNamespace(), sandbox.GetName()))
		}
		h.restoreMemory(ctx, sandbox, container)
		// The plugin may have died before it reported this; if it had reported, nothing is written.
		if pod, err := h.Pods.Pod(ctx, sandbox.GetNamespace(), sandbox.GetName(), sandbox.GetUid(), false); err == nil {
			h.Outcome.Served(pod, container.GetName(), injection.Backend(by))
		}
		if stopped {
			h.release(ctx, sandbox, container.GetId()) // when its last process has ended
		}
	}
	h.lingering.addTo(live, pods)
	h.first.recall(byID, containers)
	h.Book.Keep(live)
	h.Memory.Keep(ctx, live)
	h.Instances.Keep(pods)
	h.connected.Store(true)
	h.RemoveLeftovers(ctx, pods)
	return nil, nil
}

// RemoveLeftovers removes the accounting directories of pods that ended while the plugin was away. A directory that cannot be
// removed stays: that must not affect other pods.
func (h *Hook) RemoveLeftovers(ctx context.Context, live map[string]bool) {
	uids, err := h.Limiter.Pods()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Accounting directories of pods that ended were not removed")
	}
	for _, uid := range uids {
		if !live[uid] {
			h.RemoveDirectories(ctx, uid)
		}
	}
}

// RemoveDirectories removes a pod's accounting directories, in the background.
func (h *Hook) RemoveDirectories(ctx context.Context, uid string) {
	if err := h.Limiter.Remove(uid); err != nil {
		klog.FromContext(ctx).Error(err, "Accounting directories of a pod that ended were not removed", "uid", uid)
	}
	h.wakeSweep()
}

// wakeSweep triggers the removal of directories that were set aside, by Run.
func (h *Hook) wakeSweep() {
	select {
	case h.sweeping() <- struct{}{}:
	default:
	}
}

func (h *Hook) sweeping() chan struct{} {
	h.once.Do(func() { h.sweep = make(chan struct{}, 1) })
	return h.sweep
}

// Run removes directories until ctx ends. The runtime must not wait for it: a tenant may have made any number of files.
func (h *Hook) Run(ctx context.Context) error {
	for {
		if err := h.Limiter.Sweep(); err != nil {
			klog.FromContext(ctx).Error(err, "Accounting directories of pods that ended were not removed")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.sweeping():
		}
	}
}

// heldAnnotation is set on a container with a share, and holds the share. After a restart of the plugin the runtime reports the shares
// of its containers, even if the pod's own annotations have changed since.
const heldAnnotation = "vgpu.gpufabric.io/shares"

// factorAnnotation is the size in MiB of the units of memory in heldAnnotation.
const factorAnnotation = "vgpu.gpufabric.io/unit-mib"

// patience is how long the hook waits, for the API server and for MIG instances together. The runtime drops a plugin that takes two
// seconds, and makes the container without it.
const patience = 1500 * time.Millisecond

// mig is the annotation's value for containers with MIG instances.
const mig = string(injection.MIG)

// granted are the shares that a container in the runtime was made with.
func granted(container *api.Container) (grant, bool) {
	lists, err := annotation.ParseShares(container.GetAnnotations()[heldAnnotation])
	if err != nil || len(lists) != 1 {
		return grant{}, false
	}
	factor, err := strconv.Atoi(container.GetAnnotations()[factorAnnotation])
	if err != nil {
		factor = 0 // from a version that did not write it
	}
	return grant{lists[0], factor}, true
}

// CreateContainer gives a container its shares. An error prevents the container, and appears in the pod's Events.
func (h *Hook) CreateContainer(ctx context.Context, sandbox *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pod, shares, err := h.shares(ctx, sandbox, container.GetName())
	if err == nil && len(shares) == 0 {
		return nil, nil, nil
	}
	var adjustment *api.ContainerAdjustment
	var by injection.Backend
	if err == nil {
		adjustment, by, err = h.give(ctx, pod, sandbox, container, shares)
	}
	if err != nil {
		if pod != nil {
			h.Outcome.Failed(pod, container.GetName(), err)
		}
		return nil, nil, fmt.Errorf("gpufabric vgpu: pod %s/%s: %w", sandbox.GetNamespace(), sandbox.GetName(), err)
	}
	if by != injection.MIG { // the state of the instances remembers these
		h.first.remember(sandbox.GetUid(), container.GetName(), grant{shares, h.SharedGPUs().Factor})
	}
	h.Outcome.Served(pod, container.GetName(), by)
	return adjustment, nil, nil
}

// shares finds the pod and the container's shares. The cache may be older than the scheduler's decision, so an invalid result is
// read again from the API server.
func (h *Hook) shares(ctx context.Context, sandbox *api.PodSandbox, container string) (*corev1.Pod, []annotation.Share, error) {
	namespace, name, uid := sandbox.GetNamespace(), sandbox.GetName(), sandbox.GetUid()
	pod, err := h.Pods.Pod(ctx, namespace, name, uid, false)
	var shares []annotation.Share
	if err == nil {
		if had := h.first.of(uid, container, h.SharedGPUs().Factor); had != nil {
			return pod, had, nil
		}
		if shares, err = h.Resources.Of(pod, container); err == nil {
			return pod, shares, nil
		}
	}
	if pod == nil && !mentioned(sandbox) {
		// Static pods, and pods that are not in the API (yet): without the scheduler's annotation they have no share.
		return nil, nil, nil
	}
	pod, err = h.Pods.Pod(ctx, namespace, name, uid, true)
	if err != nil {
		return nil, nil, err
	}
	shares, err = h.Resources.Of(pod, container)
	return pod, shares, err
}

// mentioned reports whether the pod had the scheduler's annotation when its sandbox was made.
func mentioned(sandbox *api.PodSandbox) bool {
	return sandbox.GetAnnotations()[annotation.PodDevices] != ""
}

func (h *Hook) give(ctx context.Context, pod *corev1.Pod, sandbox *api.PodSandbox, container *api.Container,
	shares []annotation.Share) (*api.ContainerAdjustment, injection.Backend, error) {
	if h.ForbidControlOff {
		if err := controlled(container.GetEnv(), h.NoCoreLimit); err != nil {
			return nil, "", err
		}
	}
	given, err := h.Give(ctx, pod, container.GetName(), holder(sandbox, container), shares)
	if err != nil {
		return nil, "", err
	}
	adjustment := adjust(given.Edits)
	shared(adjustment)
	for _, device := range given.Devices {
		adjustment.AddCDIDevice(&api.CDIDevice{Name: device})
	}
	adjustment.AddAnnotation(heldAnnotation, annotation.FormatShares([][]annotation.Share{given.Shares}))
	adjustment.AddAnnotation(factorAnnotation, strconv.Itoa(h.SharedGPUs().Factor))
	adjustment.AddAnnotation(annotation.Limits, string(given.Limits))
	return adjustment, given.Limits, nil
}

// controlled refuses a container whose environment, from any source, switches off the limiter, or its limit of cores where the
// administrator has not done so (noCoreLimit).
func controlled(env []string, noCoreLimit bool) error {
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		off := ""
		switch {
		case name == injection.TaskPriority && value != "" && value != "1":
			return fmt.Errorf("%s=%s in its environment puts its work before that of others on the GPU, and the administrator forbids that "+
				"(--forbid-control-off): remove the variable", name, value)
		case name == injection.ControlOff && value != "" && value != "false" && value != "0":
			off = "limits"
		case name == injection.CorePolicy && strings.EqualFold(value, injection.CoreLimitOff) && !noCoreLimit:
			off = "limit of cores"
		default:
			continue
		}
		return fmt.Errorf("%s=%s in its environment switches its %s off, and the administrator forbids that (--forbid-control-off): remove "+
			"the variable", name, value, off)
	}
	return nil
}

// adjust converts edits to NRI: environment, mounts, and the device nodes of MIG instances; an injection has nothing else.
func adjust(edits specs.ContainerEdits) *api.ContainerAdjustment {
	adjustment := &api.ContainerAdjustment{}
	for _, variable := range edits.Env {
		key, value, _ := strings.Cut(variable, "=")
		adjustment.AddEnv(key, value)
	}
	for _, mount := range edits.Mounts {
		adjustment.AddMount(&api.Mount{Source: mount.HostPath, Destination: mount.ContainerPath, Type: "bind", Options: mount.Options})
	}
	for _, node := range edits.DeviceNodes {
		if node.Type == "" {
			// Its numbers are unknown: mount the host's file of that name.
			adjustment.AddMount(&api.Mount{Source: cmp.Or(node.HostPath, node.Path), Destination: node.Path, Type: "bind",
				Options: []string{"rw", "nosuid", "noexec", "bind"}})
			continue
		}
		adjustment.AddDevice(&api.LinuxDevice{Path: node.Path, Type: node.Type, Major: node.Major, Minor: node.Minor})
	}
	return adjustment
}

// StopContainer releases a container's shares as soon as it no longer runs.
func (h *Hook) StopContainer(ctx context.Context, sandbox *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	h.release(ctx, sandbox, container.GetId())
	return nil, nil
}

// RemoveContainer releases the shares of a container that was made and never started.
func (h *Hook) RemoveContainer(ctx context.Context, sandbox *api.PodSandbox, container *api.Container) error {
	h.release(ctx, sandbox, container.GetId())
	return nil
}

// release releases a container's shares once it has no process. The driver's reservation for it goes first, so that the next container
// can have it.
func (h *Hook) release(ctx context.Context, sandbox *api.PodSandbox, id string) {
	h.atEnd(ctx, sandbox.GetUid(), id, func(ctx context.Context) {
		if err := h.Memory.Release(ctx, id); err != nil {
			klog.FromContext(ctx).Error(err, "Memory of GPUs may stay reserved for a container that has ended", "container", id)
		}
		h.Book.Release(id)
	})
}

// RunPodSandbox records another sandbox of a pod.
func (h *Hook) RunPodSandbox(_ context.Context, sandbox *api.PodSandbox) error {
	h.sandboxes.add(sandbox)
	return nil
}

// RemovePodSandbox removes the pod's leftovers on the node: its MIG instances, and its accounting directories, which are no longer
// mounted. A pod whose sandbox died has a second one before the first is removed; then it removes none.
func (h *Hook) RemovePodSandbox(ctx context.Context, sandbox *api.PodSandbox) error {
	if !h.sandboxes.remove(sandbox) {
		return nil
	}
	h.first.forget(sandbox.GetUid())
	h.atEnd(ctx, sandbox.GetUid(), "", func(ctx context.Context) {
		h.Instances.End(sandbox.GetUid())
		h.RemoveDirectories(ctx, sandbox.GetUid())
	})
	return nil
}

// Disconnected is called when the connection to the runtime is lost. Until it is back, no shares are given.
func (h *Hook) Disconnected() { h.connected.Store(false) }

func holder(sandbox *api.PodSandbox, container *api.Container) holdings.Holder {
	return holdings.Holder{
		ID: container.GetId(), Namespace: sandbox.GetNamespace(),
		Name: fmt.Sprintf("%s/%s, container %s", sandbox.GetNamespace(), sandbox.GetName(), container.GetName()),
	}
}
