package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/node/store"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/hook"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/podwatch"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// amount serves cores and percentages. The kubelet counts them; a container's actual share comes with its number of GPUs.
type amount struct{}

func (amount) Allocate(context.Context, []string) (*pluginapi.ContainerAllocateResponse, error) {
	return &pluginapi.ContainerAllocateResponse{}, nil
}

// memory serves memory. Without NRI a container that requests only memory, which means one GPU, gets its share through it.
type memory struct{ shares number }

func (m memory) Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	n := m.shares
	if n.nri {
		return n.nothing(), nil
	}
	all, err := n.pods.All()
	if err != nil {
		return nil, err
	}
	r := n.hook.Resources
	alone := r.Candidates(all, func(c *corev1.Container) bool { return r.MemoryAlone(c) == len(ids) }, n.served)
	switch len(alone) {
	case 0:
		return &pluginapi.ContainerAllocateResponse{}, nil // its shares come with its number
	case 1:
		return n.give(ctx, alone[0])
	}
	return nil, ambiguous(alone, len(ids))
}

// nothing is the answer where the container runtime's hook provides the GPUs. It adds a device that prevents the container's start if
// the hook is skipped. It has no variable: where the pod sets NVIDIA_VISIBLE_DEVICES too, the runtime has two of that name, and NRI
// replaces only the first.
func (n number) nothing() *pluginapi.ContainerAllocateResponse {
	return &pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: n.hook.Device(hook.Unshared)}}}
}

// number serves the number of GPUs. With NRI the container gets its shares when the runtime makes it, and an allocation is only
// counted. Without NRI the allocation itself must return them although it does not name a pod: it does so where only one container can be
// meant.
type number struct {
	hook *hook.Hook
	pods *podwatch.Pods
	// nri: a runtime socket is configured, so that the hook provides shares.
	nri bool
	// refused are the pods with a container that got nothing.
	refused *refusals
	// departed are the pods that have ended and may still run.
	departed *departed
	// given is the record of the pods' shares; nil with NRI: the runtime reports it.
	given *store.Store[given]
	// spec is the file of the CDI spec with the GPUs' device nodes.
	spec string
}

// Spec implements deviceplugin.Specified.
func (n number) Spec() string { return n.spec }

// refusals remembers pods whose allocation was refused, by UID. The kubelet ends them and never requests shares for them again. But
// the list of pods may show them as waiting for another moment, and the next pod's allocation must not be mistaken for theirs.
type refusals struct {
	mu   sync.Mutex
	pods map[types.UID]bool
}

func (r *refusals) add(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods == nil {
		r.pods = map[types.UID]bool{}
	}
	r.pods[pod] = true
}

func (r *refusals) has(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod]
}

// keep removes pods that are no longer listed.
func (r *refusals) keep(listed []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.pods, func(uid types.UID, _ bool) bool {
		return !slices.ContainsFunc(listed, func(pod *corev1.Pod) bool { return pod.UID == uid })
	})
}

const (
	// watchDelay is how long an allocation waits for its pod: the kubelet may have learnt of it a moment before this plugin. It waits as
	// long for departed pods.
	watchDelay = 3 * time.Second
	// workPatience is how long an allocation may take to make MIG instances, of about a second each, and to wait for such work on the same
	// GPU. During that time the kubelet starts no other pod. It fails the pod when the allocation fails.
	workPatience = time.Minute
)

func (n number) Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	if n.nri {
		if !n.hook.Connected() {
			return nil, fmt.Errorf("allocate %d shares: the container runtime's NRI is not connected, so the container is unknown; is NRI "+
				"enabled in containerd (on by default since 2.0), and is --nri-socket its socket?", len(ids))
		}
		return n.nothing(), nil
	}
	found, err := n.await(ctx, len(ids))
	if err != nil {
		return nil, err
	}
	return n.give(ctx, found)
}

// await returns the container that an allocation of so many GPUs is for.
func (n number) await(ctx context.Context, count int) (annotation.Candidate, error) {
	ctx, cancel := context.WithTimeout(ctx, watchDelay)
	defer cancel()
	for {
		changed := n.pods.Changed()
		all, err := n.pods.All()
		if err != nil {
			return annotation.Candidate{}, err
		}
		candidates := n.candidates(all, count)
		switch {
		case len(candidates) == 1:
			n.forget(ctx, all)
			return candidates[0], nil
		case len(candidates) > 1:
			return annotation.Candidate{}, ambiguous(candidates, count)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return annotation.Candidate{}, ambiguous(candidates, count)
		}
	}
}

// candidates returns the containers that an allocation of that many GPUs may be for.
func (n number) candidates(all []*corev1.Pod, count int) []annotation.Candidate {
	r := n.hook.Resources
	return r.Candidates(all, func(c *corev1.Container) bool { return r.Asks(c) == count && r.MemoryAlone(c) == 0 }, n.served)
}

// gone takes back the shares of a pod that has ended or was deleted, once no process of it is left. With NRI the sandbox's removal does
// that for a deleted pod. The sandbox of a pod that ended by itself stays until the pod is deleted, and schedulers give its instances
// away long before that.
func (n number) gone(ctx context.Context, outcomes *outcome, pod *corev1.Pod) {
	outcomes.Gone(pod)
	if !n.nri || podwatch.Over(pod) {
		n.departed.add(ctx, pod)
	}
}

// free takes back the shares of a pod without processes.
func (n number) free(ctx context.Context, pod *corev1.Pod) {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		n.hook.Book.Release(heldID(string(pod.UID), container.Name))
	}
	n.hook.Instances.End(string(pod.UID))
	if n.nri {
		return // the directories are mounted in the sandbox's containers, and go with it
	}
	n.hook.RemoveDirectories(ctx, string(pod.UID))
	if err := n.given.Delete(string(pod.UID)); err != nil {
		klog.FromContext(ctx).Error(err, "Could not remove the record of a pod that has ended", "pod", klog.KObj(pod))
	}
}

// forget releases the shares of pods that are no longer listed. The list of pods may show a deletion before its event arrives, and the
// scheduler has already given the space to another pod.
func (n number) forget(ctx context.Context, all []*corev1.Pod) {
	listed := map[types.UID]*corev1.Pod{}
	for _, pod := range all {
		listed[pod.UID] = pod
	}
	for _, g := range n.given.All() {
		if pod := listed[g.Pod]; pod == nil {
			n.departed.add(ctx, g.pod())
		} else if podwatch.Over(pod) {
			n.departed.add(ctx, pod)
		}
	}
	n.refused.keep(all)
}

func (n number) served(uid, container string) bool {
	return n.refused.has(types.UID(uid)) || n.hook.Book.Holds(heldID(uid, container))
}

// heldID replaces the runtime's ID of a container, which an allocation does not have.
func heldID(uid, container string) string { return uid + "/" + container }

func ambiguous(candidates []annotation.Candidate, count int) error {
	if len(candidates) == 0 {
		return fmt.Errorf("allocate %d shares: pods that wait on this node do not have an annotation %s that gives a container %d", count,
			annotation.PodDevices, count)
	}
	var names []string
	for _, c := range candidates {
		names = append(names, c.Pod.Namespace+"/"+c.Pod.Name+", container "+c.Container)
	}
	return fmt.Errorf("allocate %d shares: without NRI the container is unknown among %d: %s; enable NRI in the container "+
		"runtime and set --nri-socket, or start such pods one after another",
		count, len(candidates), strings.Join(names, "; "))
}

// recover books the shares of pods on this node, after a restart. With NRI the runtime reports it; without, the pods'
// annotations do.
func (n number) recover(ctx context.Context) error {
	all, err := n.pods.All()
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, pod := range all {
		if !podwatch.Over(pod) {
			live[string(pod.UID)] = true
		}
	}
	n.book(ctx, all)
	n.restore(ctx, live)
	maps.Copy(live, n.departed.running())
	n.hook.Instances.Keep(live)
	n.hook.RemoveLeftovers(ctx, live)
	return nil
}

// follow books pods that begin to run and are not booked, until ctx ends. The kubelet had requested their shares before the plugin
// was killed, and they did not run yet when it started again.
func (n number) follow(ctx context.Context) error {
	for {
		changed := n.pods.Changed()
		if all, err := n.pods.All(); err == nil { // from a watch's cache; only a bad selector gives an error, and there is none
			n.book(ctx, all)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// book books the shares of pods that are not booked yet: those that run, or that were reported to the scheduler.
func (n number) book(ctx context.Context, all []*corev1.Pod) {
	for _, pod := range all {
		if podwatch.Over(pod) {
			continue
		}
		// A running pod has its share, even if the plugin did not live to report it.
		if pod.Annotations[annotation.BindPhase] != annotation.BindSuccess && pod.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if n.hook.Book.Holds(heldID(string(pod.UID), container.Name)) {
				continue
			}
			shares, err := n.hook.Resources.Of(pod, container.Name)
			if err == nil && len(shares) > 0 {
				err = n.rebook(ctx, pod, container.Name, shares)
				if err == nil {
					// The plugin may have died before it reported this; if it had reported, nothing is written. Only then the
					// mechanism that enforces the container's share is known: this program may run with other settings than the one
					// that gave it.
					n.hook.Outcome.Served(pod, container.Name, injection.Backend(limitsOf(pod)[container.Name]))
				}
			}
			if err != nil {
				klog.FromContext(ctx).Error(err, "A running container's share does not fit", "pod", klog.KObj(pod))
			}
		}
	}
}

// rebook books the shares of a container. MIG instances are given again: existing ones are used as they are, and those that a reboot
// removed are made again.
func (n number) rebook(ctx context.Context, pod *corev1.Pod, container string, shares []annotation.Share) error {
	if card := n.hook.SharedGPUs().ByUUID(shares[0].UUID); card == nil || card.Mode != annotation.ModeMIG {
		who := held(pod, container)
		who.Limits = limitsOf(pod)[container]
		return errors.Join(n.hook.Book.Hold(n.hook.SharedGPUs(), who, shares), n.record(pod, who, container, shares))
	}
	given, err := n.hook.Give(ctx, pod, container, held(pod, container), shares)
	if err != nil {
		return err
	}
	return n.record(pod, held(pod, container), container, given.Shares)
}

// held is a container of a pod in the kubelet's allocation, which happens for all containers before the first one runs. An init
// container's share counts beside those of sidecars before it, but not beside containers that start after its end.
func held(pod *corev1.Pod, container string) holdings.Holder {
	h := holdings.Holder{ID: heldID(string(pod.UID), container), Name: pod.Namespace + "/" + pod.Name + ", container " + container,
		Namespace: pod.Namespace, Pod: string(pod.UID)}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	h.Step = slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == container })
	if h.Step < len(pod.Spec.InitContainers) {
		policy := all[max(h.Step, 0)].RestartPolicy
		h.Ends = policy == nil || *policy != corev1.ContainerRestartPolicyAlways
	}
	return h
}

// take books a container's shares and records them. It waits, for watchDelay at most, for departed pods that have the space: a refusal
// fails the pod.
func (n number) take(ctx context.Context, c annotation.Candidate) (hook.Given, error) {
	waiting, stop := context.WithTimeout(ctx, watchDelay)
	defer stop()
	working, cancel := context.WithTimeout(ctx, workPatience)
	defer cancel()
	who := held(c.Pod, c.Container)
	for {
		freed := n.departed.next()
		given, err := n.hook.Give(working, c.Pod, c.Container, who, c.Shares)
		var full *holdings.FullError
		if err == nil {
			who.Limits = string(given.Limits)
			if err = n.record(c.Pod, who, c.Container, given.Shares); err != nil {
				n.hook.Book.Release(who.ID)
			}
		}
		if freed == nil || !errors.As(err, &full) {
			return given, err
		}
		select {
		case <-freed:
		case <-waiting.Done():
			return given, err
		}
	}
}

func (n number) give(ctx context.Context, c annotation.Candidate) (*pluginapi.ContainerAllocateResponse, error) {
	given, err := n.take(ctx, c)
	if err != nil {
		err = n.departed.describe(err, c.Pod)
		n.refused.add(c.Pod.UID)
		n.hook.Outcome.Failed(c.Pod, c.Container, err)
		return nil, err
	}
	response := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{}}
	for _, variable := range given.Edits.Env {
		key, value, _ := strings.Cut(variable, "=")
		response.Envs[key] = value
	}
	for _, mount := range given.Edits.Mounts {
		response.Mounts = append(response.Mounts, &pluginapi.Mount{
			ContainerPath: mount.ContainerPath, HostPath: mount.HostPath, ReadOnly: slices.Contains(mount.Options, "ro"),
		})
	}
	for _, node := range given.Edits.DeviceNodes {
		response.Devices = append(response.Devices, &pluginapi.DeviceSpec{ContainerPath: node.Path, HostPath: cmp.Or(node.HostPath, node.Path),
			Permissions: "rw"})
	}
	for _, device := range given.Devices {
		response.CdiDevices = append(response.CdiDevices, &pluginapi.CDIDevice{Name: device})
	}
	n.hook.Outcome.Served(c.Pod, c.Container, given.Limits)
	return response, nil
}

// Prefer steers the kubelet to IDs of the GPUs that the scheduler chose, so that the kubelet counts the real use: IDs of
// GPUs for which pods on this node wait come first. The kubelet's record then agrees with the scheduler's. A container's share
// never depends on it.
func (n number) Prefer(available, required []string, size int) []string {
	chosen := slices.Clone(required)
	all, err := n.pods.All()
	if err != nil {
		return nil
	}
	wanted := map[string]int{}
	for _, c := range n.candidates(all, size) {
		for _, share := range c.Shares {
			wanted[share.UUID]++
		}
	}
	for _, preferred := range []bool{true, false} {
		for _, id := range available {
			if len(chosen) == size {
				return chosen
			}
			uuid := sharedgpus.UUIDOf(id)
			if slices.Contains(chosen, id) || preferred && wanted[uuid] == 0 {
				continue
			}
			wanted[uuid]--
			chosen = append(chosen, id)
		}
	}
	return chosen
}
