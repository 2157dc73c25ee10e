package cards

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/vgpu/annotation"
)

// Annotations by which a pod chooses another policy than the scheduler's default.
const (
	NodePolicyAnnotation = "gpufabric.io/vgpu-node-policy"
	CardPolicyAnnotation = "gpufabric.io/vgpu-card-policy"
)

// Policy describes which of several suitable nodes or GPUs is taken.
type Policy string

// The policies. The first two also apply to nodes.
const (
	Binpack Policy = "binpack" // the one with the most memory in use
	Spread  Policy = "spread"  // the one with the fewest sharers
	NUMA    Policy = "numa"    // several GPUs of one PCIe switch or NUMA node; otherwise like binpack
	NVLink  Policy = "nvlink"  // several GPUs of one NVLink domain, and as close as that allows; otherwise like numa
)

// Policies are how nodes and GPUs are chosen.
type Policies struct {
	Node, Card Policy
}

// Check refuses unknown policies, with the allowed ones.
func (p Policies) Check() error {
	if p.Node != Binpack && p.Node != Spread {
		return fmt.Errorf("node policy %q, where %s and %s are allowed", p.Node, Binpack, Spread)
	}
	if !slices.Contains([]Policy{Binpack, Spread, NUMA, NVLink}, p.Card) {
		return fmt.Errorf("card policy %q, where %s, %s, %s and %s are allowed", p.Card, Binpack, Spread, NUMA, NVLink)
	}
	return nil
}

// Of returns the policies for a pod, which may have annotations of its own. An error is the pod's mistake and names the allowed values.
func (p Policies) Of(pod *corev1.Pod) (Policies, error) {
	for key, policy := range map[string]*Policy{NodePolicyAnnotation: &p.Node, CardPolicyAnnotation: &p.Card} {
		if value := pod.Annotations[key]; value != "" {
			*policy = Policy(value)
		}
	}
	return p, p.Check()
}

// HasPolicy reports whether a pod chooses a policy itself.
func HasPolicy(pod *corev1.Pod) bool {
	return pod.Annotations[NodePolicyAnnotation] != "" || pod.Annotations[CardPolicyAnnotation] != ""
}

// Request is one container's request: Number different GPUs, and of each Memory units or Percent of its memory, and Cores
// percent.
type Request struct {
	Container string
	Number    int
	Memory    int64 // 0: see Percent
	Percent   int64 // 0: all of the GPU's
	Cores     int   // 0: no limit, as long as no container has the GPU alone; 100: the GPU alone
}

// Wish is a pod's request.
type Wish struct {
	// Requests has an element per container in the order of the annotation: the ordinary containers, after the init containers where
	// one of those has a request.
	Requests []Request
	// Before marks those of init containers that end before the next container starts.
	Before []bool

	Mode                 annotation.Mode // empty: software
	UseUUID, AvoidUUID   []string
	UseModel, AvoidModel []string
	Policies             Policies
}

// maximumGPUs bounds what one container may request; the annotation holds no more.
const maximumGPUs = 64

// Read reads a pod's wish from its spec and annotations, nil where it does not request shares. An error is the pod's mistake and names
// the allowed values.
func Read(pod *corev1.Pod, resources annotation.Resources, defaults Policies) (*Wish, error) {
	initial, err := requests(pod.Spec.InitContainers, resources)
	if err != nil {
		return nil, err
	}
	ordinary, err := requests(pod.Spec.Containers, resources)
	if err != nil {
		return nil, err
	}
	asks := func(r Request) bool { return r.Number > 0 }
	w := &Wish{Requests: ordinary}
	if slices.ContainsFunc(initial, asks) {
		w.Requests = slices.Concat(initial, ordinary)
	}
	if !slices.ContainsFunc(w.Requests, asks) {
		return nil, nil
	}
	w.Before = Before(pod, len(w.Requests))
	if w.Mode = annotation.Mode(pod.Annotations[annotation.PodMode]); w.Mode != "" && w.Mode != annotation.ModeSoftware &&
		w.Mode != annotation.ModeMIG {
		return nil, fmt.Errorf("annotation %s is %q, where %s and %s are allowed", annotation.PodMode, w.Mode, annotation.ModeSoftware,
			annotation.ModeMIG)
	}
	if i := slices.IndexFunc(w.Requests, func(r Request) bool { return r.Cores > 0 }); i >= 0 && w.Mode == annotation.ModeMIG {
		return nil, fmt.Errorf("container %s requests %s: %d of a MIG instance, whose cores come with its memory: remove the request",
			w.Requests[i].Container, resources.Cores, w.Requests[i].Cores)
	}
	if policy := pod.Annotations[annotation.PodGroup]; policy != "" && policy != groupSpread {
		return nil, fmt.Errorf("annotation %s is %q, where %s is allowed", annotation.PodGroup, policy, groupSpread)
	}
	for key, list := range map[string]*[]string{annotation.UseUUID: &w.UseUUID, annotation.AvoidUUID: &w.AvoidUUID,
		annotation.UseType: &w.UseModel, annotation.AvoidType: &w.AvoidModel} {
		for word := range strings.SplitSeq(pod.Annotations[key], ",") {
			if word = strings.TrimSpace(word); word != "" {
				*list = append(*list, word)
			}
		}
	}
	w.Policies, err = defaults.Of(pod)
	return w, err
}

// groupSpread is Volcano's only policy for the pods of a PodGroup.
const groupSpread = "spread"

// Siblings reports whether another pod belongs to a pod's PodGroup and the two must not share a GPU. Only the annotation of the pod
// being placed counts, as in Volcano.
func Siblings(pod, other *corev1.Pod) bool {
	group := groupOf(pod)
	return group != "" && pod.Annotations[annotation.PodGroup] == groupSpread && pod.Namespace == other.Namespace && group == groupOf(other)
}

// groupOf is the PodGroup that a pod names, under either of Volcano's keys.
func groupOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Annotations[annotation.GroupName], pod.Annotations[annotation.VolcanoName])
}

// wishAnnotations are the annotations with a pod's wishes.
var wishAnnotations = []string{annotation.PodMode, annotation.PodGroup, annotation.GroupName, annotation.VolcanoName, annotation.UseUUID,
	annotation.AvoidUUID, annotation.UseType, annotation.AvoidType,
	NodePolicyAnnotation, CardPolicyAnnotation}

// Changed reports whether a pod's wishes have changed. The requests in its spec cannot change.
func Changed(before, after *corev1.Pod) bool {
	return slices.ContainsFunc(wishAnnotations, func(key string) bool { return before.Annotations[key] != after.Annotations[key] })
}

// Before marks, among that many containers in a pod's annotation, the init containers that end before the next container starts. An
// init container that restarts for as long as the pod runs is not marked.
func Before(pod *corev1.Pod, listed int) []bool {
	before := make([]bool, listed)
	if listed != len(pod.Spec.InitContainers)+len(pod.Spec.Containers) {
		return before
	}
	for i := range pod.Spec.InitContainers {
		policy := pod.Spec.InitContainers[i].RestartPolicy
		before[i] = policy == nil || *policy != corev1.ContainerRestartPolicyAlways
	}
	return before
}

func requests(containers []corev1.Container, resources annotation.Resources) ([]Request, error) {
	out := make([]Request, len(containers))
	for i := range containers {
		c := &containers[i]
		if err := resources.Check(c); err != nil {
			return nil, err
		}
		amount := func(name string, most int64) (int64, error) {
			quantity := c.Resources.Limits[corev1.ResourceName(name)]
			if value := quantity.Value(); value <= most {
				return value, nil
			}
			return 0, fmt.Errorf("container %s requests %s: %s, where at most %d is allowed", c.Name, name, quantity.String(), most)
		}
		if _, err := amount(resources.Number, maximumGPUs); err != nil {
			return nil, err
		}
		memory, err := amount(resources.Memory, math.MaxInt64)
		if err != nil {
			return nil, err
		}
		if _, err := amount(resources.Percentage, 100); err != nil {
			return nil, err
		}
		cores, err := amount(resources.Cores, 100)
		if err != nil {
			return nil, err
		}
		out[i] = Request{Container: c.Name, Number: resources.Asks(c), Memory: memory, Percent: resources.Percent(c), Cores: int(cores)}
	}
	return out, nil
}
