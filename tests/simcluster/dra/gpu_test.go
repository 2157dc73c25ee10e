package dra

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

var (
	wholeGPU = regexp.MustCompile(`^/dev/nvidia\d+$`)
	instance = regexp.MustCompile(`^/dev/nvidia-caps/nvidia-cap\d+$`)
)

// unschedulable reports whether the scheduler has found no node for the pod.
func unschedulable(pod *corev1.Pod) bool {
	return pod != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "cannot allocate all claims")
	})
}

func TestGPUIsGivenToOnePodAndTheNextWaits(t *testing.T) {
	n := shared.Namespace(t)
	n.Template("gpu", "gpu.nvidia.com", "")
	seen := map[string]string{}
	for i := range gpusPerNode {
		name := fmt.Sprintf("pod-%d", i)
		n.ClaimPod(name, cluster.NodeName(0), "gpu")
		n.AwaitPod(name, fixture.Running)
		got := n.Devices(name, wholeGPU)
		if len(got) != 1 {
			t.Fatalf("%s received the GPUs %v; want one", name, got)
		}
		if other, taken := seen[got[0]]; taken {
			t.Errorf("%s and %s both have %s", name, other, got[0])
		}
		seen[got[0]] = name
		if control := n.Devices(name, regexp.MustCompile(`^/dev/nvidiactl$`)); len(control) != 1 {
			t.Errorf("%s lacks /dev/nvidiactl", name)
		}
	}
	n.ClaimPod("late", cluster.NodeName(0), "gpu")
	n.AwaitPod("late", unschedulable)
	n.DeletePod("pod-2")
	n.AwaitPod("late", fixture.Running)
	if got := n.Devices("late", wholeGPU); len(got) != 1 || seen[got[0]] != "pod-2" {
		t.Errorf("the pod that waited received %v; want the GPU of the pod that ended", got)
	}
}

func TestMIGInstanceIsMadeAndRemovedWithItsPod(t *testing.T) {
	n := shared.Namespace(t)
	n.Template("small", "mig.nvidia.com", `device.attributes['gpu.nvidia.com'].profile == '1g.23gb'`)
	for _, name := range []string{"first", "second"} {
		n.ClaimPod(name, cluster.NodeName(1), "small")
		n.AwaitPod(name, fixture.Running)
	}
	first, second := n.Devices("first", instance), n.Devices("second", instance)
	if len(first) != 2 || len(second) != 2 || slices.ContainsFunc(first, func(path string) bool { return slices.Contains(second, path) }) {
		t.Errorf("the pods received %v and %v; want the two capabilities of an instance each, of different ones", first, second)
	}
	if got := n.Devices("first", wholeGPU); len(got) != 1 {
		t.Errorf("the first pod received the GPUs %v; want the one of its instance", got)
	}
	uids := n.ClaimUIDs()
	n.DeletePod("first")
	n.DeletePod("second")
	n.AwaitNothingLeft(uids...)
	// The whole node is free again. If an instance still existed, its GPU would not be available.
	n.Template("gpu", "gpu.nvidia.com", "")
	for i := range gpusPerNode {
		name := fmt.Sprintf("whole-%d", i)
		n.ClaimPod(name, cluster.NodeName(1), "gpu")
		n.AwaitPod(name, fixture.Running)
	}
}

func TestGPUWithInstancesIsNotGivenWhole(t *testing.T) {
	n := shared.Namespace(t)
	n.Template("gpu", "gpu.nvidia.com", "")
	n.Template("small", "mig.nvidia.com", `device.attributes['gpu.nvidia.com'].profile == '1g.23gb'`)
	n.ClaimPod("part", cluster.NodeName(2), "small")
	n.AwaitPod("part", fixture.Running)
	for i := range gpusPerNode - 1 {
		name := fmt.Sprintf("whole-%d", i)
		n.ClaimPod(name, cluster.NodeName(2), "gpu")
		n.AwaitPod(name, fixture.Running)
	}
	n.ClaimPod("late", cluster.NodeName(2), "gpu")
	n.AwaitPod("late", unschedulable)
}

func TestGPUIsSharedByContainersOfAPod(t *testing.T) {
	n := shared.Namespace(t)
	n.Template("gpu", "gpu.nvidia.com", "")
	n.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: pair}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: one, image: "ubuntu:22.04", resources: {claims: [{name: gpu}]}}
  - {name: two, image: "ubuntu:22.04", resources: {claims: [{name: gpu}]}}
  - {name: none, image: "ubuntu:22.04"}
  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
`)
	n.AwaitPod("pair", fixture.Running)
	got := map[string][]string{}
	for _, container := range n.Received("pair") {
		for _, device := range container.Devices {
			if wholeGPU.MatchString(device.Path) {
				got[container.Container] = append(got[container.Container], device.Path)
			}
		}
	}
	if len(got["one"]) != 1 || !slices.Equal(got["one"], got["two"]) || len(got["none"]) != 0 {
		t.Errorf("the containers received %v; want one GPU in one and two, and none in the third", got)
	}
}

func TestPodsThatShareAClaimShareItsGPU(t *testing.T) {
	n := shared.Namespace(t)
	n.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: ours}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
`)
	for _, name := range []string{"one", "two"} {
		n.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "ubuntu:22.04", resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimName: ours}]
`, name)
		n.AwaitPod(name, fixture.Running)
	}
	if one, two := n.Devices("one", wholeGPU), n.Devices("two", wholeGPU); len(one) != 1 || !slices.Equal(one, two) {
		t.Errorf("the pods received %v and %v; want the same GPU", one, two)
	}
	// The end of the first pod does not affect the second.
	n.DeletePod("one")
	n.AwaitPod("two", fixture.Running)
}

func TestGPUExtendedResourceIsServedByDRA(t *testing.T) {
	n := shared.Namespace(t)
	n.LimitPod("two", "", "nvidia.com/gpu: 2")
	pod := n.AwaitPod("two", fixture.Running)
	if got := n.Devices("two", wholeGPU); len(got) != 2 {
		t.Errorf("received the GPUs %v; want two", got)
	}
	if pod.Status.ExtendedResourceClaimStatus == nil {
		t.Errorf("the pod has no claim for its extended resource: something else than DRA gave it the GPUs")
	}
}

func TestGPUServesTheSeedsTrainingPod(t *testing.T) {
	n := shared.Namespace(t)
	n.ApplyFile("examples/manifests/cuda-training-pod.yaml")
	n.AwaitPod("cuda-training", fixture.Running)
	if got := n.Devices("cuda-training", wholeGPU); len(got) != 1 {
		t.Errorf("received the GPUs %v; want one", got)
	}
}

func TestMIGExampleFitsTheDemosGB200(t *testing.T) {
	n := shared.Namespace(t)
	n.ApplyFile("examples/manifests/gpu-mig-of-one-parent.yaml")
	n.AwaitPod("mig-of-one-parent", fixture.Running)
	var got []string
	parents := map[string]bool{}
	for _, result := range n.Allocated("mig-of-one-parent") {
		attributes := n.Attributes(result)
		got = append(got, *attributes["profile"].StringValue)
		parents[*attributes["parentUUID"].StringValue] = true
	}
	slices.Sort(got)
	if want := []string{"1g.23gb", "2g.47gb", "3g.93gb"}; !slices.Equal(got, want) || len(parents) != 1 {
		t.Errorf("the pod has %v of %d GPUs; want %v of one", got, len(parents), want)
	}
}

func TestGPUClaimWithAWrongConfigurationIsRefused(t *testing.T) {
	n := shared.Namespace(t)
	err := n.TryApply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: wrong}
spec:
  devices:
    requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]
    config:
    - opaque:
        driver: gpu.nvidia.com
        parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: Sometimes}}
`)
	if err == nil || !strings.Contains(err.Error(), "strategy") || !strings.Contains(err.Error(), "Sometimes") {
		t.Errorf("got %v; want a refusal that names the field and the value", err)
	}
}
