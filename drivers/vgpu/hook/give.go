package hook

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// Given is the result for a container.
type Given struct {
	// Devices are the CDI devices of its GPUs, each once.
	Devices []string
	// Edits are its other needs.
	Edits specs.ContainerEdits
	// Shares are the booked amounts. For a MIG instance that is the memory that it has, not the memory that was requested.
	Shares []annotation.Share
	// Limits is the backend that enforces the container's share.
	Limits injection.Backend
}

// Give books a container's shares and makes their files on the node; after an error none is booked. The runtime's hook and an
// allocation without one both use it.
func (h *Hook) Give(ctx context.Context, pod *corev1.Pod, container string, who holdings.Holder, shares []annotation.Share) (Given, error) {
	gpus := h.SharedGPUs()
	if err := h.percent(gpus, pod, container, shares); err != nil {
		return Given{}, err
	}
	partitioned, err := mode(gpus, container, shares)
	if err != nil {
		return Given{}, err
	}
	if partitioned {
		return h.partition(ctx, gpus, pod, container, who, shares)
	}
	limits := injection.Limits(shares, gpus.Factor, h.NoCoreLimit, gpus.Index)
	by := h.Limiter.Of(limits)
	who.Limits = string(by)
	if err := h.Book.Take(gpus, who, shares); err != nil {
		logHolders(ctx, who, err)
		return Given{}, err
	}
	identity := injection.Container{PodUID: string(pod.UID), Name: container}
	edits, err := h.Limiter.Edits(identity, limits)
	if err == nil {
		err = h.Limiter.Make(identity, limits)
		h.wakeSweep()
	}
	if err != nil {
		h.Book.Release(who.ID)
		return Given{}, err
	}
	return Given{Devices: h.devices(shares), Edits: edits, Shares: shares, Limits: by}, nil
}

// logHolders logs the holders of shares that a container was refused. The pod's own error does not name them.
func logHolders(ctx context.Context, who holdings.Holder, err error) {
	var full *holdings.FullError
	if errors.As(err, &full) {
		klog.FromContext(ctx).Info("A share is refused", "asker", who.Name, "gpu", full.GPU, "lacks", full.Lacks, "holders", full.Holders)
	}
}

// percent refuses more memory than a container's percentage. Volcano computes the amount from the first GPU that it considers,
// and uses it for all of the container's GPUs.
func (h *Hook) percent(gpus *sharedgpus.Set, pod *corev1.Pod, name string, shares []annotation.Share) error {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		percent := h.Resources.Percent(&c)
		if c.Name != name || percent <= 0 || percent >= 100 {
			continue
		}
		most := int64(0)
		for _, card := range gpus.Cards {
			most = max(most, card.Units*percent/100)
		}
		for _, share := range shares {
			if share.Slot == nil && (share.Memory == 0 || share.Memory > most) {
				return fmt.Errorf("the scheduler gave container %s %d units of memory of %s, and its limit %s is %d, which are %d of this node's "+
					"largest GPU", name, share.Memory, share.UUID, h.Resources.Percentage, percent, most)
			}
		}
	}
	return nil
}

// mode reports whether a container's shares are MIG instances. Either all of them are, or none: a CUDA process uses one kind of
// device.
func mode(gpus *sharedgpus.Set, container string, shares []annotation.Share) (partitioned bool, err error) {
	for i, share := range shares {
		card := gpus.ByUUID(share.UUID)
		mig := card != nil && card.Mode == annotation.ModeMIG
		if share.Slot != nil && !mig {
			return false, fmt.Errorf("the scheduler gave container %s a MIG slot of %s, which is not shared in mode mig on this node", container,
				share.UUID)
		}
		if i > 0 && mig != partitioned {
			return false, fmt.Errorf("the scheduler gave container %s both MIG instances and shares in mode hami-core (%s), which CUDA cannot "+
				"use together: give the pod the annotation %s",
				container, share.UUID, annotation.PodMode)
		}
		partitioned = mig
	}
	return partitioned, nil
}

// partition gives a container MIG instances. The hardware enforces them: there is no limiter, and no accounting directory.
func (h *Hook) partition(ctx context.Context, gpus *sharedgpus.Set, pod *corev1.Pod, container string, who holdings.Holder,
	shares []annotation.Share) (Given, error) {
	asks := make([]instances.Ask, 0, len(shares))
	for _, share := range shares {
		asks = append(asks, instances.Ask{GPU: gpus.ByUUID(share.UUID).GPU, Slot: share.Slot, MemoryMiB: share.Memory * int64(gpus.Factor),
			Cores: share.Cores})
		if card := gpus.ByUUID(share.UUID); !card.Healthy {
			return Given{}, fmt.Errorf("%s requests a MIG instance of %s, which is unhealthy: %s", who.Name, share.UUID, card.Reason)
		}
	}
	given, err := h.Instances.Give(ctx, instances.Owner{PodUID: string(pod.UID), Container: container, Namespace: pod.Namespace,
		Pod: pod.Name}, asks)
	if err != nil {
		return Given{}, err
	}
	booked := slices.Clone(shares)
	out := Given{Shares: booked, Limits: injection.MIG, Devices: h.devices(shares),
		Edits: specs.ContainerEdits{Env: []string{injection.Visible(given)}}}
	for i, instance := range given {
		booked[i].Memory, booked[i].Cores = instance.MemoryMiB/int64(gpus.Factor), 0
		nodes, err := h.Capabilities(asks[i].GPU, instance)
		if err != nil {
			return Given{}, err
		}
		out.Edits.DeviceNodes = append(out.Edits.DeviceNodes, nodes...)
	}
	who.Limits = string(injection.MIG)
	if err := h.Book.Take(gpus, who, booked); err != nil {
		logHolders(ctx, who, err)
		return Given{}, err
	}
	h.Outcome.Partitioned(pod, container, given)
	return out, nil
}

// devices are the CDI devices of the shares' GPUs, each once.
func (h *Hook) devices(shares []annotation.Share) []string {
	var out []string
	for _, share := range shares {
		if device := h.Device(share.UUID); !slices.Contains(out, device) {
			out = append(out, device)
		}
	}
	return out
}
