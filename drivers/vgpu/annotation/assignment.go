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
	Number, Memory, Cores string
}

// Asks tells how many shares a container asks for.
func (r Resources) Asks(c *corev1.Container) int {
	quantity := c.Resources.Limits[corev1.ResourceName(r.Number)]
	return int(quantity.Value())
}

// Check refuses what can never be served, in words: memory or cores without a number of GPUs. A number without memory is the whole GPU's
// memory.
func (r Resources) Check(c *corev1.Container) error {
	if r.Asks(c) > 0 {
		return nil
	}
	for _, name := range []string{r.Memory, r.Cores} {
		if quantity, asked := c.Resources.Limits[corev1.ResourceName(name)]; asked && !quantity.IsZero() {
			return fmt.Errorf("container %s asks for %s: %s without %s; say how many GPUs the amount is of", c.Name, name, quantity.String(),
				r.Number)
		}
	}
	return nil
}

// Of are the shares of one container of a pod; none, without an error, for a container that asked for none.
//
// The annotation has an element per container in the spec's order. Volcano lists the ordinary containers only; a list that is as long as
// init containers and ordinary ones together has the init containers first. Any other length is refused: guessing would give a container
// another's GPU.
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
		return nil, fmt.Errorf("container %s asks for %d %s, and the annotation %s is missing: %w; set schedulerName to Volcano's or to "+
			"gpufabric's",
			container, asked, r.Number, PodDevices, ErrNotPlaced)
	}
	lists, err := ParseShares(value)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", PodDevices, err)
	}
	ordinary, inits := len(pod.Spec.Containers), len(pod.Spec.InitContainers)
	switch {
	case len(lists) == ordinary+inits:
		if !isInit {
			position += inits
		}
	case len(lists) == ordinary && isInit:
		return nil, fmt.Errorf("init container %s asks for %d %s, and the scheduler lists the %d ordinary containers only in %s: "+
			"it does not serve init containers",
			container, asked, r.Number, ordinary, PodDevices)
	case len(lists) == ordinary:
	default:
		return nil, fmt.Errorf("annotation %s lists %d containers, where the pod has %d (and %d init containers)", PodDevices, len(lists),
			ordinary, inits)
	}
	if shares := lists[position]; len(shares) == asked {
		return shares, nil
	}
	return nil, fmt.Errorf("container %s asks for %d %s, and annotation %s gives it %d", container, asked, r.Number, PodDevices,
		len(lists[position]))
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

// Candidates are the containers of pods that wait on this node and were given exactly count shares. served tells which have theirs already.
// A kubelet's Allocate names no pod: only where there is one candidate is it known whom it is for.
func (r Resources) Candidates(pods []*corev1.Pod, count int, served func(uid, container string) bool) []Candidate {
	var out []Candidate
	for _, pod := range pods {
		if pod.Annotations[PodDevices] == "" || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
			continue
		}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			shares, err := r.Of(pod, c.Name)
			if err != nil || len(shares) != count || served(string(pod.UID), c.Name) {
				continue
			}
			out = append(out, Candidate{pod, c.Name, shares})
		}
	}
	return out
}
