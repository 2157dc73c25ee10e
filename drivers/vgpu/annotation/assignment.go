package annotation

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ErrNotPlaced means that a container requests a share but no scheduler wrote one.
var ErrNotPlaced = errors.New("the pod was not placed by a scheduler for shared GPUs")

// Resources are the names of the resources by which shares are requested.
type Resources struct {
	// Number counts GPUs, Memory is in units of each, Cores in percent of each.
	Number, Memory, Cores string
	// Percentage is memory in percent of each GPU's; empty where the node does not offer it.
	Percentage string
}

// Asks returns how many shares a container requests. Memory without a number means one GPU, as for Volcano.
func (r Resources) Asks(c *corev1.Container) int {
	if number, named := c.Resources.Limits[corev1.ResourceName(r.Number)]; named {
		return int(number.Value())
	}
	if r.amount(c, r.Memory) > 0 {
		return 1
	}
	return 0
}

// amount is how much a container requests of a resource, 0 where it does not name it.
func (r Resources) amount(c *corev1.Container, name string) int64 {
	quantity := c.Resources.Limits[corev1.ResourceName(name)]
	return quantity.Value()
}

// Check refuses requests that can never be satisfied: an amount of zero. A number without memory means the whole GPU's memory.
func (r Resources) Check(c *corev1.Container) error {
	if r.Asks(c) > 0 {
		return nil
	}
	for _, name := range []string{r.Memory, r.Cores, r.Percentage} {
		if quantity, asked := c.Resources.Limits[corev1.ResourceName(name)]; asked && !quantity.IsZero() {
			return fmt.Errorf("container %s requests %s: %s without %s; add the number of GPUs", c.Name, name, quantity.String(),
				r.Number)
		}
	}
	return nil
}

// Of returns the shares of one container of a pod. A container that requested none has none, without an error.
//
// Schedulers list containers differently: Volcano the ordinary ones with a request (devices/util.go of its scheduler), ours every
// container, init containers first. They agree on the order, and on a list that is not empty for each container with a request. So
// the k-th non-empty list belongs to the k-th container with a request. Each list must have as many shares as its container
// requests, and each share at most its container's limits. Anything else is refused: a guess would give a container another's GPU.
func (r Resources) Of(pod *corev1.Pod, container string) ([]Share, error) {
	spec, position, isInit := find(pod, container)
	if spec == nil && slices.ContainsFunc(pod.Spec.EphemeralContainers,
		func(c corev1.EphemeralContainer) bool { return c.Name == container }) {
		return nil, nil // of kubectl debug: the API allows them no resource requests
	}
	if spec == nil {
		return nil, fmt.Errorf("pod %s/%s has no container %q", pod.Namespace, pod.Name, container)
	}
	asked := r.Asks(spec)
	if asked == 0 {
		return nil, r.Check(spec)
	}
	value := pod.Annotations[PodDevices]
	if value == "" {
		return nil, fmt.Errorf("container %s requests %s, and the annotation %s is missing: %w; set schedulerName to Volcano's or to "+
			"gpufabric's", container, r.words(spec), PodDevices, ErrNotPlaced)
	}
	lists, err := ParseShares(value)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", PodDevices, err)
	}
	listed := slices.DeleteFunc(lists, func(shares []Share) bool { return len(shares) == 0 })
	inits, ordinary := r.asking(pod.Spec.InitContainers), r.asking(pod.Spec.Containers)
	at := 0
	switch {
	case len(listed) == inits+ordinary && isInit:
		at = r.asking(pod.Spec.InitContainers[:position])
	case len(listed) == inits+ordinary:
		at = inits + r.asking(pod.Spec.Containers[:position])
	case len(listed) == ordinary && isInit:
		return nil, fmt.Errorf("init container %s requests %s, and the scheduler lists the %d ordinary containers only in %s: "+
			"it does not serve init containers", container, r.words(spec), ordinary, PodDevices)
	case len(listed) == ordinary:
		at = r.asking(pod.Spec.Containers[:position])
	default:
		return nil, fmt.Errorf("annotation %s lists the shares of %d containers, where %d of the pod (and %d init containers) request some",
			PodDevices, len(listed), ordinary, inits)
	}
	shares := listed[at]
	if len(shares) != asked {
		return nil, fmt.Errorf("container %s requests %s, and annotation %s gives it %d", container, r.words(spec), PodDevices, len(shares))
	}
	for _, share := range shares {
		if err := r.within(spec, share); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", PodDevices, err)
		}
	}
	return shares, nil
}

// words describes the number of GPUs that a container requests, or the memory where it does not name a number.
func (r Resources) words(c *corev1.Container) string {
	if quantity, named := c.Resources.Limits[corev1.ResourceName(r.Number)]; named {
		return quantity.String() + " " + r.Number
	}
	return fmt.Sprintf("%d %s", r.amount(c, r.Memory), r.Memory)
}

// asking counts the containers that request shares.
func (r Resources) asking(containers []corev1.Container) int {
	count := 0
	for i := range containers {
		if r.Asks(&containers[i]) > 0 {
			count++
		}
	}
	return count
}

// MemoryAlone is the memory requested by a container that does not name a number of GPUs, 0 for any other.
func (r Resources) MemoryAlone(c *corev1.Container) int {
	if _, named := c.Resources.Limits[corev1.ResourceName(r.Number)]; named {
		return 0
	}
	return int(r.amount(c, r.Memory))
}

// Percent is the memory that a container requests in percent of each GPU's. It is 0 where the container does not, or names an
// amount, which takes precedence.
func (r Resources) Percent(c *corev1.Container) int64 {
	if r.amount(c, r.Memory) > 0 {
		return 0
	}
	return r.amount(c, r.Percentage)
}

// within refuses a share that exceeds its container's own limits, which the API server does not allow anybody to change. A MIG
// instance may be larger than requested, and its cores come with its memory.
func (r Resources) within(c *corev1.Container, share Share) error {
	if share.Slot != nil {
		return nil
	}
	memory := r.amount(c, r.Memory)
	if memory > 0 && (share.Memory == 0 || share.Memory > memory) {
		return fmt.Errorf("%s gives container %s %d units of memory, and its limit %s is %d", share.UUID, c.Name, share.Memory, r.Memory, memory)
	}
	if cores := r.amount(c, r.Cores); int64(share.Cores) > cores || cores > 0 && share.Cores == 0 {
		return fmt.Errorf("%s gives container %s %d percent of its cores (0 is no limit), and its limit %s is %d", share.UUID, c.Name,
			share.Cores, r.Cores, cores)
	}
	return nil
}

// Given returns the shares of all containers of a pod as its scheduler wrote them, init containers first. It returns false where
// the pod requests none, where nothing was written, or where the annotation does not match the requests: the node refuses that
// pod, and it has nothing.
func (r Resources) Given(pod *corev1.Pod) ([][]Share, bool) {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	if r.asking(all) == 0 || pod.Annotations[PodDevices] == "" {
		return nil, false
	}
	out := make([][]Share, len(all))
	for i := range all {
		shares, err := r.Of(pod, all[i].Name)
		if err != nil && i >= len(pod.Spec.InitContainers) {
			return nil, false
		}
		out[i] = shares // none for an init container that its scheduler does not handle
	}
	return out, true
}

func find(pod *corev1.Pod, name string) (spec *corev1.Container, position int, isInit bool) {
	named := func(c corev1.Container) bool { return c.Name == name }
	if i := slices.IndexFunc(pod.Spec.Containers, named); i >= 0 {
		return &pod.Spec.Containers[i], i, false
	}
	if i := slices.IndexFunc(pod.Spec.InitContainers, named); i >= 0 {
		return &pod.Spec.InitContainers[i], i, true
	}
	return nil, 0, false
}

// Candidate is a container that an allocation may be for.
type Candidate struct {
	Pod       *corev1.Pod
	Container string
	Shares    []Share
}

// Candidates are the containers of pods that wait on this node, were given shares and match. served reports which have theirs already.
// A kubelet's Allocate does not name a pod: the container is known only where there is one candidate.
func (r Resources) Candidates(pods []*corev1.Pod, match func(*corev1.Container) bool, served func(uid, container string) bool) []Candidate {
	var out []Candidate
	for _, pod := range pods {
		if pod.Annotations[PodDevices] == "" || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
			continue
		}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			shares, err := r.Of(pod, c.Name)
			if err != nil || len(shares) == 0 || !match(&c) || served(string(pod.UID), c.Name) {
				continue
			}
			out = append(out, Candidate{pod, c.Name, shares})
		}
	}
	return out
}
