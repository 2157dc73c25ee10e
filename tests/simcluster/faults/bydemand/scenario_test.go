//go:build faults

package bydemand

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/tests/simcluster/fixture"
)

// rounds is how often pods of another mix replace those that run.
const rounds = 3

// scenario is a cluster whose GPUs are wanted in one mix of shapes after another, while a fault happens.
type scenario struct {
	t      *testing.T
	n      *fixture.Namespace
	seed   uint64
	random *rand.Rand
	pods   []string // that were made and not deleted
	shape  map[string]string
	made   int
	uids   []string
}

// play lets pods of three MIG profiles and whole GPUs come and go, and calls during in each round when its pods were made.
func (s *scenario) play(during func(round int)) {
	s.t.Helper()
	s.shape = map[string]string{}
	s.n.Template("whole", "gpu.nvidia.com", "")
	for _, profile := range []string{"1g", "2g", "3g"} {
		s.n.Template(profile, "mig.nvidia.com", fmt.Sprintf("device.attributes['gpu.nvidia.com'].profile.startsWith('%s.')", profile))
	}
	for round := range rounds {
		s.round(round)
		during(round)
		s.settle()
	}
}

// round ends the pods but for two, in random order, and makes others: in turn for four whole GPUs, and for ten instances that take half a
// GPU each. When the latter come, at most four GPUs are cut, and when the former come, at least five, so each scenario has a cut and a
// merger, whatever layouts the one before left. There is room however the pods lie: those that stay are on two of the eight GPUs at most,
// and each small one is on one.
func (s *scenario) round(round int) {
	s.t.Helper()
	s.random.Shuffle(len(s.pods), func(i, j int) { s.pods[i], s.pods[j] = s.pods[j], s.pods[i] })
	staying := min(2, len(s.pods))
	for _, pod := range s.pods[staying:] {
		s.n.DeletePod(pod)
	}
	s.pods = s.pods[:staying]
	mix := append(slices.Repeat([]string{"whole"}, 4), "1g", "2g")
	if round%2 == 1 {
		mix = append(slices.Repeat([]string{"3g"}, 10), "1g")
	}
	s.random.Shuffle(len(mix), func(i, j int) { mix[i], mix[j] = mix[j], mix[i] })
	for _, shape := range mix {
		name := fmt.Sprintf("%s-%d", shape, s.made)
		s.made++
		s.shape[name] = shape
		s.n.ClaimPod(name, "", shape)
		s.pods = append(s.pods, name)
	}
}

// settle waits until every pod runs.
func (s *scenario) settle() {
	s.t.Helper()
	for _, name := range s.pods {
		s.n.AwaitPod(name, fixture.Running)
	}
	s.uids = append(s.uids, s.n.ClaimUIDs()...)
	s.assertNoTwoHolders()
}

// end deletes all pods and waits until nothing of their claims remains.
func (s *scenario) end() {
	s.t.Helper()
	for _, name := range s.pods {
		s.n.DeletePod(name)
	}
	slices.Sort(s.uids)
	s.n.AwaitNothingLeft(slices.Compact(s.uids)...)
}

// pause waits for a random time below most: a fault may come at any moment.
func (s *scenario) pause(most time.Duration) { time.Sleep(time.Duration(s.random.Int64N(int64(most)))) }

var (
	wholeGPU = regexp.MustCompile(`^/dev/nvidia\d+$`)
	instance = regexp.MustCompile(`^/dev/nvidia-caps/nvidia-cap\d+$`)
)

// assertNoTwoHolders fails the test if two running pods have the same MIG instance or GPU, or if one has the GPU of another's instance.
func (s *scenario) assertNoTwoHolders() {
	s.t.Helper()
	type holder struct {
		pod  string
		part bool // it has an instance of the GPU
	}
	holders := map[string]holder{}
	for _, pod := range s.n.RunningPods() {
		for _, container := range s.n.TryReceived(&pod) {
			part := false
			for _, device := range container.Devices {
				part = part || instance.MatchString(device.Path)
			}
			if part != (s.shape[pod.Name] != "whole") {
				s.t.Errorf("%s received %v", pod.Name, container.Devices)
			}
			for _, device := range container.Devices {
				gpu := wholeGPU.MatchString(device.Path)
				if !gpu && !instance.MatchString(device.Path) {
					continue
				}
				key := pod.Spec.NodeName + " " + device.Path
				if other, held := holders[key]; held && other.pod != pod.Name && !(gpu && part && other.part) {
					s.t.Errorf("%s is held by %s and by %s", key, other.pod, pod.Name)
				}
				holders[key] = holder{pod.Name, part}
			}
		}
	}
}

// describe logs pods, Events and the nodes' layouts of a scenario that failed.
func (s *scenario) describe() {
	if !s.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), fixture.Patience)
	defer cancel()
	for _, namespace := range []string{s.n.Name, metav1.NamespaceDefault} {
		events, err := s.n.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			s.t.Logf("the Events cannot be read: %v", err)
			return
		}
		for i := range events.Items {
			e := &events.Items[i]
			s.t.Logf("%s %s: %s: %s", e.LastTimestamp.Format(time.TimeOnly), e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	claims, err := s.n.Client.ResourceV1().ResourceClaims(s.n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Logf("the claims cannot be read: %v", err)
		return
	}
	for i := range claims.Items {
		s.t.Logf("claim %s: %+v", claims.Items[i].Name, claims.Items[i].Status)
	}
	layouts, err := s.n.Manifests.Objects().Resource(miglayouts).List(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Logf("the layouts cannot be read: %v", err)
		return
	}
	for i := range layouts.Items {
		s.t.Logf("MIGLayout %s, generation %d: spec %v, status %v", layouts.Items[i].GetName(), layouts.Items[i].GetGeneration(),
			layouts.Items[i].Object["spec"], layouts.Items[i].Object["status"])
	}
}
