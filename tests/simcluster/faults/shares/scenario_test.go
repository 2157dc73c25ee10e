//go:build faults

package shares

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

// share is each pod's part of a GPU's memory, in MiB of 15,360. Two never fit on one GPU.
const share = 9216

// scenario is a node that is filled by pods with shares while a fault happens there.
type scenario struct {
	t      *testing.T
	n      *fixture.Namespace
	node   int
	random *rand.Rand
	uids   []string // of all pods that were made
}

// ask makes a pod with a share of a GPU of the node.
func (s *scenario) ask(name string) {
	s.t.Helper()
	s.n.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  schedulerName: gpufabric-scheduler
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - {name: main, image: "ubuntu:22.04", resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: %d}}}
`, name, cluster.NodeName(s.node), share)
	pod, err := s.n.Client.CoreV1().Pods(s.n.Name).Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.uids = append(s.uids, string(pod.UID))
}

// run makes a pod and waits until it has its share and the scheduler was notified. Without NRI pods come to a node one after another.
func (s *scenario) run(name string) {
	s.t.Helper()
	s.ask(name)
	s.served(name)
}

func (s *scenario) served(name string) {
	s.t.Helper()
	s.n.AwaitPod(name, func(pod *corev1.Pod) bool {
		return fixture.Running(pod) && pod.Annotations["volcano.sh/bind-phase"] == "success"
	})
	s.assertNoOverbooking()
}

// fill runs a pod for each GPU of the node.
func (s *scenario) fill() {
	s.t.Helper()
	for i := range gpus {
		s.run(fmt.Sprint("pod-", i))
	}
}

// waits makes a pod for which the node has no room, and waits until the scheduler has reported that.
func (s *scenario) waits(name string) {
	s.t.Helper()
	s.ask(name)
	s.n.AwaitPod(name, func(pod *corev1.Pod) bool {
		return pod != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		})
	})
	s.assertNoOverbooking()
}

// assertNoOverbooking fails the test if the pods of the node received more of a GPU's memory than it has.
func (s *scenario) assertNoOverbooking() {
	s.t.Helper()
	holders := map[string][]string{}
	for _, pod := range s.n.RunningPods() {
		for _, container := range s.n.TryReceived(&pod) {
			gpu := variable(container.Env, "NVIDIA_VISIBLE_DEVICES")
			limit := strings.TrimSuffix(variable(container.Env, "CUDA_DEVICE_MEMORY_LIMIT_0"), "m")
			if limit != strconv.Itoa(share) || !strings.HasPrefix(gpu, "GPU-") {
				s.t.Errorf("pod %s runs with the GPU %q and a limit of %q MiB; want a GPU and %d", pod.Name, gpu, limit, share)
			}
			holders[gpu] = append(holders[gpu], pod.Name)
		}
	}
	for gpu, pods := range holders {
		if len(pods) > 1 {
			s.t.Errorf("%s is booked for %v, each of which has more than half of it", gpu, pods)
		}
	}
}

func variable(env []string, name string) string {
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}

// end deletes the scenario's pods and restarts vgpu-plugin. Without a container runtime's reports, the plugin removes the
// directories of deleted pods only at its start. Then end asserts that nothing remains.
func (s *scenario) end() {
	s.t.Helper()
	pods, err := s.n.Client.CoreV1().Pods(s.n.Name).List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range pods.Items {
		s.n.DeletePod(pods.Items[i].Name)
	}
	again := s.n.PluginKiller("vgpu-plugin", s.node)
	again.StrikeRunning()
	again.Prove()
	s.n.AwaitNothingLeft(s.uids...)
	s.awaitUntaken()
}

// awaitUntaken waits until the scheduler's locks and the plugin's refusals are gone, so that the node accepts as many pods as
// before.
func (s *scenario) awaitUntaken() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	var left []string
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) { // directories have no event here
		left, _ = filepath.Glob(filepath.Join(cluster.NodeDir(shared.Dir, s.node), "r/var/lib/gpufabric/vgpu-plugin/containers/*_*"))
		return len(left) == 0, nil
	})
	if err != nil {
		s.t.Errorf("containers' directories are left on %s: %v", cluster.NodeName(s.node), left)
	}
}

// tell logs the pods and the Events of a failed scenario.
func (s *scenario) tell() {
	if !s.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), fixture.Patience)
	defer cancel()
	pods, err := s.n.Client.CoreV1().Pods(s.n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Logf("its pods cannot be read: %v", err)
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		s.t.Logf("%s is %s on %q: %v", pod.Name, pod.Status.Phase, pod.Spec.NodeName, pod.Annotations)
	}
	events, err := s.n.Client.CoreV1().Events(s.n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Logf("its Events cannot be read: %v", err)
		return
	}
	for i := range events.Items {
		e := &events.Items[i]
		s.t.Logf("%s %s: %s: %s", e.FirstTimestamp.Format(time.TimeOnly), e.InvolvedObject.Name, e.Reason, e.Message)
	}
}

// roles are vgpu-plugin and vgpu-monitor of the scenario's node.
func (s *scenario) roles() []*fixture.Killer {
	s.t.Helper()
	return []*fixture.Killer{s.n.PluginKiller("vgpu-plugin", s.node), s.n.PluginKiller("vgpu-monitor", s.node)}
}

func prove(t *testing.T, killers ...*fixture.Killer) {
	t.Helper()
	for _, killer := range killers {
		killer.Prove()
	}
}
