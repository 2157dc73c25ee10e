// Package hook gives containers their shares of GPUs at the moment the container runtime makes them, through NRI.
//
// The kubelet's Allocate names no pod, which is why the public plugin guesses and now and then gives a container another pod's GPUs. The
// runtime's hook carries the pod's UID and the container's name, so here nothing is guessed.
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
	"gpufabric.io/drivers/vgpu/decks"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
)

// Pods finds the pods of this node.
type Pods interface {
	// Pod returns the pod of that UID; a pod of the same name with another UID is not it. fresh asks the API server rather than a cache.
	Pod(ctx context.Context, namespace, name, uid string, fresh bool) (*corev1.Pod, error)
}

// Outcome hears what became of a container, so that the scheduler can be told. It must not block: the runtime gives a hook two seconds.
type Outcome interface {
	// Served also hears what holds the container to its shares; empty where nobody wrote it down.
	Served(pod *corev1.Pod, container string, by injection.Backend)
	Failed(pod *corev1.Pod, container string, why error)
	// Partitioned hears which MIG instances a container has.
	Partitioned(pod *corev1.Pod, container string, given []instances.Instance)
}

// Instances makes MIG instances and takes them away.
type Instances interface {
	Give(ctx context.Context, owner instances.Owner, asks []instances.Ask) ([]instances.Instance, error)
	// End ends one pod's, Keep those of every pod that live does not name.
	End(podUID string)
	Keep(live map[string]bool)
}

// Hook is the NRI plugin. Fill it before it is started; it is not copied afterwards.
type Hook struct {
	Resources annotation.Resources
	Pods      Pods
	Book      *holdings.Book
	Limiter   injection.Limiter
	Outcome   Outcome
	// Deck is the node's shared GPUs now.
	Deck func() *decks.Deck
	// Device is the CDI device that brings a GPU's device nodes and the driver's files into a container ("gpufabric.io/vgpu=GPU-...").
	Device func(uuid string) string
	// NoCoreLimit leaves cores unlimited.
	NoCoreLimit bool
	// ForbidControlOff refuses containers that switch their limiter off, or its limit of cores.
	ForbidControlOff bool
	// Memory has the driver limit the memory of containers whose Limiter is injection.Native.
	Memory Memory
	// Instances makes MIG instances on the GPUs in mode mig.
	Instances Instances
	// Capabilities are the device nodes that open an instance.
	Capabilities func(g *inventory.GPU, i instances.Instance) ([]*specs.DeviceNode, error)

	once      sync.Once
	sweep     chan struct{} // by sweeping
	connected atomic.Bool
	sandboxes sandboxes
	first     first
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
	h.sandboxes.replace(sandboxes)
	live := map[string]bool{}
	for _, container := range containers {
		sandbox := byID[container.GetPodSandboxId()]
		if sandbox == nil || container.GetState() == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		held, _ := granted(container)
		shares := held.in(h.Deck().Factor)
		if len(shares) == 0 {
			continue
		}
		live[container.GetId()] = true
		by := container.GetAnnotations()[annotation.Limits]
		who := holder(sandbox, container)
		who.Limits = by
		if err := h.Book.Hold(h.Deck(), who, shares); err != nil {
			// It runs, whatever the book says; the drift is for a person to see.
			logHolders(ctx, who, err)
			log.Error(err, "A running container holds a share that does not fit", "pod", klog.KRef(sandbox.GetNamespace(), sandbox.GetName()))
		}
		h.restoreMemory(ctx, sandbox, container)
		// The plugin may have died before it told; where it had, nothing is written.
		if pod, err := h.Pods.Pod(ctx, sandbox.GetNamespace(), sandbox.GetName(), sandbox.GetUid(), false); err == nil {
			h.Outcome.Served(pod, container.GetName(), injection.Backend(by))
		}
	}
	h.first.recall(byID, containers)
	h.Book.Keep(live)
	h.Memory.Keep(ctx, live)
	h.Instances.Keep(pods)
	h.connected.Store(true)
	h.RemoveLeftovers(ctx, pods)
	return nil, nil
}

// RemoveLeftovers removes the accounting directories of pods that ended while nobody watched. Those that cannot be removed stay: that keeps
// no pod from its share.
func (h *Hook) RemoveLeftovers(ctx context.Context, live map[string]bool) {
	uids, err := h.Limiter.Pods()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Accounting directories of pods that ended are left")
	}
	for _, uid := range uids {
		if !live[uid] {
			h.RemoveDirectories(ctx, uid)
		}
	}
}

// RemoveDirectories has a pod's accounting directories removed, in the background.
func (h *Hook) RemoveDirectories(ctx context.Context, uid string) {
	if err := h.Limiter.Remove(uid); err != nil {
		klog.FromContext(ctx).Error(err, "Accounting directories of a pod that ended are left", "uid", uid)
	}
	h.wakeSweep()
}

// wakeSweep has Run remove what was set aside.
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

// Run removes what is to be removed, until ctx ends. The runtime must not wait for it: a tenant may have made any number of files.
func (h *Hook) Run(ctx context.Context) error {
	for {
		if err := h.Limiter.Sweep(); err != nil {
			klog.FromContext(ctx).Error(err, "Accounting directories of pods that ended are left")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.sweeping():
		}
	}
}

// heldAnnotation is put on a container with a share, and holds the share: after a restart of the plugin the runtime tells what runs with
// what, whatever has become of the pod's own annotations since.
const heldAnnotation = "vgpu.gpufabric.io/shares"

// factorAnnotation is the size in MiB of the units of memory in heldAnnotation.
const factorAnnotation = "vgpu.gpufabric.io/unit-mib"

// patience is how long the hook waits, for the API server and for MIG instances together: the runtime drops a plugin that takes two
// seconds, and makes the container without it.
const patience = 1500 * time.Millisecond

// mig is what holds containers with MIG instances, as their annotation says it.
const mig = string(injection.MIG)

// granted is what a container that the runtime has was made with.
func granted(container *api.Container) (grant, bool) {
	lists, err := annotation.ParseShares(container.GetAnnotations()[heldAnnotation])
	if err != nil || len(lists) != 1 {
		return grant{}, false
	}
	factor, err := strconv.Atoi(container.GetAnnotations()[factorAnnotation])
	if err != nil {
		factor = 0 // of a version that did not say
	}
	return grant{lists[0], factor}, true
}

// CreateContainer gives a container its shares. An error keeps the container from being made, and stands in the pod's Events.
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
		h.first.remember(sandbox.GetUid(), container.GetName(), grant{shares, h.Deck().Factor})
	}
	h.Outcome.Served(pod, container.GetName(), by)
	return adjustment, nil, nil
}

// shares finds the pod and the container's shares. The cache may be older than the scheduler's decision, so what cannot be right is looked
// up afresh.
func (h *Hook) shares(ctx context.Context, sandbox *api.PodSandbox, container string) (*corev1.Pod, []annotation.Share, error) {
	namespace, name, uid := sandbox.GetNamespace(), sandbox.GetName(), sandbox.GetUid()
	pod, err := h.Pods.Pod(ctx, namespace, name, uid, false)
	var shares []annotation.Share
	if err == nil {
		if had := h.first.of(uid, container, h.Deck().Factor); had != nil {
			return pod, had, nil
		}
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
	adjustment.AddAnnotation(factorAnnotation, strconv.Itoa(h.Deck().Factor))
	adjustment.AddAnnotation(annotation.Limits, string(given.Limits))
	return adjustment, given.Limits, nil
}

// controlled refuses a container whose environment, from wherever it comes, switches the limiter off, or its limit of cores where the
// administrator has not done so himself (noCoreLimit).
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

// adjust says edits in NRI's words: environment, mounts, and the device nodes of MIG instances; nothing else is in an injection.
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
			// Its numbers are not known: what stands on the host under that name is shown as it is.
			adjustment.AddMount(&api.Mount{Source: cmp.Or(node.HostPath, node.Path), Destination: node.Path, Type: "bind",
				Options: []string{"rw", "nosuid", "noexec", "bind"}})
			continue
		}
		adjustment.AddDevice(&api.LinuxDevice{Path: node.Path, Type: node.Type, Major: node.Major, Minor: node.Minor})
	}
	return adjustment
}

// StopContainer gives a container's shares back as soon as it runs no more.
func (h *Hook) StopContainer(ctx context.Context, _ *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	h.release(ctx, container.GetId())
	return nil, nil
}

// RemoveContainer gives back the shares of a container that was made and never started.
func (h *Hook) RemoveContainer(ctx context.Context, _ *api.PodSandbox, container *api.Container) error {
	h.release(ctx, container.GetId())
	return nil
}

// release gives a container's shares back: what the driver reserves for it first, so that the next container can have it.
func (h *Hook) release(ctx context.Context, id string) {
	if err := h.Memory.Release(ctx, id); err != nil {
		klog.FromContext(ctx).Error(err, "Memory of GPUs may stay reserved for a container that has ended", "container", id)
	}
	h.Book.Release(id)
}

// RunPodSandbox notes that a pod has a sandbox more.
func (h *Hook) RunPodSandbox(_ context.Context, sandbox *api.PodSandbox) error {
	h.sandboxes.add(sandbox)
	return nil
}

// RemovePodSandbox ends what the pod had on the node: its MIG instances, and its accounting directories, which nothing mounts any more. A
// pod whose sandbox died has a second one before the first is removed; then nothing ends.
func (h *Hook) RemovePodSandbox(ctx context.Context, sandbox *api.PodSandbox) error {
	if !h.sandboxes.remove(sandbox) {
		return nil
	}
	h.first.forget(sandbox.GetUid())
	h.Instances.End(sandbox.GetUid())
	h.RemoveDirectories(ctx, sandbox.GetUid())
	return nil
}

// Disconnected is called when the runtime is gone; until it is back, nothing is given.
func (h *Hook) Disconnected() { h.connected.Store(false) }

func holder(sandbox *api.PodSandbox, container *api.Container) holdings.Holder {
	return holdings.Holder{
		ID: container.GetId(), Namespace: sandbox.GetNamespace(),
		Name: fmt.Sprintf("%s/%s, container %s", sandbox.GetNamespace(), sandbox.GetName(), container.GetName()),
	}
}
