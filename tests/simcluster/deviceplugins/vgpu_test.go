package deviceplugins

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

const register = "volcano.sh/node-vgpu-register"

var wholeGPU = regexp.MustCompile(`^/dev/nvidia\d+$`)

// gpuOf is the first GPU that a node registers for Volcano's scheduler. The registration may come after the kubelet counts the
// shares.
func gpuOf(t *testing.T, node string) (uuid string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	registered := ""
	if err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		object, err := shared.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		registered = object.Annotations[register]
		first, _, ok := strings.Cut(registered, ",")
		uuid = first
		return ok && strings.HasPrefix(uuid, "GPU-"), nil
	}); err != nil {
		t.Fatalf("node %s registers %q; want its GPUs (%v)", node, registered, err)
	}
	return uuid
}

// awaitShares waits until the kubelet counts all that sharedPod requests. It would fail a pod that is bound earlier.
func awaitShares(n *fixture.Namespace, node string) {
	for resource, count := range map[string]int64{"number": 1, "memory": 3000, "cores": 50} {
		n.AwaitAllocatable(node, corev1.ResourceName("volcano.sh/vgpu-"+resource), count)
	}
}

// sharedPod makes a pod that requests a share. No scheduler of this cluster handles it.
func sharedPod(n *fixture.Namespace, name string) {
	n.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  schedulerName: volcano
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "ubuntu:22.04", resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 3000, `+
		`volcano.sh/vgpu-cores: 50}}}
`, name)
}

// schedule does what Volcano's scheduler does with a pod: it writes each container's shares, then binds the pod.
func schedule(ctx context.Context, n *fixture.Namespace, name, node, devices string) error {
	pods := n.Client.CoreV1().Pods(n.Name)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("schedule %s: %w", name, err)
	}
	pod.Annotations = map[string]string{
		"volcano.sh/vgpu-node": node, "volcano.sh/vgpu-ids-new": devices, "volcano.sh/devices-to-allocate": devices,
		"volcano.sh/bind-phase": "allocating",
	}
	if _, err := pods.Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("schedule %s: %w", name, err)
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Target: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node}}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("schedule %s: %w", name, err)
	}
	return nil
}

func TestVGPUShareReachesItsContainer(t *testing.T) {
	n := shared.Namespace(t)
	node := cluster.NodeName(0)
	awaitShares(n, node)
	uuid := gpuOf(t, node)
	sharedPod(n, "half")
	if err := schedule(t.Context(), n, "half", node, uuid+",NVIDIA,3000,50:;"); err != nil {
		t.Fatal(err)
	}
	n.AwaitPod("half", fixture.Running)
	env := n.Received("half")[0].Env
	// A unit of memory is 8 MiB here. The plugin chose it so that the kubelet can count such large GPUs.
	for _, want := range []string{"CUDA_DEVICE_MEMORY_LIMIT_0=24000m", "CUDA_DEVICE_SM_LIMIT=50", "NVIDIA_VISIBLE_DEVICES=" + uuid} {
		if !slices.Contains(env, want) {
			t.Errorf("the container's environment lacks %s: %v", want, env)
		}
	}
	if got := n.Devices("half", wholeGPU); len(got) != 1 {
		t.Errorf("received the GPUs %v; want the one of its share", got)
	}
	n.AwaitPod("half", func(pod *corev1.Pod) bool { return pod.Annotations["volcano.sh/bind-phase"] == "success" })
}

func TestVGPUShareOfAMissingGPUIsRefused(t *testing.T) {
	n := shared.Namespace(t)
	node := cluster.NodeName(1)
	awaitShares(n, node)
	sharedPod(n, "lost")
	if err := schedule(t.Context(), n, "lost", node, "GPU-00000000-0000-0000-0000-000000000000,NVIDIA,3000,50:;"); err != nil {
		t.Fatal(err)
	}
	n.AwaitEvent("lost", "GPU-00000000-0000-0000-0000-000000000000")
}
