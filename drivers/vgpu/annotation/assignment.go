package annotation

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ErrNotPlaced says that a container asks for a share and no scheduler wrote down which.
var ErrNotPlaced = errors.New("no scheduler that knows shared GPUs placed the pod")

// Resources are the names under which shares are asked for.
type Resources struct {
	// Number counts GPUs, Memory is in units of each, Cores in percent of each.
	Number, Memory, Cores string
	// Percentage is memory in percent of each GPU's; empty where the node does not offer it.
	Percentage string
}

// Asks tells how many shares a container asks for. Memory without a number is one GPU's, as Volcano reads it.
func (r Resources) Asks(c *corev1.Container) int {
	if number, named := c.Resources.Limits[corev1.ResourceName(r.Number)]; named {
		return int(number.Value())
	}
	if r.amount(c, r.Memory) > 0 {
		return 1
	}
	return 0
}

// amount is what a container asks for of a resource, 0 where it does not name it.
func (r Resources) amount(c *corev1.Container, name string) int64 {
	quantity := c.Resources.Limits[corev1.ResourceName(name)]
	return quantity.Value()
}

// Check refuses what can never be served, in words: an amount of nothing. A number without memory is the whole GPU's memory.
func (r Resources) Check(c *corev1.Container) error {
	if r.Asks(c) > 0 {
		return nil
	}
	for _, name := range []string{r.Memory, r.Cores, r.Percentage} {
		if quantity, asked := c.Resources.Limits[corev1.ResourceName(name)]; asked && !quantity.IsZero() {
			return fmt.Errorf("container %s asks for %s: %s without %s; say how many GPUs the amount is of", c.Name, name, quantity.String(),
				r.Number)
		}
	}
	return nil
}

// Of are the shares of one container of a pod; none, without an error, for a container that asked for none.
//
// Schedulers list containers differently: Volcano the ordinary ones that ask (devices/util.go of its scheduler), ours every container, init
// containers first. What they agree on is the order, and that a container that asks has a list that is not empty. So the k-th list that is
// not empty is that of the k-th container that asks; each has to have as many shares as its container asks for, and each share no more than
// its container's limits say. Anything else is refused: guessing would give a container another's GPU.
func (r Resources) Of(pod *corev1.Pod, container string) ([]Share, error) {
	spec, position, isInit := find(pod, container)
	if spec == nil && slices.ContainsFunc(pod.Spec.EphemeralContainers,
		func(c corev1.EphemeralContainer) bool { return c.Name == container }) {
		return nil, nil // of kubectl debug: the API lets none ask for resources
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
		return nil, fmt.Errorf("container %s asks for %s, and the annotation %s is missing: %w; set schedulerName to Volcano's or to "+
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
		return nil, fmt.Errorf("init container %s asks for %s, and the scheduler lists the %d ordinary containers only in %s: "+
			"it does not serve init containers", container, r.words(spec), ordinary, PodDevices)
	case len(listed) == ordinary:
		at = r.asking(pod.Spec.Containers[:position])
	default:
		return nil, fmt.Errorf("annotation %s lists the shares of %d containers, where %d of the pod (and %d init containers) ask for some",
			PodDevices, len(listed), ordinary, inits)
	}
	shares := listed[at]
	if len(shares) != asked {
		return nil, fmt.Errorf("container %s asks for %s, and annotation %s gives it %d", container, r.words(spec), PodDevices, len(shares))
	}
	for _, share := range shares {
		if err := r.within(spec, share); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", PodDevices, err)
		}
	}
	return shares, nil
}

// words are the number of GPUs that a container asks for, or the memory where it names none.
func (r Resources) words(c *corev1.Container) string {
	if quantity, named := c.Resources.Limits[corev1.ResourceName(r.Number)]; named {
		return quantity.String() + " " + r.Number
	}
	return fmt.Sprintf("%d %s", r.amount(c, r.Memory), r.Memory)
}

// asking counts the containers that ask for shares.
func (r Resources) asking(containers []corev1.Container) int {
	count := 0
	for i := range containers {
		if r.Asks(&containers[i]) > 0 {
			count++
		}
	}
	return count
}

// MemoryAlone is the memory that a container asks for which names no number of GPUs, 0 for any other.
func (r Resources) MemoryAlone(c *corev1.Container) int {
	if _, named := c.Resources.Limits[corev1.ResourceName(r.Number)]; named {
		return 0
	}
	return int(r.amount(c, r.Memory))
}

// Percent is the memory that a container asks for in percent of each GPU's, 0 where it does not, or names an amount, which comes first.
func (r Resources) Percent(c *corev1.Container) int64 {
	if r.amount(c, r.Memory) > 0 {
		return 0
	}
	return r.amount(c, r.Percentage)
}

// within refuses a share that is more than its container's own limits, which the API server lets nobody change. A MIG instance may be
// larger than what was asked for, and its cores come with its memory.
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

// Given are the shares of all containers of a pod as its scheduler wrote them, init containers first; false where it asks for none, where
// nobody has written any, or where what is written is not what its containers ask for: the node refuses that pod, and it has nothing.
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
		out[i] = shares // none of an init container that its scheduler does not serve
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

// Candidate is a container that an allocation could be for.
type Candidate struct {
	Pod       *corev1.Pod
	Container string
	Shares    []Share
}

// Candidates are the containers of pods that wait on this node, were given shares and match. served tells which have theirs already. A
// kubelet's Allocate names no pod: only where there is one candidate is it known whom it is for.
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
