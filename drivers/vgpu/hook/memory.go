package hook

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/memorylimits"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/injection"
)

// Memory lets the driver limit containers' GPU memory, by their cgroups.
type Memory interface {
	// Hold limits a container with no running process.
	Hold(ctx context.Context, c memorylimits.Container, limits []memorylimits.Limit) error
	// Restore limits a running container. It reports whether the limit was missing or wrong.
	Restore(ctx context.Context, c memorylimits.Container, limits []memorylimits.Limit) (late bool, err error)
	// Release releases the reservation for one container, Keep for all that are not in live.
	Release(ctx context.Context, id string) error
	Keep(ctx context.Context, live map[string]bool)
}

// StartContainer lets the driver limit a container's memory. The runtime has made the container's cgroup by now, and starts none of
// its processes before this returns: containerd calls it between runc's create and start (internal/cri/server/container_start.go),
// and starts nothing if it fails.
func (h *Hook) StartContainer(ctx context.Context, sandbox *api.PodSandbox, container *api.Container) error {
	if !native(container) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	limits, err := h.memory(container)
	if err == nil {
		err = h.Memory.Hold(ctx, limited(sandbox, container), limits)
	}
	if err == nil {
		return nil
	}
	// CRI-O starts the container anyway (server/container_start.go), so the pod is reported as refused.
	if pod, found := h.Pods.Pod(ctx, sandbox.GetNamespace(), sandbox.GetName(), sandbox.GetUid(), false); found == nil {
		h.Outcome.Failed(pod, container.GetName(), err)
	}
	return fmt.Errorf("gpufabric vgpu: pod %s/%s: %w", sandbox.GetNamespace(), sandbox.GetName(), err)
}

// native reports whether the driver enforces a container's limit.
func native(container *api.Container) bool {
	return container.GetAnnotations()[annotation.Limits] == string(injection.Native)
}

func limited(sandbox *api.PodSandbox, container *api.Container) memorylimits.Container {
	return memorylimits.Container{ID: container.GetId(), Cgroup: container.GetLinux().GetCgroupsPath(), PodUID: sandbox.GetUid(),
		Name: container.GetName()}
}

// memory returns the limits of a container's memory, as it was made with them.
func (h *Hook) memory(container *api.Container) ([]memorylimits.Limit, error) {
	held, known := granted(container)
	if !known {
		return nil, fmt.Errorf("the container's annotation %s, %.200q, cannot be read: delete the pod", heldAnnotation,
			container.GetAnnotations()[heldAnnotation])
	}
	gpus := h.SharedGPUs()
	var out []memorylimits.Limit
	for _, limit := range injection.Limits(held.shares, cmp.Or(held.factor, gpus.Factor), true, gpus.Index) {
		if limit.MemoryMiB > 0 {
			out = append(out, memorylimits.Limit{UUID: limit.UUID, Bytes: uint64(limit.MemoryMiB) << 20})
		}
	}
	return out, nil
}

// restoreMemory limits a container that was started while the plugin was away. It leaves a container with the right limit alone.
func (h *Hook) restoreMemory(ctx context.Context, sandbox *api.PodSandbox, container *api.Container) {
	if !native(container) || container.GetState() == api.ContainerState_CONTAINER_CREATED {
		return // it has not started yet
	}
	log := klog.FromContext(ctx).WithValues("pod", klog.KRef(sandbox.GetNamespace(), sandbox.GetName()), "container", container.GetName())
	limits, err := h.memory(container)
	if err != nil {
		log.Error(err, "The memory limit of a running container could not be set")
		return
	}
	late, err := h.Memory.Restore(ctx, limited(sandbox, container), limits)
	switch {
	case err != nil:
		log.Error(err, "The memory limit of a running container could not be set")
	case late:
		log.Info("A container ran without its memory limit until now")
	}
}
