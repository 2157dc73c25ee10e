package deviceplugins

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

var verbs = regexp.MustCompile(`^/dev/infiniband/uverbs\d+$`)

// unschedulable reports whether the scheduler has found no node for the pod.
func unschedulable(pod *corev1.Pod) bool {
	return pod != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
	})
}

func TestRDMARunsTheSeedsPods(t *testing.T) {
	n := shared.Namespace(t)
	n.RemoveAtEnd(fixture.ConfigMaps, "kube-system", "rdma-devices")
	n.ApplyFile("examples/manifests/rdma-devices-configmap.yaml")
	n.AwaitAllocatable(cluster.NodeName(0), "rdma/hca_shared_devices_a", 1000)
	for _, name := range []string{"mofed-test-pod", "rdma-server", "rdma-client"} {
		n.ApplyFile("examples/manifests/" + name + ".yaml")
		n.AwaitPod(name, fixture.Running)
		if got := n.Devices(name, verbs); len(got) != 1 {
			t.Errorf("%s received %v; want one NIC's verbs", name, got)
		}
		if got := n.Devices(name, regexp.MustCompile(`^/dev/infiniband/rdma_cm$`)); len(got) != 1 {
			t.Errorf("%s lacks /dev/infiniband/rdma_cm", name)
		}
	}
}

func TestRDMACountsUnitsAndTheNextPodWaits(t *testing.T) {
	n := shared.Namespace(t)
	n.Pool("few", `{resourceName: few, rdmaHcaMax: 3, selectors: {vendors: ["15b3"]}}`)
	n.AwaitAllocatable(cluster.NodeName(0), "rdma/few", 3)
	n.LimitPod("two", cluster.NodeName(0), "rdma/few: 2")
	n.AwaitPod("two", fixture.Running)
	n.LimitPod("late", cluster.NodeName(0), "rdma/few: 2")
	n.AwaitPod("late", unschedulable)
	n.DeletePod("two")
	n.AwaitPod("late", fixture.Running)
}

func TestRDMAExclusivePoolIsNotAllocatedByDRA(t *testing.T) {
	n := shared.Namespace(t)
	n.Pool("whole", `{resourceName: whole, mode: Exclusive, selectors: {vendors: ["15b3"]}}`)
	n.AwaitAllocatable(cluster.NodeName(1), "rdma/whole", 1)
	n.LimitPod("one", cluster.NodeName(1), "rdma/whole: 1")
	n.LimitPod("two", cluster.NodeName(1), "rdma/whole: 1")
	n.AwaitPod("one", fixture.Running)
	n.AwaitPod("two", fixture.Running)
	one, two := n.Devices("one", verbs), n.Devices("two", verbs)
	if len(one) != 1 || len(two) != 1 || slices.Equal(one, two) {
		t.Errorf("the pods received %v and %v; want one NIC each, and not the same", one, two)
	}
	n.Template("nic", "rdma.gpufabric.io", `device.attributes['rdma.gpufabric.io'].?pool.orValue('') == 'rdma/whole'`)
	n.ClaimPod("by-dra", cluster.NodeName(1), "nic")
	pod := n.AwaitPod("by-dra", unschedulable)
	if said := pod.Status.Conditions[0].Message; !strings.Contains(said, "cannot allocate all claims") {
		t.Errorf("the pod that asks DRA waits for something else: %s", said)
	}
}
